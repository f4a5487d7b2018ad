"""Input of a running program: exact bytes within the credit that it gives, over whatever connections it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dsec.api.frames import CHUNK_BYTES, STDIN, data_frame
from dsec.client.waiting import Patience
from dsec.client.wire import Lost
from dsec.errors import CommandError, DSecError, InvalidArgument, NodeError, NotFound

if TYPE_CHECKING:
    from dsec.client.streams import Collecting

__all__ = ["Stdin"]

_INITIAL_CREDIT = 256 * 1024
_RECONNECT_S = 120.0
"""How long input goes on looking for a node that does not answer."""


class Stdin:
    """``await write(data)``, ``await close()``.

    ``write`` returns when all is sent, so it waits for a program that reads slowly. To a terminal, ``close`` sends
    its end-of-file character, Ctrl-D. Several may write to one exec: each one's bytes stay in order.
    """

    def __init__(
        self, stream: Callable[[], Awaitable[Collecting]], failed: Callable[[Collecting, DSecError], None]
    ) -> None:
        self._stream = stream
        self._failed = failed
        self._pending = bytearray()
        self._base = 0
        self._sent = 0
        self._credit = _INITIAL_CREDIT
        self._closed = False
        self._wake: asyncio.Event | None = None
        self._turn = asyncio.Lock()
        self._broken = False
        self._given_up = False
        self._again: asyncio.Task[None] | None = None

    async def write(self, data: bytes | str) -> None:
        """Send bytes (text as UTF-8).

        Raises CommandError when the program has ended, InvalidArgument after ``close`` and for an exec without
        standard input.
        """
        if self._closed:
            raise InvalidArgument("standard input has been closed")
        view = memoryview(data.encode() if isinstance(data, str) else data)
        while view:
            taken = min(len(view), CHUNK_BYTES)
            self._pending += view[:taken]
            view = view[taken:]
            await self._push()

    async def close(self) -> None:
        """End of input."""
        if not self._closed:
            self._closed = True
            await self._push()

    def granted(self, offset: int) -> None:
        """Credit from the runtime; −1: the stream is over."""
        if offset > self._credit:
            self._credit = offset
            taken = max(0, offset - _INITIAL_CREDIT)
            if taken > self._base:
                del self._pending[: taken - self._base]
                self._base = taken
        if self._wake is not None:
            self._wake.set()

    def rewind(self) -> None:
        """A new stream: what is not known to have arrived is sent again, at its own offsets."""
        self._sent = self._base

    def lost(self, begin: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]) -> None:
        """The stream broke: what is not known to have arrived is sent again at once, whether or not anybody uses the
        exec meanwhile.
        """
        if (self._closed or self._pending) and not self._given_up:
            self._broken = True
            if self._again is None or self._again.done():
                self._again = begin(self._send_lost())

    def give_up(self) -> None:
        """The exec is being ended: nothing is sent any more that nobody waits for."""
        self._given_up = True
        if self._again is not None:
            self._again.cancel()

    async def _send_lost(self) -> None:
        while self._broken:
            self._broken = False
            with suppress(DSecError):  # whoever writes or waits next finds the same
                await self._push()

    def forget(self) -> bool:
        """The exec turned out to take no input: nothing is sent again. Whether there was anything."""
        had = self._closed or bool(self._pending)
        self._pending.clear()
        self._base = self._sent = 0
        self._closed = False
        return had

    @property
    def unsent(self) -> bool:
        """Whether there is something to send, the end of input included."""
        return self._closed or self._sent < self._base + len(self._pending)

    async def _push(self) -> None:
        patience = Patience(_RECONNECT_S)
        async with self._turn:
            while True:
                self._wake = asyncio.Event()
                try:
                    stream = await self._stream()
                except NodeError as error:
                    await patience.before_retry(error)
                    continue
                try:
                    if await self.send_on(stream):
                        return
                except Lost:
                    continue
                except NotFound as error:
                    self._failed(stream, error)  # raises, or it is to be begun again
                    continue
                except NodeError as error:
                    self._failed(stream, error)
                    await patience.before_retry(error)
                    continue
                await self._wake.wait()

    async def send_on(self, stream: Collecting) -> bool:
        """Send what credit allows; True when all is sent. Raises CommandError when the program has ended."""
        end = self._base + len(self._pending)
        while self._sent < end or self._closed:
            if stream.done.done():
                outcome = stream.done.result()
                if isinstance(outcome, Lost):
                    return False
                if isinstance(outcome, InvalidArgument):
                    self.forget()
                    self._failed(stream, outcome)  # the stream is of no use for anything else either
                    raise outcome
                if isinstance(outcome, NotFound | NodeError):
                    raise outcome
                raise CommandError("the program has ended and reads no more input", phase="stdin")
            upto = min(end, self._credit, self._sent + CHUNK_BYTES)
            if upto <= self._sent and self._sent < end:
                return False
            start, self._sent = self._sent, max(upto, self._sent)
            piece = bytes(self._pending[start - self._base : self._sent - self._base])
            await stream.send(data_frame(stream.number, STDIN, start, piece))
            if not piece:
                return True
        return True
