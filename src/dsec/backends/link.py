"""The edge's connections to ``runtime.sock``: frames with a length before each, requests multiplexed by stream.

``RuntimeLink`` keeps one shared connection for the edge's own calls and reconnects it; ``dial`` makes the connection
that a client's WebSocket is copied to. Nothing here knows what the frames mean.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

from dsec.api import frames
from dsec.errors import NodeError, ProtocolError, error_from_wire

__all__ = ["FrameConnection", "RuntimeLink", "Stream", "link_lost"]

_HEAD = 4
_RECONNECT_S = (0.01, 0.02, 0.05, 0.1, 0.25)
CALL_TIMEOUT_S = 30.0


def link_lost() -> NodeError:
    """The error of a call whose connection to the runtime broke before the answer."""
    return NodeError("the connection to the node's runtime broke", phase="runtime", retry_after_s=0.2)


def _too_late(call: asyncio.Future[Any], method: str, timeout_s: float) -> None:
    if not call.done():
        call.set_exception(NodeError(f"the runtime did not answer {method} within {timeout_s:g} s", phase="runtime"))


class FrameConnection(asyncio.Protocol):
    """One connection: calls ``on_frame`` for each frame that arrives, ``on_lost`` once when it is over."""

    def __init__(self, on_frame: Callable[[bytes], None], on_lost: Callable[[], None]) -> None:
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of asyncio.Protocol."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by type

    def data_received(self, data: bytes) -> None:
        """Part of asyncio.Protocol."""
        buffer = self._buffer
        buffer += data
        start, size = 0, len(buffer)
        while size - start >= _HEAD:
            length = int.from_bytes(buffer[start : start + _HEAD], "big")
            if length > frames.MAX_FRAME_BYTES:
                self.close()
                return
            if size - start - _HEAD < length:
                break
            frame = bytes(buffer[start + _HEAD : start + _HEAD + length])
            start += _HEAD + length
            self._on_frame(frame)
        if start:
            del buffer[:start]

    def connection_lost(self, exc: Exception | None) -> None:
        """Part of asyncio.Protocol."""
        self._transport = None
        self._writable.set()
        self._on_lost()

    def pause_writing(self) -> None:
        """Part of asyncio.Protocol."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Part of asyncio.Protocol."""
        self._writable.set()

    def send(self, frame: bytes) -> None:
        """Queue a frame; raises NodeError when the connection is over."""
        if self._transport is None or self._transport.is_closing():
            raise link_lost()
        self._transport.write(len(frame).to_bytes(_HEAD, "big") + frame)

    async def drain(self) -> None:
        """Wait until the other side keeps up."""
        await self._writable.wait()

    def pause_reading(self) -> None:
        """Let no more frames arrive for now."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Let frames arrive again."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """End the connection; frames queued before are still sent."""
        if self._transport is not None:
            self._transport.close()


class Stream:
    """A stream on the shared link: frames arrive by ``next`` until ``end`` (see ``result``) or an error."""

    def __init__(self, link: RuntimeLink, number: int) -> None:
        self._link = link
        self.number = number
        self._arrived: deque[list[Any]] = deque()
        self._wake = asyncio.Event()
        self._failure: Exception | None = None
        self.result: Any = None

    def feed(self, frame: list[Any]) -> None:
        """Take a frame from the link."""
        self._arrived.append(frame)
        self._wake.set()

    def fail(self, error: Exception) -> None:
        """The connection is over."""
        self._failure = error
        self._wake.set()

    async def next(self) -> list[Any] | None:
        """The next frame (data, until, item); None after ``end``; raises the stream's error."""
        while not self._arrived:
            if self._failure is not None:
                raise self._failure
            self._wake.clear()
            await self._wake.wait()
        frame = self._arrived.popleft()
        if frame[1] == frames.Kind.END:
            self.result = frame[2]
            return None
        if frame[1] == frames.Kind.ERROR:
            raise error_from_wire(frame[2])
        return frame

    def grant(self, channel: int, offset: int) -> None:
        """The other side may send up to this absolute offset."""
        self._link.send(frames.until_frame(self.number, channel, offset))

    async def data(self, channel: int, offset: int, data: bytes) -> None:
        """Send bytes of a channel."""
        self._link.send(frames.data_frame(self.number, channel, offset, data))
        await self._link.drain()

    def close(self) -> None:
        """No longer interested; harmless after the end."""
        self._link.forget(self.number)


class RuntimeLink:
    """The shared connection, reconnected for as long as ``run`` runs.

    ``on_up`` is awaited in ``run`` after each (re)connection, once calls work.
    """

    def __init__(self, socket: Path, on_up: Callable[[], Awaitable[None]]) -> None:
        self._socket = str(socket)
        self._on_up = on_up
        self._connection: FrameConnection | None = None
        self._up = asyncio.Event()
        self._down = asyncio.Event()
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._streams: dict[int, Stream] = {}
        self._next = 1
        self.reconnects = 0

    @property
    def connected(self) -> bool:
        """Whether calls can be made right now."""
        return self._up.is_set()

    async def run(self) -> None:
        """Connect, and again whenever the connection breaks, until cancelled."""
        try:
            while True:
                await self._connect()
                # Work after connecting ends with the connection: its calls fail then.
                with contextlib.suppress(NodeError):
                    await self._on_up()
                await self._down.wait()
                self.reconnects += 1
        finally:
            self._lost()

    async def _connect(self) -> None:
        attempt = 0
        while True:
            try:
                self._connection = await self.dial(self._frame, self._lost)
            except NodeError:
                await asyncio.sleep(_RECONNECT_S[min(attempt, len(_RECONNECT_S) - 1)])
                attempt += 1
                continue
            self._down.clear()
            self._up.set()
            return

    async def dial(self, on_frame: Callable[[bytes], None], on_lost: Callable[[], None]) -> FrameConnection:
        """A connection of one's own; raises NodeError when the runtime does not answer."""
        made: list[FrameConnection] = []

        def protocol() -> FrameConnection:
            made.append(FrameConnection(on_frame, on_lost))
            return made[0]

        await self.dial_raw(protocol)
        return made[0]

    async def dial_raw(self, protocol: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        """A connection whose bytes are the caller's own affair; raises NodeError when the runtime does not answer."""
        loop = asyncio.get_running_loop()
        try:
            transport, _ = await loop.create_unix_connection(protocol, self._socket)
        except OSError as error:
            raise NodeError(
                f"the node's runtime does not answer: {error.strerror or error}",
                phase="runtime",
                retry_after_s=0.5,
                remedy="`dsec status` shows its parts, `dsec up` repairs a half-dead node",
            ) from None
        return transport

    def _lost(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._up.clear()
        self._down.set()
        calls, self._calls = self._calls, {}
        streams, self._streams = self._streams, {}
        for call in calls.values():
            if not call.done():
                call.set_exception(link_lost())
        for stream in streams.values():
            stream.fail(link_lost())

    def _frame(self, frame: bytes) -> None:
        try:
            parts = frames.decode(frame)
        except ProtocolError:
            self._lost()
            return
        number, kind = parts[0], parts[1]
        call = self._calls.get(number)
        if call is not None:
            if kind in (frames.Kind.END, frames.Kind.ERROR):
                del self._calls[number]
                self._settle(call, parts)
            return
        stream = self._streams.get(number)
        if stream is not None:
            if kind in (frames.Kind.END, frames.Kind.ERROR):
                del self._streams[number]
            stream.feed(parts)

    @staticmethod
    def _settle(call: asyncio.Future[Any], parts: list[Any]) -> None:
        if call.done():
            return
        if parts[1] == frames.Kind.END:
            call.set_result(parts[2])
        else:
            call.set_exception(error_from_wire(parts[2]))

    async def wait_up(self, timeout_s: float) -> None:
        """Wait until connected; raises NodeError after ``timeout_s``."""
        if self._up.is_set():
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._up.wait()
        except TimeoutError:
            raise NodeError(
                "the node's runtime does not answer",
                phase="runtime",
                retry_after_s=1.0,
                remedy="`dsec status` shows its parts, `dsec up` repairs a half-dead node",
            ) from None

    async def call(self, method: str, params: dict[str, Any], *, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """One request, one answer; raises the runtime's error, or NodeError when the link breaks or is too slow."""
        if not self._up.is_set():
            await self.wait_up(timeout_s)
        loop = asyncio.get_running_loop()
        number = self._number()
        future: asyncio.Future[Any] = loop.create_future()
        self._open(number, method, params)
        self._calls[number] = future
        # A timer of its own: asyncio.timeout, with its cancellation of the task, costs several times as much.
        late = loop.call_later(timeout_s, _too_late, future, method, timeout_s)
        try:
            return await future
        finally:
            late.cancel()
            self._calls.pop(number, None)

    def stream(self, method: str, params: dict[str, Any]) -> Stream:
        """Open a stream; raises NodeError when not connected."""
        stream = Stream(self, self._number())
        self._open(stream.number, method, params)
        self._streams[stream.number] = stream
        return stream

    def _open(self, number: int, method: str, params: dict[str, Any]) -> None:
        for frame in frames.open_frames(number, method, params):
            self.send(frame)

    def send(self, frame: bytes) -> None:
        """Queue a frame on the shared connection; raises NodeError when there is none."""
        if self._connection is None:
            raise link_lost()
        if len(frame) > frames.MAX_FRAME_BYTES:
            raise ProtocolError(f"a frame of {len(frame)} bytes is longer than {frames.MAX_FRAME_BYTES}")
        self._connection.send(frame)

    async def drain(self) -> None:
        """Wait until the runtime keeps up with what was sent."""
        if self._connection is not None:
            await self._connection.drain()

    def forget(self, number: int) -> None:
        """Close a stream that is still open."""
        if self._streams.pop(number, None) is not None and self._connection is not None:
            with contextlib.suppress(NodeError):
                self._connection.send(frames.close_frame(number))

    def _number(self) -> int:
        self._next += 1
        return self._next
