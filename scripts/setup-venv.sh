#!/bin/bash
# Make (or complete) the virtual environment: dsec itself editable, the server's and the tools' dependencies.
# The programs of dsec-node-bin are not installed here: a checkout uses those that cargo has built.
set -euo pipefail

venv=$1
if ! "$venv/bin/python" -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
	rm -rf "$venv"
	"$(scripts/find-python.sh)" -m venv "$venv"
fi
# Nothing is installed whose bytes the lock does not know; then dsec itself, built by the hatchling that came with it.
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements.lock
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
