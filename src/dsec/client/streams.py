"""Receivers: what is done with the frames of one stream."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from dsec.api.frames import STDERR, STDIN, STDOUT, Kind, until_frame
from dsec.client.results import Kept
from dsec.client.wire import Lost, Wire
from dsec.errors import DSecError, error_from_wire

__all__ = ["UNLIMITED", "WINDOW", "Collecting", "Flowing", "Pieces"]

UNLIMITED = 1 << 62
"""Credit for a stream that the server bounds itself."""
WINDOW = 1 << 20
"""Bytes of credit beyond what a reader has taken."""


class Pieces:
    """Bytes of one stream, put together by their offsets."""

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: list[tuple[int, list[bytes], int]] = []

    def add(self, offset: int, data: bytes) -> None:
        """More bytes; those that touch the last piece are joined to it."""
        if self._pieces:
            start, parts, end = self._pieces[-1]
            if offset == end:
                parts.append(data)
                self._pieces[-1] = (start, parts, end + len(data))
                return
        self._pieces.append((offset, [data], offset + len(data)))

    def kept(self, total: int) -> Kept:
        """What there is, of ``total`` bytes."""
        if not self._pieces:
            return Kept((), total)
        return Kept(tuple((start, b"".join(parts)) for start, parts, _ in self._pieces), total)


class Collecting:
    """Gathers a stream of mode ``collect``. ``done`` becomes the ``end`` (a dict) or the error (not raised)."""

    __slots__ = ("_credited", "done", "err", "loop", "number", "on_stdin_credit", "out", "started", "wire")

    def __init__(self, loop: asyncio.AbstractEventLoop, *, credited: bool) -> None:
        self.loop = loop
        self.out: Pieces | None = None
        self.err: Pieces | None = None
        self.done: asyncio.Future[dict[str, Any] | DSecError] = loop.create_future()
        self.started: asyncio.Future[DSecError | None] | None = None
        self.wire: Wire | None = None
        self.number = 0
        self.on_stdin_credit: Any = None
        self._credited = credited

    def on_frame(self, frame: list[Any]) -> None:
        kind = frame[1]
        if kind == Kind.DATA:
            self._take(frame[2], frame[3], frame[4])
        elif kind == Kind.END:
            self._finish(frame[2])
        elif kind == Kind.ERROR:
            self._finish(error_from_wire(frame[2]))
        elif kind == Kind.ITEM and self.started is not None and not self.started.done():
            self.started.set_result(None)
        elif kind == Kind.UNTIL and self.on_stdin_credit is not None and frame[2] == STDIN:
            self.on_stdin_credit(frame[3])

    def on_lost(self) -> None:
        self._finish(Lost("the connection to the apiserver broke", phase="stream"))

    def _take(self, channel: int, offset: int, data: bytes) -> None:
        if not data:
            return
        if channel == STDOUT:
            if self.out is None:
                self.out = Pieces()
            self.out.add(offset, data)
        elif channel == STDERR:
            if self.err is None:
                self.err = Pieces()
            self.err.add(offset, data)

    def _finish(self, outcome: dict[str, Any] | DSecError) -> None:
        if not self.done.done():
            self.done.set_result(outcome)
        if self.started is not None and not self.started.done():
            self.started.set_result(outcome if isinstance(outcome, DSecError) else None)
        if self.on_stdin_credit is not None:
            self.on_stdin_credit(-1)

    async def send(self, frame: bytes) -> None:
        """Send a frame of this stream. Raises Lost."""
        if self.wire is None:
            raise Lost("the stream is not open yet", phase="stream")
        await self.wire.send(frame)

    async def want_output(self) -> None:
        """Give the credit that was held back at first."""
        if not self._credited and not self.done.done():
            self._credited = True
            for channel in (STDOUT, STDERR):
                await self.send(until_frame(self.number, channel, UNLIMITED))


class Flowing:
    """Queues a stream of mode ``stream`` for one reader; the credit that the reader gives bounds the queue."""

    __slots__ = ("_frames", "_lost", "_waiter")

    def __init__(self) -> None:
        self._frames: deque[list[Any]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._lost = False

    def on_frame(self, frame: list[Any]) -> None:
        self._frames.append(frame)
        self._wake()

    def on_lost(self) -> None:
        self._lost = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> list[Any]:
        """The next frame. Raises Lost when the WebSocket broke and nothing is left."""
        while not self._frames:
            if self._lost:
                raise Lost("the connection to the apiserver broke", phase="stream")
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._frames.popleft()
