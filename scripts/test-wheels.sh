#!/bin/bash
# The locally built wheels in a clean virtual environment: install, dsec up, an exec, dsec down. Prints the time it took.
set -euo pipefail

root=$(mktemp -d /tmp/dsec-wheels.XXXX)
layers=${DSEC_TEST_STORE:-}
trap '"$root/venv/bin/dsec" down --yes --root "$root/node" --node wheels >/dev/null 2>&1 || true; rm -rf "$root"' EXIT

began=$SECONDS
"$(scripts/find-python.sh)" -m venv "$root/venv"
"$root/venv/bin/python" -m pip install --quiet --disable-pip-version-check --find-links dist 'dsec-platform[node]'
dsec=$root/venv/bin/dsec
cd "$root" # nothing of the checkout is in reach
export DSEC_ROOT=$root/node DSEC_NODE=wheels
"$dsec" up --port 0 --pool-mib 2048 ${layers:+--shared-layers "$layers"}
said=$("$dsec" run --rm dsec/debian:12 python3 -c 'print(6 * 7)')
[[ $said == 42 ]] || {
	echo "the sandbox said '$said', not 42" >&2
	exit 1
}
"$dsec" down --yes
echo "wheels: from nothing to the first exec and down again in $((SECONDS - began)) s"
