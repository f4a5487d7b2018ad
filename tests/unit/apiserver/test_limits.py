"""Slow and greedy connections: what they may hold of the apiserver, and for how long."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from dsec.apiserver.limits import Limits
from dsec.testing.fake_node import FakeNode

pytestmark = pytest.mark.anyio

HEAD_S, BODY_S = 0.5, 0.5


@pytest.fixture
def limits() -> Limits:
    """Limits that a test can wait for."""
    return Limits(head_s=HEAD_S, body_s=BODY_S, linger_s=0.2, most_strangers=8)


@pytest.fixture
def hasty(tmp_path: Path, limits: Limits) -> Iterator[FakeNode]:
    """A node with these limits."""
    with FakeNode(tmp_path, limits=limits) as node:
        yield node


@contextlib.asynccontextmanager
async def connected(fake: FakeNode) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to the apiserver."""
    host, _, port = fake.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()


async def dripped(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, drop: bytes) -> bytes:
    """Send a drop again and again until the other side hangs up, for 30 s at most; what it said."""

    async def drip() -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(drop)
                await writer.drain()
                await asyncio.sleep(HEAD_S / 20)

    dripping = asyncio.create_task(drip())
    said = b""
    try:
        async with asyncio.timeout(30):
            with contextlib.suppress(ConnectionError):
                while part := await reader.read(1 << 16):
                    said += part
    finally:
        dripping.cancel()
        await asyncio.wait({dripping})
    return said


def head(fake: FakeNode, method: str, path: str, *more: str, token: str | None = None) -> bytes:
    """A request's head."""
    lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {token or fake.token}", *more, "", ""]
    return "\r\n".join(lines).encode()


@pytest.mark.parametrize("begun", [b"", b"GET /v1/version HTTP/1.1\r\nx: ", b"GET /", b"\x16\x03\x01"])
async def test_a_head_that_never_ends_is_not_waited_for(hasty: FakeNode, begun: bytes) -> None:
    """A connection that says nothing, or one byte after the other, is closed although it is never quiet."""
    async with connected(hasty) as (reader, writer):
        writer.write(begun)
        said = await dripped(reader, writer, b"y" if begun else b"")
    assert said == b"" or said.startswith((b"HTTP/1.1 408", b"HTTP/1.1 400"))


async def test_nor_is_a_later_one(hasty: FakeNode) -> None:
    """The same holds for the second request of a connection whose first was answered."""
    async with connected(hasty) as (reader, writer):
        writer.write(head(hasty, "GET", "/v1/status"))
        assert b" 200 " in await reader.readuntil(b"\r\n")
        said = await dripped(reader, writer, b"G")
    assert b"HTTP/1.1 200" not in said


async def test_a_body_that_stops_is_given_up(hasty: FakeNode) -> None:
    """After a piece of a body nothing more comes: the request ends, and the edge never gets it."""
    async with connected(hasty) as (reader, writer):
        writer.write(head(hasty, "POST", "/v1/sandboxes", "Content-Length: 1000") + b"{")
        said = await asyncio.wait_for(reader.read(), 30)
    assert said.startswith(b"HTTP/1.1 408") and hasty.edge.requests == []


async def test_a_slow_answer_is_waited_for(hasty: FakeNode) -> None:
    """A request that is whole has its time: a create that waits for room outlasts every limit of the client's."""
    hasty.edge.hold("GET /v1/status")
    async with connected(hasty) as (reader, writer):
        writer.write(head(hasty, "GET", "/v1/status"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 3 * max(HEAD_S, BODY_S))
        await asyncio.to_thread(hasty.edge.release, "GET /v1/status")
        assert b" 200 " in await asyncio.wait_for(reader.readuntil(b"\r\n"), 30)


async def test_a_body_nobody_wants_does_not_hold_its_connection(hasty: FakeNode) -> None:
    """A refused request may go on sending for a moment, and no longer."""
    async with connected(hasty) as (reader, writer):
        refused = head(hasty, "POST", "/v1/sandboxes", "Transfer-Encoding: chunked", token="dsec_x")
        writer.write(refused)
        said = await dripped(reader, writer, b"1\r\nx\r\n")
    assert said.startswith(b"HTTP/1.1 401")


async def test_strangers_do_not_keep_others_out(hasty: FakeNode, limits: Limits) -> None:
    """Of many connections without a good token the oldest go; one on which a token was good stays, oldest or not."""
    async with contextlib.AsyncExitStack() as stack:
        known, known_writer = await stack.enter_async_context(connected(hasty))
        known_writer.write(head(hasty, "GET", "/v1/status"))
        await known.readuntil(b"}")
        limits.head_s = 1000.0
        strangers = [await stack.enter_async_context(connected(hasty)) for _ in range(limits.most_strangers + 4)]
        for reader, _ in strangers[:4]:
            assert await asyncio.wait_for(reader.read(), 30) == b""
        assert len(limits) == limits.most_strangers
        known_writer.write(head(hasty, "GET", "/v1/status"))
        assert b"HTTP/1.1 200" in await asyncio.wait_for(known.readuntil(b"200 "), 30)
        late = strangers[-1]
        late[1].write(head(hasty, "GET", "/v1/status"))
        assert b" 200 " in await asyncio.wait_for(late[0].readuntil(b"\r\n"), 30)
