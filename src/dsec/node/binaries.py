"""Where the node's Rust programs are: beside the interpreter (the wheel), else in a checkout's build."""

from __future__ import annotations

import platform
import sys
import sysconfig
from pathlib import Path

import msgspec

from dsec.errors import Unsupported

__all__ = ["Binaries", "find_binaries"]

_NAMES = ("dsec-keeper", "dsec-runtime", "dsec-init", "dsec-proxy", "dsec-holder", "dsec-fetcher")


class Binaries(msgspec.Struct, frozen=True):
    """Absolute paths of the programs."""

    keeper: Path
    runtime: Path
    init: Path
    proxy: Path
    holder: Path
    fetcher: Path


def _places() -> list[Path]:
    beside = [Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))]
    checkout = Path(__file__).resolve().parents[3]
    if not (checkout / "Cargo.toml").is_file():
        return beside
    triple = f"{platform.machine()}-unknown-linux-gnu"
    return [*beside, checkout / "target" / triple / "release"]


def find_binaries(places: list[Path] | None = None) -> Binaries:
    """All programs from the first place that has them all.

    Raises Unsupported with the way to get them when no place does: programs of two builds are never mixed.
    """
    searched = _places() if places is None else places
    for place in searched:
        found = [place / name for name in _NAMES]
        if all(path.is_file() for path in found):
            return Binaries(*found)
    raise Unsupported(
        f"the node's programs ({', '.join(_NAMES)}) are not installed",
        phase="machine",
        remedy="Install `dsec-platform[node]`, or run `make setup` in a checkout",
        searched=[str(place) for place in searched],
    )
