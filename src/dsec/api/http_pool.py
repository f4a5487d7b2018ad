"""A pool of persistent HTTP/1.1 connections to one server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any

from dsec.api.http1 import Answer, Broken, Connection
from dsec.errors import DSecError

__all__ = ["Body", "Exchange", "HttpPool"]

Body = AsyncIterable[bytes] | bytes | None
_REPEATABLE = frozenset({"GET", "PUT", "DELETE"})
_TARGET = re.compile(r"[!-~]+")


class HttpPool:
    """Asks over connections that ``connect`` makes; each is kept for ``idle_s`` after its last answer.

    ``connect`` is given the factory of a protocol, as ``loop.create_connection`` is. ``broken`` makes the error that
    is raised in place of an OSError of a connection. ``headers`` are sent with each request. For one event loop.
    """

    def __init__(
        self,
        connect: Callable[[Callable[[], Connection]], Awaitable[tuple[Any, Connection]]],
        broken: Callable[[OSError], Exception],
        *,
        headers: Mapping[str, str],
        connect_s: float,
        idle_s: float,
    ) -> None:
        self._connect = connect
        self.broken = broken
        self._headers = _lines(headers)
        self._connect_s = connect_s
        self._idle_s = idle_s
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()

    def exchange(
        self, method: str, target: str, headers: Mapping[str, str], body: Body, length: int | None = None
    ) -> Exchange:
        """``async with`` it for the answer. ``length``: of a body that comes in pieces, sent in chunks without it.

        A connection that proves dead when it is used again is replaced once, if the method may be repeated. Leaving
        before the answer was read ends its connection, by which the server knows. Raises ValueError for a header or
        target that is none.
        """
        if _TARGET.fullmatch(target) is None:
            raise ValueError(f"not a request's target: {target[:80]!r}")
        repeatable = method in _REPEATABLE
        head = f"{method} {target} HTTP/1.1\r\n{self._headers}{_lines(headers)}"
        if isinstance(body, bytes):
            head += f"content-length: {len(body)}\r\n\r\n"
            return Exchange(self, head.encode("latin-1") + body, None, None, repeatable)
        if body is None:
            if method in ("POST", "PUT"):
                head += "content-length: 0\r\n"
            return Exchange(self, f"{head}\r\n".encode("latin-1"), None, None, repeatable)
        head += "transfer-encoding: chunked\r\n\r\n" if length is None else f"content-length: {length}\r\n\r\n"
        return Exchange(self, head.encode("latin-1"), body, length, False)

    async def take(self, *, fresh: bool = False) -> Connection:
        """A connection that carries nothing. Raises OSError."""
        loop = asyncio.get_running_loop()
        oldest = loop.time() - self._idle_s
        while self._idle and not fresh:
            connection = self._idle.pop()
            if connection.reusable and connection.idle_since > oldest:
                return connection
            self.drop(connection)
        async with asyncio.timeout(self._connect_s):
            _, connection = await self._connect(lambda: Connection(loop))
        self._open.add(connection)
        return connection

    def give(self, connection: Connection) -> None:
        """The answer has been read: keep the connection, and drop those that have been idle for long."""
        now = asyncio.get_running_loop().time()
        connection.done()
        if not connection.reusable or connection not in self._open:
            self.drop(connection)
            return
        connection.idle_since = now
        self._idle.append(connection)
        while self._idle and self._idle[0].idle_since <= now - self._idle_s:
            self.drop(self._idle.pop(0))

    def drop(self, connection: Connection) -> None:
        """End a connection."""
        connection.close()
        self._open.discard(connection)

    def close(self) -> None:
        """End all connections, whatever they carry."""
        self._idle.clear()
        for connection in list(self._open):
            self.drop(connection)


class Exchange:
    """One request: enter it for the head of its answer."""

    __slots__ = ("_answer", "_body", "_connection", "_head", "_length", "_pool", "_repeatable", "_sending")

    def __init__(
        self, pool: HttpPool, head: bytes, body: AsyncIterable[bytes] | None, length: int | None, repeatable: bool
    ) -> None:
        self._pool = pool
        self._head = head
        self._body = body
        self._length = length
        self._repeatable = repeatable
        self._connection: Connection | None = None
        self._sending: asyncio.Task[None] | None = None
        self._answer: Answer | None = None

    async def __aenter__(self) -> Answer:
        try:
            self._answer = await self._ask()
        except BaseException as error:
            await self._leave()
            if isinstance(error, OSError) and not isinstance(error, DSecError):
                raise self._pool.broken(error) from None
            raise
        return self._answer

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        answer, connection, sending = self._answer, self._connection, self._sending
        if answer is not None and answer.whole and connection is not None and (sending is None or sending.done()):
            self._connection = None
            self._pool.give(connection)
        else:
            await self._leave()
        if isinstance(error, Broken):
            raise self._pool.broken(error) from None

    async def _ask(self) -> Answer:
        connection = self._connection = await self._pool.take()
        try:
            return await self._sent_on(connection)
        except Broken:
            if not self._repeatable or connection.answers == 0:
                raise
        self._pool.drop(connection)
        connection = self._connection = await self._pool.take(fresh=True)
        return await self._sent_on(connection)

    async def _sent_on(self, connection: Connection) -> Answer:
        answer = connection.send(self._head)
        if self._body is None:
            return await answer
        self._sending = asyncio.get_running_loop().create_task(connection.send_body(self._body, self._length))
        self._sending.add_done_callback(self._sent)
        either: set[asyncio.Future[Any]] = {answer, self._sending}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        answered = answer.done() and answer.exception() is None
        if self._sending.done() and not answered:
            self._sending.result()  # raises what kept the body from being sent
        return await answer

    def _sent(self, sending: asyncio.Task[None]) -> None:
        """A body that came to nothing ends its request: the server would wait for the rest."""
        if not sending.cancelled() and sending.exception() is not None and self._connection is not None:
            self._connection.close()

    async def _leave(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.done()
            self._pool.drop(connection)
        if self._sending is not None and not self._sending.done():
            self._sending.cancel()
            await asyncio.wait({self._sending})


def _lines(headers: Mapping[str, str]) -> str:
    text = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if text.count("\n") != len(headers) or text.count("\r") != len(headers):
        raise ValueError("a header contains a line's end")
    return text
