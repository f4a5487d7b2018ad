"""What was left out of a packed layer, and what is in it."""

from __future__ import annotations

import msgspec

__all__ = ["MOST_LISTED", "Report", "Residual"]

MOST_LISTED = 1000
"""Most paths that are listed; the sums count all."""


class Residual(msgspec.Struct, frozen=True):
    """A path that was left out with all below it, by which rule, and what it took."""

    path: str
    rule: str
    bytes: int


class Report(msgspec.Struct):
    """Counts of one packed layer."""

    removed: list[Residual] = []
    """The topmost path of each; the first thousand."""
    removed_files: int = 0
    removed_bytes: int = 0
    entries: int = 0
    """Files, directories and the rest that the sandbox had written, residue left out."""
    bytes: int = 0
    """Of all these files, holes included."""
    whiteouts: int = 0
    """Files of the layers below that it removes."""
    dropped_attributes: int = 0
