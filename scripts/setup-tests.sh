#!/bin/bash
# What only tests need, unpacked below build/ and not installed: Debian's docker-registry, whose package starts a service, and
# its static busybox and less, which are put into sandboxes.
set -euo pipefail

packages=()
command -v docker-registry >/dev/null || [[ -x build/tools/usr/bin/docker-registry ]] || packages+=(docker-registry)
[[ -x build/tools/bin/busybox ]] || packages+=(busybox-static)
command -v less >/dev/null || [[ -x build/tools/bin/less || -x build/tools/usr/bin/less ]] || packages+=(less)
((${#packages[@]})) || exit 0
command -v apt-get >/dev/null || {
	echo "${packages[*]} is missing and there is no apt: unpack it below build/tools, then run it again." >&2
	exit 3
}
rm -rf build/tools/download
mkdir -p build/tools/download
cd build/tools/download
apt-get update -qq
apt-get download -qq "${packages[@]}"
for package in *.deb; do dpkg-deb -x "$package" ..; done
