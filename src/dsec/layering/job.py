"""What the program that makes layers is told, and what it answers: JSON, held by both sides to these types."""

from __future__ import annotations

from typing import Any

import msgspec

from dsec.layering.making import Made, Source

__all__ = ["JOB", "Answer", "Failed", "Job"]

JOB = "job"
"""The file in the directory of the layer that says what it is made of."""


class Job(msgspec.Struct, frozen=True):
    """One layer to be made."""

    source: Source


class Failed(msgspec.Struct, frozen=True, tag=True):
    """It could not be made."""

    error: dict[str, Any]
    """As ``DSecError.to_wire`` gives it."""
    disk_full: bool = False


Answer = Made | Failed
