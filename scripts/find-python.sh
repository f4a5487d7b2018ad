#!/bin/bash
# Print a Python of version 3.11 or newer that can make virtual environments with pip; exit code 3 without one.
set -euo pipefail

for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11 /usr/bin/python3; do
	if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
		command -v "$candidate"
		exit 0
	fi
done
echo "No Python 3.11 or newer with its venv module: install python3 and python3-venv, then run it again." >&2
exit 3
