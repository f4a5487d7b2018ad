"""One connection of a small HTTP/1.1 client: a request out, its answer in, bodies as streams in constant memory.

For the road between dsec's own parts, where what general clients do for each request (cookies, redirects,
compression, URL objects, tracing) costs more than all else. ``http_pool`` keeps the connections.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator
from typing import cast

__all__ = ["Answer", "Broken", "Connection"]

_MOST_HEAD = 64 * 1024
_MOST_HELD = 256 * 1024
"""Body bytes that wait for the reader before the server is held back."""
_TO_END = -1


class Broken(ConnectionError):
    """The connection ended, or what came is no HTTP, before the answer was whole."""


class Answer:
    """The head of an answer, and its body as it comes. ``headers``: names in lower case."""

    __slots__ = ("_connection", "_failure", "_held", "_parts", "_wake", "headers", "status", "whole")

    def __init__(self, connection: Connection, status: int, headers: dict[str, str]) -> None:
        self.status = status
        self.headers = headers
        self.whole = False
        """Whether the body's end has come."""
        self._connection = connection
        self._parts: deque[bytes] = deque()
        self._held = 0
        self._failure: Exception | None = None
        self._wake: asyncio.Future[None] | None = None

    async def read(self) -> bytes:
        """The rest of the body."""
        if self.whole:
            body = b"".join(self._parts)
            self._parts.clear()
            return body
        return b"".join([part async for part in self.chunks()])

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes; while nobody reads, the server is held back."""
        while True:
            while self._parts:
                part = self._parts.popleft()
                self._held -= len(part)
                if self._held <= _MOST_HELD // 2:
                    self._connection.hold(False)
                yield part
            if self.whole:
                return
            if self._failure is not None:
                raise self._failure
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake

    def feed(self, part: bytes) -> None:
        """More of the body."""
        self._parts.append(part)
        self._held += len(part)
        if self._held > _MOST_HELD:
            self._connection.hold(True)
        self._stir()

    def end(self, failure: Exception | None = None) -> None:
        """The body's end, or the reason why there will be none."""
        if failure is None:
            self.whole = True
        elif self._failure is None:
            self._failure = failure
        self._stir()

    def _stir(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


class Connection(asyncio.Protocol):
    """Carries one request at a time; ``reusable`` says whether it can carry another."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._left: int | None = None
        """Bytes of the body, or of its present chunk, that are still to come; None between bodies and chunks."""
        self._chunked = False
        self._last_chunk = False
        """Whether only trailers can still come."""
        self._head: asyncio.Future[Answer] | None = None
        self._answer: Answer | None = None
        self._room: asyncio.Future[None] | None = None
        self._keep = True
        self._reading_held = False
        self.answers = 0
        """Answers that have been read on it."""
        self.idle_since = 0.0

    @property
    def reusable(self) -> bool:
        """Open, and nothing is under way."""
        return self._keep and self._head is None and self._transport is not None and not self._transport.is_closing()

    # The request

    def send(self, data: bytes) -> asyncio.Future[Answer]:
        """Write a request's head, and its body where that is short; the answer's head resolves the future."""
        assert self._transport is not None and self._head is None
        self._head = self._loop.create_future()
        self._transport.write(data)
        return self._head

    async def send_body(self, body: AsyncIterable[bytes], length: int | None) -> None:
        """Write a body in pieces, chunked unless its length is given. Raises Broken, and what ``body`` raises."""
        sent = 0
        async for piece in body:
            if not piece:
                continue
            sent += len(piece)
            self._write(piece if length is not None else b"%x\r\n%b\r\n" % (len(piece), piece))
            if self._room is not None:
                await self._room
        if length is None:
            self._write(b"0\r\n\r\n")
        elif sent != length:
            raise Broken(f"the body has {sent} bytes, not the {length} announced")

    def _write(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            raise Broken("the connection ended within the request")
        self._transport.write(data)

    def done(self) -> None:
        """The answer has been read."""
        self._answer = self._head = None
        self.answers += 1
        self.hold(False)

    def close(self) -> None:
        """End it at once, whatever is under way."""
        self._keep = False
        if self._transport is not None:
            self._transport.abort()

    def hold(self, hold: bool) -> None:
        """Read no more for now, or read on."""
        if hold is not self._reading_held and self._transport is not None and not self._transport.is_closing():
            self._reading_held = hold
            if hold:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of asyncio.Protocol."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by type

    def connection_lost(self, exc: Exception | None) -> None:
        """Part of asyncio.Protocol."""
        self._transport = None
        if self._left == _TO_END and self._answer is not None and exc is None:
            self._answer.end()
        self._fail(Broken(str(exc) if exc is not None else "the server ended the connection"))
        self.resume_writing()

    def pause_writing(self) -> None:
        """Part of asyncio.Protocol."""
        self._room = self._loop.create_future()

    def resume_writing(self) -> None:
        """Part of asyncio.Protocol."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        self._room = None

    def data_received(self, data: bytes) -> None:
        """Part of asyncio.Protocol."""
        self._buffer = self._buffer + data if self._buffer else data
        try:
            while self._buffer and self._step():
                pass
        except (ValueError, IndexError):
            self._refuse("the answer is not HTTP/1.1")

    def _refuse(self, why: str) -> None:
        self._fail(Broken(why))
        self.close()

    def _fail(self, failure: Broken) -> None:
        self._keep = False
        if self._head is not None and not self._head.done():
            self._head.set_exception(failure)
        if self._answer is not None and not self._answer.whole:
            self._answer.end(failure)

    # The answer

    def _step(self) -> bool:
        """Take one thing from the buffer; False when more must come first. Raises ValueError for what is no HTTP."""
        if self._answer is None:
            return self._take_head()
        if self._answer.whole:
            raise ValueError("bytes after the answer")
        if self._left is None:
            return self._take_size()
        if self._left == 0:
            return self._take_line_end()
        part, self._buffer = self._buffer, b""
        if self._left != _TO_END:
            if len(part) > self._left:
                part, self._buffer = part[: self._left], part[self._left :]
            self._left -= len(part)
        self._answer.feed(part)
        if self._left == 0 and not self._chunked:
            self._whole()
        return True

    def _take_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > _MOST_HEAD:
                raise ValueError("the head is too long")
            return False
        if self._head is None:
            raise ValueError("an answer that nobody asked for")
        first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
        self._buffer = self._buffer[end + 4 :]
        if not first.startswith("HTTP/1."):
            raise ValueError(first)
        status = int(first[9:12])
        if status < 200:
            return True
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        self._begin(Answer(self, status, headers), first[7] == "0")
        return True

    def _begin(self, answer: Answer, old: bool) -> None:
        assert self._head is not None
        self._answer = answer
        connection = answer.headers.get("connection", "").lower()
        self._keep = self._keep and connection != "close" and not (old and connection != "keep-alive")
        self._chunked = answer.headers.get("transfer-encoding", "").lower() == "chunked"
        length = answer.headers.get("content-length")
        if self._chunked:
            self._left = None
        elif answer.status in (204, 304):
            self._left = 0
        elif length is not None:
            self._left = _number(length, 10)
        else:
            self._left, self._keep = _TO_END, False
        if self._left == 0:
            self._whole()
        if not self._head.done():
            self._head.set_result(answer)

    def _take_size(self) -> bool:
        """A chunk's first line, or one of the lines after the last chunk; the empty one ends the body."""
        end = self._buffer.find(b"\r\n")
        if end < 0:
            if len(self._buffer) > _MOST_HEAD:
                raise ValueError("a chunk's line is too long")
            return False
        line, self._buffer = self._buffer[:end], self._buffer[end + 2 :]
        if not self._last_chunk:
            size = _number(line.partition(b";")[0].strip().decode("latin-1"), 16)
            self._last_chunk = size == 0
            self._left = size or None
        elif not line:
            self._whole()
        return True

    def _take_line_end(self) -> bool:
        if len(self._buffer) < 2:
            return False
        if self._buffer[:2] != b"\r\n":
            raise ValueError("a chunk is longer than it said")
        self._buffer = self._buffer[2:]
        self._left = None
        return True

    def _whole(self) -> None:
        assert self._answer is not None
        self._left, self._last_chunk = None, False
        self._answer.end()


def _number(text: str, base: int) -> int:
    if not text.isascii() or not text.isalnum():
        raise ValueError(text)
    return int(text, base)
