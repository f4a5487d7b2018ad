# `make` lists the targets. Everything can be repeated and finishes what a broken run left half-done.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.ONESHELL:
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

VENV := .venv
PYTHON := $(VENV)/bin/python
DSEC := $(VENV)/bin/dsec
TRIPLE := $(shell uname -m)-unknown-linux-gnu

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 24

.PHONY: setup
setup: build/machine build/venv build/programs ## install what is missing: distribution packages, .venv, Rust build
	@echo "ready: $(DSEC) up"

.PHONY: demo
demo: setup ## start a node, run the main job, print its tables, stop the node
	@scripts/with-node.sh $(DSEC) demo $(ARGS)

.PHONY: test
test: setup build/test-machine lint build/test-store build/weakened ## everything needed, then all tests (make check included)
	cargo test --release --workspace --quiet
	$(PYTHON) -m pytest $(ARGS)

.PHONY: check
check: lint ## format, lint, types, import directions, unit tests
	$(PYTHON) -m pytest -q tests/unit

.PHONY: lint
lint: build/machine build/venv
	$(VENV)/bin/ruff format --check src tests bench examples
	$(VENV)/bin/ruff check src tests bench examples
	$(VENV)/bin/mypy
	cargo fmt --all --check
	cargo clippy --release --workspace --all-targets --quiet -- -D warnings

.PHONY: bench
bench: setup ## measure; raw samples to bench/results, the tables to standard output
	@scripts/with-node.sh $(PYTHON) -m bench $(ARGS)

.PHONY: bench-environments
bench-environments: setup build/test-store ## measure layers on demand beside whole copies; ARGS="--scale 0.02" is a look
	@PATH=$$PATH:/usr/sbin:/sbin $(PYTHON) -m bench.environments $(ARGS)

.PHONY: fuzz
fuzz: build/venv ## readers of foreign bytes, each for FUZZ_SECONDS (60), and FUZZ_EXAMPLES (20,000) of each kind of request; ends at the first defect
	@mkdir -p build/fuzz
	$(PYTHON) -m tests.fuzz --seconds $${FUZZ_SECONDS:-60} --out build/fuzz/outcomes.jsonl $(ARGS)
	FUZZ_EXAMPLES=$${FUZZ_EXAMPLES:-20000} $(PYTHON) -m pytest -q tests/unit/apiserver/test_fuzz.py

.PHONY: audit
audit: build/venv ## ask OSV about the packages of both lock files: error 1 where something is known, 3 where it cannot be reached
	@$(PYTHON) scripts/audit.py

.PHONY: soak
soak: setup build/test-machine build/test-store ## long runs: 10,000 execs, churn of readers, 4 GiB in and out, 5,000 execs in flight; figures to bench/results
	SOAK=1 $(PYTHON) -m pytest -q tests/soak $(ARGS)
	SOAK_EXECS=5000 $(PYTHON) -m pytest -q --timeout 900 tests/integration/test_many_execs.py
	for seed in 1 2 3; do SOAK_BURST=200 SOAK_SEED=$$seed $(PYTHON) -m pytest -q tests/integration/test_kill_everything.py; done

.PHONY: soak-layers
soak-layers: build/venv ## a layer of four million files: time and memory to bench/results/soak-layers.json
	$(PYTHON) -m bench.layers --entries 4000000 | tee bench/results/soak-layers.json

.PHONY: wheels
wheels: build/venv ## both wheels into dist/
	@mkdir -p dist
	rm -f dist/*.whl
	$(PYTHON) -m hatchling build -t wheel -d dist
	$(VENV)/bin/maturin build --release --quiet --manifest-path crates/node-bin/Cargo.toml --target $(TRIPLE) --out dist
	@ls -1 dist

.PHONY: test-wheels
test-wheels: wheels build/test-store ## from the built wheels in a clean virtual environment: dsec up, an exec, dsec down
	@DSEC_TEST_STORE=$(CURDIR)/build/test-store scripts/test-wheels.sh

.PHONY: test-compat
test-compat: setup build/test-machine build/test-store ## other people's suites (Inspect, mini-swe-agent, …), each in its own environment
	@$(PYTHON) -m tests.compatibility.run $(ARGS)

.PHONY: clean
clean: ## remove what was built (not the node's data: dsec down, then rm -r /var/lib/dsec)
	rm -rf build dist target $(VENV)

build/machine: scripts/setup-machine.sh
	@mkdir -p build
	scripts/setup-machine.sh
	touch $@

.PHONY: lock
lock: ## pin and hash the Python packages anew, after a change to pyproject.toml; ARGS=--upgrade takes the newest
	@scripts/lock.sh $(ARGS)

build/venv: scripts/setup-venv.sh pyproject.toml requirements.lock build/machine
	@scripts/setup-venv.sh $(VENV)
	touch $@

.PHONY: build/programs
build/programs: build/machine
	cargo build --release --package dsec-node-bin --bins

# A keeper and a runtime without the protections that tests/security/test_weakened*.py name; those build them too.
.PHONY: build/weakened
build/weakened: build/machine
	cargo build --profile weakened --package dsec-keeper --package dsec-runtime --features dsec-keeper/weaken,dsec-runtime/weaken --bins

.PHONY: build/test-store
build/test-store: build/venv
	@$(PYTHON) -m dsec.testing.store $@

build/test-machine: scripts/setup-tests.sh build/machine
	@scripts/setup-tests.sh
	touch $@
