"""One WebSocket with many streams on it."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import aiohttp

from dsec.api import frames
from dsec.errors import NodeError, ProtocolError, error_from_wire

__all__ = ["Lost", "Receiver", "Wire", "result_in"]

_GOODBYE_S = 0.1


class Lost(NodeError):
    """The WebSocket broke. Never leaves the SDK as it is: streams are opened again elsewhere, or give NodeError."""


class Receiver(Protocol):
    """The end of one stream. Called by the reader of the WebSocket; must not block."""

    def on_frame(self, frame: list[Any]) -> None:
        """A frame of the stream."""

    def on_lost(self) -> None:
        """The WebSocket broke; no frame follows."""


class _Answer:
    """The receiver of a stream that is one request and one answer."""

    def __init__(self) -> None:
        self.came: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()

    def on_frame(self, frame: list[Any]) -> None:
        if not self.came.done():
            self.came.set_result(frame)

    def on_lost(self) -> None:
        if not self.came.done():
            self.came.set_exception(Lost("the connection to the apiserver broke", phase="stream"))


class Wire:
    """An open WebSocket. Its reader is the only task; frames are dispatched by plain calls."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._streams: dict[int, Receiver] = {}
        self._next = 0
        self._long = asyncio.Lock()
        self.alive = True
        self._reader = asyncio.get_running_loop().create_task(self._read())

    async def open(self, receiver: Receiver, method: str, params: dict[str, Any]) -> int:
        """Begin a stream; returns its number. Raises Lost, InvalidArgument for what is too long."""
        self._next += 1
        number = self._next
        opening = frames.open_frames(number, method, params)
        self._streams[number] = receiver
        try:
            if len(opening) == 1:
                await self.send(opening[0])
            else:
                async with self._long:  # the other side puts together one at a time
                    for frame in opening:
                        await self.send(frame)
        except Lost:
            self._streams.pop(number, None)
            raise
        return number

    async def call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """One request and its answer. Raises Lost, and the error that is the answer."""
        answer = _Answer()
        number = await self.open(answer, method, params)
        try:
            frame = await answer.came
        finally:
            await self.close_stream(number)
        return result_in(frame)

    async def send(self, frame: bytes) -> None:
        """Send one frame; waits while the other side takes nothing. Raises Lost."""
        if not self.alive:
            raise Lost("the connection to the apiserver broke", phase="stream")
        try:
            await self._socket.send_bytes(frame)
        except (aiohttp.ClientError, ConnectionError, RuntimeError) as error:
            raise Lost(f"the connection to the apiserver broke ({error})", phase="stream") from None

    def listens(self, number: int) -> bool:
        """Whether something may still come for a stream."""
        return number in self._streams

    def forget(self, number: int) -> bool:
        """Drop what still comes for a stream; True if it was open."""
        return self._streams.pop(number, None) is not None

    async def close_stream(self, number: int) -> None:
        """Tell the other side that nobody listens any more. Ends nothing but the stream."""
        if self.forget(number) and self.alive:
            try:
                await self.send(frames.close_frame(number))
            except Lost:
                return

    async def close(self) -> None:
        """Close the WebSocket, and wait for an instant until its socket is closed: in TLS both sides say goodbye."""
        below = self._socket.get_extra_info("socket")
        self._reader.cancel()
        await asyncio.wait({self._reader})
        await self._socket.close()
        end = asyncio.get_running_loop().time() + _GOODBYE_S
        # Nobody tells when it is.
        while below is not None and below.fileno() >= 0 and asyncio.get_running_loop().time() < end:  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    async def _read(self) -> None:
        socket, streams = self._socket, self._streams
        try:
            while True:
                message = await socket.receive()
                if message.type is not aiohttp.WSMsgType.BINARY:
                    return
                frame = frames.decode(message.data)
                receiver = streams.get(frame[0])
                if receiver is None:
                    continue
                if frame[1] == frames.Kind.END or frame[1] == frames.Kind.ERROR:
                    del streams[frame[0]]
                receiver.on_frame(frame)
        except ProtocolError:
            return
        finally:
            self._lose()

    def _lose(self) -> None:
        self.alive = False
        receivers = list(self._streams.values())
        self._streams.clear()
        for receiver in receivers:
            receiver.on_lost()


def result_in(frame: list[Any]) -> dict[str, Any]:
    """What an ``end`` says; raises the error that an ``error`` is, ProtocolError for other frames."""
    if frame[1] == frames.Kind.ERROR:
        raise error_from_wire(frame[2])
    if frame[1] != frames.Kind.END or not isinstance(frame[2], dict):
        raise ProtocolError("the server's answer is malformed")
    return frame[2]
