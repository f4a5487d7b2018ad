#!/bin/bash
# What a checkout needs of the machine: Linux, root, a Rust toolchain (never installed here), distribution packages.
# Exit code 3: one sentence says what is missing and how to get it.
set -euo pipefail

RUST_NEEDED=91 # 1.91

refuse() {
	echo "$1" >&2
	exit 3
}

[[ $(uname -s) == Linux ]] || refuse "A node runs on Linux only; on $(uname -s) install the client with 'pip install dsec-platform'."
[[ $EUID == 0 ]] || refuse "Set-up and node need root: run it again with sudo."
command -v cargo >/dev/null || refuse "No Rust toolchain: install Rust 1.$RUST_NEEDED or newer from https://rustup.rs, then run it again."

rust=$(cargo --version | sed -E 's/^cargo ([0-9]+)\.([0-9]+).*/\1 \2/')
read -r major minor <<<"$rust"
((major > 1 || minor >= RUST_NEEDED)) ||
	refuse "Rust $major.$minor is too old: install 1.$RUST_NEEDED or newer ('rustup update'), then run it again."

read -r kernel_major kernel_minor < <(uname -r | sed -E 's/^([0-9]+)\.([0-9]+).*/\1 \2/')
((kernel_major > 6 || (kernel_major == 6 && kernel_minor >= 15))) ||
	refuse "Linux $kernel_major.$kernel_minor is too old: a node needs 6.15 or newer."

packages=()
need() { # COMMAND PACKAGE
	PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null || packages+=("$2")
}
need mkfs.btrfs btrfs-progs
need mkfs.erofs erofs-utils
need skopeo skopeo
need mmdebstrap mmdebstrap
need zstd zstd
need xz xz-utils
need cc gcc
need prlimit util-linux
need nft nftables # tests look with it at what is left
[[ -e /usr/share/keyrings/debian-archive-keyring.gpg ]] || packages+=(debian-archive-keyring)
[[ -d /etc/ssl/certs ]] || packages+=(ca-certificates)
scripts/find-python.sh >/dev/null 2>&1 || packages+=(python3 python3-venv)

if ((${#packages[@]})); then
	command -v apt-get >/dev/null ||
		refuse "Missing: ${packages[*]} (names on Debian); install them with your distribution's tool, then run it again."
	echo "installing ${packages[*]}"
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -qq
	apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
fi
scripts/find-python.sh >/dev/null
