#!/bin/bash
# What only tests need: Debian's docker-registry, unpacked below build/ and not installed, since its package starts a service.
set -euo pipefail

command -v docker-registry >/dev/null && exit 0
[[ -x build/tools/usr/bin/docker-registry ]] && exit 0
command -v apt-get >/dev/null || {
	echo "docker-registry is missing and there is no apt: put it on PATH, then run it again." >&2
	exit 3
}
rm -rf build/tools
mkdir -p build/tools/download
cd build/tools/download
apt-get update -qq
apt-get download -qq docker-registry
dpkg-deb -x docker-registry_*.deb ..
