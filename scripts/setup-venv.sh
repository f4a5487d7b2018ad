#!/bin/bash
# Make (or complete) the virtual environment: dsec itself editable, the server's and the tools' dependencies.
# The programs of dsec-node-bin are not installed here: a checkout uses those that cargo has built.
set -euo pipefail

venv=$1
if ! "$venv/bin/python" -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
	rm -rf "$venv"
	"$(scripts/find-python.sh)" -m venv "$venv"
fi
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable '.[server,dev]'
