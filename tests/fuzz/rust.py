"""Rust's targets: what their fuzzer needs, how it is built, and its command."""

from __future__ import annotations

import re
import shutil
import subprocess

from tests.fuzz.running import ROOT

__all__ = ["build", "missing", "names"]

_CRATE = ROOT / "crates" / "fuzz" / "src" / "lib.rs"
_PROGRAM = ROOT / "build" / "fuzz" / "cargo"


def names() -> list[str]:
    """Every target of ``dsec-fuzz``."""
    return re.findall(r"^    \w+::(\w+),$", _CRATE.read_text(), re.MULTILINE)


def _works(*command: str) -> bool:
    return shutil.which(command[0]) is not None and subprocess.run(command, capture_output=True).returncode == 0


def missing() -> list[str]:
    """What has to be installed first, each with how."""
    lacks = []
    if not _works("cargo", "+nightly", "--version"):
        lacks.append("nightly Rust (rustup toolchain install nightly)")
    if not _works("cargo", "fuzz", "--version"):
        lacks.append("cargo-fuzz (cargo install cargo-fuzz)")
    if not _works("c++", "--version"):
        lacks.append("a C++ compiler (apt-get install g++)")
    return lacks


def build() -> list[str]:
    """Build the fuzzer; the command that runs it. Raises CalledProcessError."""
    # The readers are safe Rust: what a sanitizer would find costs more than it finds.
    subprocess.run(
        ["cargo", "+nightly", "fuzz", "build", "--sanitizer", "none", "--target-dir", str(_PROGRAM), "any"],
        cwd=ROOT, check=True,
    )  # fmt: skip
    return [str(next(_PROGRAM.glob("*/release/any")))]
