#!/bin/bash
# Run a command beside a node: one that is up is used and left; else one is started, and taken down at the end.
set -euo pipefail

bin=$PWD/.venv/bin
if "$bin/dsec" status >/dev/null 2>&1; then
	exec "$@"
fi
trap '"$bin/dsec" down --yes' EXIT
"$bin/dsec" up
"$@"
