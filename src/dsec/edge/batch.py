"""Collects IDs and sends them together: results that are committed, ends that may be forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from dsec.errors import DSecError

__all__ = ["Batch"]

_MOST = 500


class Batch:
    """Sends what was added at most ``delay_s`` ago; what could not be sent is kept and sent again.

    Sending must be harmless when repeated. ``on_refused`` is told of errors that are not retryable: those IDs are
    dropped, and counted by whoever listens.
    """

    def __init__(
        self,
        send: Callable[[list[str]], Awaitable[None]],
        *,
        delay_s: float,
        on_refused: Callable[[list[str], DSecError], None],
    ) -> None:
        self._send = send
        self._delay_s = delay_s
        self._on_refused = on_refused
        self._ids: dict[str, None] = {}
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, ids: Iterable[str]) -> None:
        """Send these soon."""
        self._ids.update(dict.fromkeys(ids))
        if self._ids:
            self._wake.set()

    async def run(self) -> None:
        """Send, until cancelled."""
        while True:
            await self._wake.wait()
            await asyncio.sleep(self._delay_s)
            self._wake.clear()
            await self._flush()

    async def _flush(self) -> None:
        while self._ids:
            taken = list(self._ids)[:_MOST]
            try:
                await self._send(taken)
            except DSecError as error:
                if error.retryable:
                    self._wake.set()
                    return
                self._on_refused(taken, error)
            for each in taken:
                self._ids.pop(each, None)
