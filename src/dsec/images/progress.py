"""How far an import or build is."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

__all__ = ["OnProgress", "Phase", "Progress", "Reporter"]

Phase = Literal["download", "wait", "unpack", "build", "done"]
"""``wait``: the registry is left alone for a while, or a download that broke off is begun again soon."""


class Progress(msgspec.Struct, frozen=True):
    """A moment of an import or build."""

    reference: str
    """What is imported or built."""
    phase: Phase
    bytes_done: int = 0
    """Bytes fetched (download) or read from the layers' archives (unpack)."""
    bytes_total: int | None = None
    """Bytes in all, once known."""
    layers_done: int = 0
    layers_total: int | None = None


OnProgress = Callable[[Progress], None]


class Reporter:
    """Hands each moment to everybody who waits for the same import; a late one gets the latest moment first."""

    def __init__(self) -> None:
        self._listeners: list[OnProgress] = []
        self._latest: Progress | None = None
        self._deadlines: list[float] = []

    def __call__(self, progress: Progress) -> None:
        """Report."""
        self._latest = progress
        for listener in tuple(self._listeners):
            listener(progress)

    def add(self, listener: OnProgress) -> None:
        """Join."""
        self._listeners.append(listener)
        if self._latest is not None:
            listener(self._latest)

    def discard(self, listener: OnProgress) -> None:
        """Leave."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    @property
    def until(self) -> float:
        """Until when somebody waits for it, in the event loop's time; infinite where nobody said, or nobody does."""
        return max(self._deadlines, default=math.inf)

    @contextlib.contextmanager
    def waited_for(self, deadline: float) -> Iterator[None]:
        """Somebody waits in this block, until then at most."""
        self._deadlines.append(deadline)
        try:
            yield
        finally:
            self._deadlines.remove(deadline)
