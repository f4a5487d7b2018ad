"""Rust's targets: what their fuzzer needs, how it is built, and its command."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

from tests.fuzz.running import ROOT

__all__ = ["build", "missing", "names"]

_CRATE = ROOT / "crates" / "fuzz" / "src" / "lib.rs"
_PROGRAM = ROOT / "build" / "fuzz" / "cargo"
_FLAGS = (
    "-Cpasses=sancov-module", "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters", "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares", "--cfg", "fuzzing",
    "-Cllvm-args=-simplifycfg-branch-fold-threshold=0", "-Cllvm-args=-sanitizer-coverage-stack-depth",
    "-Cdebug-assertions", "-Ccodegen-units=1",
)  # fmt: skip
"""cargo-fuzz's own, without which nothing leads libFuzzer."""


def names() -> list[str]:
    """Every target of ``dsec-fuzz``."""
    return re.findall(r"^    \w+::(\w+),$", _CRATE.read_text(), re.MULTILINE)


def missing() -> list[str]:
    """What has to be installed first, each with how."""
    tools = {"cargo": "Rust (https://rustup.rs)", "c++": "a C++ compiler (apt-get install g++)"}
    return [how for tool, how in tools.items() if shutil.which(tool) is None]


def build() -> list[str]:
    """Build the fuzzer, by cargo-fuzz where it is; the command that runs it. Raises CalledProcessError."""
    if shutil.which("cargo-fuzz") is not None:
        # The readers are safe Rust: what a sanitizer would find costs more than it finds, and takes nightly Rust.
        command, flags = ["cargo", "fuzz", "build", "--sanitizer", "none"], {}
    else:
        print("no cargo-fuzz (cargo install cargo-fuzz): cargo builds the same fuzzer by its flags", file=sys.stderr)
        command = [
            "cargo",
            "build",
            "--release",
            "--manifest-path",
            "fuzz/Cargo.toml",
            "--target",
            _triple(),
            "--bin",
        ]
        flags = {"RUSTFLAGS": " ".join(_FLAGS)}
    subprocess.run([*command, "any", "--target-dir", str(_PROGRAM)], cwd=ROOT, check=True, env=os.environ | flags)
    return [str(_PROGRAM / _triple() / "release" / "any")]


def _triple() -> str:
    told = subprocess.run(["rustc", "-vV"], capture_output=True, text=True, check=True).stdout
    return next(line.removeprefix("host: ") for line in told.splitlines() if line.startswith("host: "))
