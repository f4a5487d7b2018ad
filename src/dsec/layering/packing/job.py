"""What the program that packs is told, and what it answers: JSON, held by both sides to these types."""

from __future__ import annotations

from typing import Any

import msgspec

from dsec.layering.making import Made
from dsec.layering.packing.report import Report
from dsec.layering.packing.residue import Rule

__all__ = ["JOB", "SNAPSHOT_FD", "Answer", "PackFailed", "PackJob", "Packed"]

JOB = "job"
"""The file in the directory of the layer that says what it is made of."""
SNAPSHOT_FD = 3
"""The root of what the sandbox had written, read only."""


class PackJob(msgspec.Struct, frozen=True, kw_only=True):
    """One layer to be packed."""

    rules: tuple[Rule, ...]
    keep: tuple[str, ...]
    below: tuple[str, ...] = ()
    """Directories of layers that become part of it, lowest first: those that lay under what the sandbox wrote."""
    max_entries: int
    max_bytes: int


class Packed(msgspec.Struct, frozen=True, tag=True):
    """It is made."""

    made: Made
    report: Report


class PackFailed(msgspec.Struct, frozen=True, tag=True):
    """It could not be made."""

    error: dict[str, Any]
    """As ``DSecError.to_wire`` gives it."""
    disk_full: bool = False


Answer = Packed | PackFailed
