"""One at a time for each layer: whoever brings it, evicts it, or gives its claims back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

__all__ = ["Turns"]


class Turns:
    """Turns by digest, in the order in which they were asked for. Used on one event loop."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._wanted: dict[str, int] = {}

    @asynccontextmanager
    async def of(self, digest: str) -> AsyncIterator[None]:
        """Wait for one's turn, and have it for the block."""
        lock = self._locks.setdefault(digest, asyncio.Lock())
        self._wanted[digest] = self._wanted.get(digest, 0) + 1
        try:
            async with lock:
                yield
        finally:
            self._wanted[digest] -= 1
            if not self._wanted[digest]:
                del self._wanted[digest], self._locks[digest]

    def taken(self, digest: str) -> bool:
        """Whether somebody has the turn or waits for it; if not, whoever asks next before an await has it at once.

        For those who must not wait: a pull that has its turn may be waiting for them to make room.
        """
        return digest in self._wanted
