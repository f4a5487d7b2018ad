"""The lean HTTP client: answers in any shape, bodies in constant memory, connections that end at the wrong moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dsec.api.http_pool import HttpPool

pytestmark = pytest.mark.anyio

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Gone(Exception):
    """What the pool raises in place of a connection's own error."""


class Server:
    """A pool of connections to a scripted server, and what was asked of it."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.connections = 0
        self.pool: HttpPool

    async def request(self, reader: asyncio.StreamReader) -> bytes:
        """The head of the next request."""
        head = await reader.readuntil(b"\r\n\r\n")
        self.asked.append(head)
        return head


@asynccontextmanager
async def serving(script: Callable[[Server], Serve], *, idle_s: float = 60.0) -> AsyncIterator[Server]:
    """A server that runs the script on each connection."""
    made = Server()
    tasks: set[asyncio.Task[Any]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        made.connections += 1
        try:
            await script(made)(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    listener = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    loop = asyncio.get_running_loop()
    made.pool = HttpPool(
        lambda factory: loop.create_connection(factory, "127.0.0.1", port),
        lambda error: Gone(str(error)),
        headers={"host": "there"},
        connect_s=5.0,
        idle_s=idle_s,
    )
    try:
        yield made
    finally:
        made.pool.close()
        listener.close()
        await asyncio.gather(*tasks)


def answering(*pieces: bytes) -> Callable[[Server], Serve]:
    """Answers each request by these bytes, flushed piece by piece."""

    def script(server: Server) -> Serve:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while True:
                await server.request(reader)
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)

        return serve

    return script


async def ask(server: Server, method: str = "GET") -> tuple[int, bytes]:
    """Status and body of one answer."""
    async with server.pool.exchange(method, "/x", {}, None) as answer:
        return answer.status, await answer.read()


LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Y:  z \r\n\r\nhello"
CHUNKED = b"HTTP/1.1 201 Made\r\ntransfer-encoding: chunked\r\n\r\n3;x=1\r\nhel\r\n2\r\nlo\r\n0\r\nTrailer: t\r\n\r\n"
EARLY = b"HTTP/1.1 100 Continue\r\n\r\n" + LENGTH


@pytest.mark.parametrize(("raw", "status"), [(LENGTH, 200), (CHUNKED, 201), (EARLY, 200)])
@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_an_answer_is_the_same_however_it_is_cut(raw: bytes, status: int, size: int) -> None:
    """Length, chunks, an interim answer: the same body whatever pieces it comes in, twice on one connection."""
    pieces = [raw[at : at + size] for at in range(0, len(raw), size)]
    async with serving(answering(*pieces)) as server:
        assert [await ask(server), await ask(server)] == [(status, b"hello")] * 2
        assert server.connections == 1


async def test_a_body_up_to_the_end_of_the_connection() -> None:
    """Without a length the body ends with the connection, which is not used again."""

    def script(server: Server) -> Serve:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\n\r\nall of it")

        return serve

    async with serving(script) as server:
        assert [await ask(server), await ask(server)] == [(200, b"all of it")] * 2
        assert server.connections == 2


@pytest.mark.parametrize(
    "raw",
    [b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 two\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: -4\r\n\r\n", b"x" * 70_000,
     b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nlonger\r\n"],
)  # fmt: skip
async def test_what_is_no_http_is_refused(raw: bytes) -> None:
    """Hostile or foreign bytes end the exchange with the pool's error."""
    async with serving(answering(raw)) as server:
        with pytest.raises(Gone):
            await ask(server, "POST")


@pytest.mark.parametrize(("method", "repeated"), [("GET", True), ("POST", False)])
async def test_a_connection_that_ends_when_it_is_used_again(method: str, repeated: bool) -> None:
    """The second request on a connection finds it ended: what may be repeated is, once; what may not is an error."""

    def script(server: Server) -> Serve:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.request(reader)
            writer.write(LENGTH)
            await server.request(reader)

        return serve

    async with serving(script) as server:
        await ask(server, method)
        if repeated:
            assert await ask(server, method) == (200, b"hello")
            assert len(server.asked) == 3
        else:
            with pytest.raises(Gone):
                await ask(server, method)
            assert len(server.asked) == 2


async def test_a_fresh_connection_that_ends_is_an_error() -> None:
    """The first request on a connection is never repeated, whatever its method: the server is not well."""

    def script(server: Server) -> Serve:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.request(reader)

        return serve

    async with serving(script) as server:
        with pytest.raises(Gone):
            await ask(server)
        assert len(server.asked) == 1


async def test_a_body_cut_short_is_an_error_and_not_a_short_body() -> None:
    """The connection ends within a body whose length was told."""

    def script(server: Server) -> Serve:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.request(reader)
            writer.write(LENGTH[:-2])

        return serve

    async with serving(script) as server:
        with pytest.raises(Gone):
            await ask(server)


@pytest.mark.parametrize("length", [None, 300_000])
async def test_a_body_is_sent_in_pieces(length: int | None) -> None:
    """In chunks, or under its length where that is known: the same bytes arrive."""
    got = asyncio.Queue[bytes]()

    def script(server: Server) -> Serve:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await server.request(reader)
            body = b""
            if b"chunked" in head:
                while size := int(await reader.readline(), 16):
                    body += await reader.readexactly(size)
                    await reader.readexactly(2)
                await reader.readline()
            else:
                body = await reader.readexactly(300_000)
            got.put_nowait(body)
            writer.write(LENGTH)

        return serve

    async def pieces() -> AsyncIterator[bytes]:
        for number in range(3):
            yield bytes([number]) * 100_000

    async with serving(script) as server:
        async with server.pool.exchange("PUT", "/x", {}, pieces(), length) as answer:
            assert await answer.read() == b"hello"
        assert await got.get() == b"".join(bytes([number]) * 100_000 for number in range(3))


async def test_a_source_that_fails_ends_the_request() -> None:
    """The error of a body's own source is the one that is raised, and the server sees the connection end."""
    ended = asyncio.Event()

    def script(server: Server) -> Serve:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.request(reader)
            try:
                await reader.read(-1)
            finally:
                ended.set()

        return serve

    async def pieces() -> AsyncIterator[bytes]:
        yield b"some"
        raise KeyError("no more")

    async with serving(script) as server:
        with pytest.raises(KeyError):
            async with server.pool.exchange("POST", "/x", {}, pieces()):
                raise AssertionError("there is no answer")
        await asyncio.wait_for(ended.wait(), 5)


async def test_leaving_ends_the_request() -> None:
    """A caller that is cancelled while it waits ends its connection, by which the server knows."""
    asked, ended = asyncio.Event(), asyncio.Event()

    def script(server: Server) -> Serve:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.request(reader)
            asked.set()
            try:
                await reader.read(-1)
            finally:
                ended.set()

        return serve

    async with serving(script) as server:
        asking = asyncio.create_task(ask(server, "POST"))
        await asked.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.wait_for(ended.wait(), 5)


async def test_a_reader_that_stops_holds_the_server_back() -> None:
    """Of an endless body only what fits the buffers on the way is written while nobody reads."""
    written = 0

    def script(server: Server) -> Serve:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal written
            await server.request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            for _ in range(2000):
                writer.write(bytes(64 * 1024))
                await writer.drain()
                written += 64 * 1024

        return serve

    async with serving(script) as server, server.pool.exchange("GET", "/x", {}, None) as answer:
        before = -1
        while written != before:
            before = written
            await asyncio.sleep(0.1)
        assert written < 64 << 20
        got = 0
        async for chunk in answer.chunks():
            got += len(chunk)
        assert got == 2000 * 64 * 1024


async def test_an_idle_connection_is_not_kept_for_ever() -> None:
    """After ``idle_s`` a new connection is made."""
    async with serving(answering(LENGTH), idle_s=0.0) as server:
        await ask(server)
        await ask(server)
        assert server.connections == 2


@pytest.mark.parametrize("target", ["/a b", "/a\r\nx: y", "/ä", ""])
async def test_a_target_is_one_word(target: str) -> None:
    """Nothing can be smuggled into the request's first line, nor into a header."""
    async with serving(answering(LENGTH)) as server:
        with pytest.raises(ValueError, match="target"):
            server.pool.exchange("GET", target, {}, None)
        with pytest.raises(ValueError, match="header"):
            server.pool.exchange("GET", "/x", {"a": "b\r\nc: d"}, None)
