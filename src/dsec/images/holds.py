"""Layers that work in progress needs, so that no clean-up takes them."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator

__all__ = ["Hold", "Holds"]

Hold = Callable[[str], None]


class Holds:
    """Counts who holds which digest; used on the event loop's thread only."""

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()

    def __contains__(self, digest: str) -> bool:
        return self._held[digest] > 0

    @contextlib.contextmanager
    def session(self) -> Iterator[Hold]:
        """Gives a function that holds a digest until the block ends."""
        mine: list[str] = []

        def hold(digest: str) -> None:
            mine.append(digest)
            self._held[digest] += 1

        try:
            yield hold
        finally:
            self._held.subtract(mine)
