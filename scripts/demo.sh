#!/bin/bash
# Start a node (unless one is up), run the main job on it, and stop the node that was started here.
set -euo pipefail

dsec=$PWD/.venv/bin/dsec
if "$dsec" up; then
	trap '"$dsec" down --yes' EXIT
else
	"$dsec" status >/dev/null # up already: use it, and leave it
fi
"$dsec" demo "$@"
