"""The seam between the job and what runs it: boxes that execute a script and are then stopped.

``DsecBoxes`` is the job on dsec's public SDK; ``dsec.demo.docker`` has the same on Docker, to stand beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

__all__ = ["Box", "BoxEnd", "Boxes", "Environment", "LayerSource", "Outcome"]


@dataclass(frozen=True)
class LayerSource:
    """A directory of this machine that is to be a layer. The reference holds a digest of what it was made from."""

    reference: str
    directory: Path
    at: str
    """Where the directory's content stands in a sandbox."""


@dataclass(frozen=True)
class Environment:
    """What a box consists of: an image, layers over it, and what its programs find in their environment."""

    image: str
    workspace: str | None
    toolkits: tuple[str, ...]
    env: dict[str, str]
    memory_mib: int


@dataclass(frozen=True)
class Outcome:
    """How a script ended. ``exit_code`` is None when it was killed, ``timed_out`` when by its time limit."""

    exit_code: int | None
    timed_out: bool
    oom_kills: int
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True)
class BoxEnd:
    """A box that is confirmed dead."""

    processes: int
    """Left behind: 0."""
    cpu_s: float
    memory_peak_mib: float


class Box(Protocol):
    """One sandbox."""

    @property
    def id(self) -> str:
        """Its name in reports."""

    async def run(self, script: str, *, timeout_s: float, stdin: bytes | None = None) -> Outcome:
        """Run a shell script as root; raises DSecError when the platform, not the script, fails."""

    async def stop(self) -> BoxEnd:
        """Stop it, and return when nothing of it runs any more."""


class Boxes(Protocol):
    """Where boxes come from."""

    @property
    def platform(self) -> str:
        """Its name in reports."""

    async def build(self, layers: Sequence[LayerSource]) -> None:
        """Make the layers that are not there yet; raises DSecError."""

    async def create(self, environment: Environment) -> Box:
        """A running box; raises DSecError."""

    async def left(self) -> int:
        """How many boxes of this job are still there."""
