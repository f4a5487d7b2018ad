#!/bin/bash
# Write requirements.lock: every Python package that `make setup` installs, one version each, with the SHA-256 of all its files,
# for Python 3.11 and newer on any machine. Versions that still fit pyproject.toml stay; with --upgrade the newest are taken.
# The packages come from the index that pip is configured with, and nothing of it is written down.
set -euo pipefail

room=$(mktemp -d /tmp/dsec-lock.XXXX)
trap 'rm -rf "$room"' EXIT
"$(scripts/find-python.sh)" -m venv "$room/venv"
"$room/venv/bin/python" -m pip install --quiet --disable-pip-version-check uv
index=${PIP_INDEX_URL:-$("$room/venv/bin/python" -m pip config get global.index-url 2>/dev/null || true)}
[[ -z $index ]] || export UV_DEFAULT_INDEX=$index
"$room/venv/bin/uv" pip compile --quiet --universal --python-version 3.11 --extra server --extra dev --generate-hashes \
	--no-header --no-annotate --no-emit-index-url --no-emit-find-links --output-file requirements.lock "$@" pyproject.toml >/dev/null
echo "requirements.lock: $(grep -c '==' requirements.lock) packages"
