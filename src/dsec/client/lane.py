"""A connection for one exec's output alone, of which nobody on the way reads a byte.

What a program writes fast would take up the WebSocket, and each part that parses its frames. How the exec ended is
not told here, and a lane may break at any moment: its reader goes on at its offset on the WebSocket.
"""

from __future__ import annotations

import asyncio
from typing import cast

from dsec.api import frames
from dsec.client.streams import Flowing
from dsec.errors import ProtocolError

__all__ = ["LANE_WINDOW", "Lane", "Pace"]

LANE_WINDOW = 4 << 20
"""Bytes of credit beyond what a reader has taken; the edge gives the first."""
_STREAM = 1
_BUFFER = 1 << 20
_SILENT_S = 5.0
"""After so long without a byte it is given up: the program is quiet, its reader slow, or somebody on the way dead."""
_HEAVY_BYTES = 4 << 20
_HEAVY_S = 0.4


class Pace:
    """Whether output comes so fast that it deserves a lane."""

    def __init__(self, now: float) -> None:
        self._since = now
        self._count = 0

    def is_heavy(self, count: int, now: float) -> bool:
        """So many bytes more have come: asked of each piece of 4 MiB."""
        self._count += count
        if self._count < _HEAVY_BYTES:
            return False
        took, self._since, self._count = now - self._since, now, 0
        return took < _HEAVY_S


class Lane(asyncio.BufferedProtocol):
    """The client's end. Frames go to ``receiver``, which hears that it is lost when the connection ends."""

    def __init__(self, request: bytes, receiver: Flowing) -> None:
        self._request = request
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._look: asyncio.TimerHandle | None = None
        self._heard = self._loop.time()
        self._buffer = bytearray(_BUFFER)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self._accepted = False
        self.received = False
        """Whether any frame has come."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the upgrade."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)
        self._look = self._loop.call_later(_SILENT_S, self._silent)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Part of asyncio.BufferedProtocol."""
        if self._start == self._end:
            self._start = self._end = 0
        elif _BUFFER - self._end < frames.MAX_FRAME_BYTES:
            left = self._end - self._start
            self._buffer[:left] = self._buffer[self._start : self._end]
            self._start, self._end = 0, left
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        """Part of asyncio.BufferedProtocol."""
        self._end += nbytes
        self._heard = self._loop.time()
        try:
            if self._accepted or self._take_head():
                self._take_frames()
        except ProtocolError:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Part of asyncio.Protocol."""
        self._transport = None
        if self._look is not None:
            self._look.cancel()
        self._receiver.on_lost()

    def grant(self, channel: int, offset: int) -> None:
        """Let the node send up to this offset."""
        if self._transport is not None:
            frame = frames.until_frame(_STREAM, channel, offset)
            self._transport.write(len(frame).to_bytes(4, "big") + frame)

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.abort()

    def _take_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n", self._start, self._end)
        if end < 0:
            return False
        if bytes(self._view[self._start + 9 : self._start + 12]) != b"101":
            raise ProtocolError("the node gives no lane")
        self._start = end + 4
        self._accepted = True
        return True

    def _take_frames(self) -> None:
        while self._end - self._start >= 4:
            first = self._start + 4
            length = int.from_bytes(self._view[self._start : first], "big")
            if length > frames.MAX_FRAME_BYTES:
                raise ProtocolError(f"the node sent a frame of {length} bytes")
            if self._end - first < length:
                return
            self._start = first + length
            self.received = True
            self._receiver.on_frame(frames.decode(self._view[first : self._start]))

    def _silent(self) -> None:
        quiet = self._loop.time() - self._heard
        if quiet >= _SILENT_S:
            self.close()
        else:
            self._look = self._loop.call_later(_SILENT_S - quiet, self._silent)
