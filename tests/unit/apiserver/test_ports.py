"""Connections to exposed ports at the apiserver: known by their first request's Host, then copied unread."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from dsec.apiserver.ports import sandbox_of
from dsec.testing.fake_node import FakeNode

pytestmark = pytest.mark.anyio

ID = "sb-fake-abcdefghijklmnopqrstuvwxyz"


@pytest.mark.parametrize("host", [f"3000-{ID}.localhost:7373", f"3000-{ID}.localhost", f"1-{ID.upper()}.LOCALHOST"])
def test_an_origin_of_a_port_is_known(host: str) -> None:
    """With and without the API's port, in any case, wherever the line stands."""
    assert sandbox_of(f"GET / HTTP/1.1\r\naccept: */*\r\nHOST:  {host} \r\n".encode(), "localhost") == ID


@pytest.mark.parametrize(
    "head",
    [
        "GET / HTTP/1.1\r\nhost: 127.0.0.1:7373\r\n",
        f"GET /?x=3000-{ID}.localhost HTTP/1.1\r\nhost: localhost\r\n",
        f"GET / HTTP/1.1\r\nhost: 3000-{ID}.localhost.evil\r\n",
        f"GET / HTTP/1.1\r\nx-host: 3000-{ID}.localhost\r\n",
        f"GET / HTTP/1.1\r\nhost: 123456-{ID}.localhost\r\n",
    ],
)
def test_other_hosts_are_the_api(head: str) -> None:
    """Nothing but a Host line makes a connection that of a port."""
    assert sandbox_of(head.encode(), "localhost") is None


def test_the_operators_domain_is_the_only_one() -> None:
    """Where ports have a domain of their own, hosts below another one are not theirs."""
    for domain, wanted in (("ports.example", ID), ("localhost", None), ("example", None), ("a.ports.example", None)):
        head = f"GET / HTTP/1.1\r\nhost: 3000-{ID}.{domain}\r\n".encode()
        assert sandbox_of(head, "ports.example") == wanted, domain


@pytest.fixture
async def proxy(fake: FakeNode) -> AsyncIterator[list[bytes]]:
    """A proxy that answers each connection with what it got, doubled; and the list of what it got."""
    seen: list[bytes] = []
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        try:
            while data := await reader.read(65536):
                seen.append(data)
                writer.write(data + data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_unix_server(serve, str(fake.directory / "ports.sock"))
    yield seen
    server.close()
    for task in serving:
        task.cancel()
    await asyncio.gather(*serving, return_exceptions=True)


async def _connect(fake: FakeNode) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = fake.url.removeprefix("http://").rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def test_bytes_are_copied_unread(fake: FakeNode, proxy: list[bytes]) -> None:
    """A head that comes in pieces goes to the proxy whole, and everything after it, whatever it is, both ways."""
    reader, writer = await _connect(fake)
    head = f"GET / HTTP/1.1\r\nhost: 80-{ID}.localhost\r\n\r\n".encode()
    for part in (head[:3], head[3:30], head[30:]):
        writer.write(part)
        await writer.drain()
    assert await reader.readexactly(2 * len(head)) == head + head
    writer.write(b"\x00\xff no HTTP")
    assert await reader.readexactly(20) == b"\x00\xff no HTTP" * 2
    assert proxy[0] == head
    writer.close()


async def test_the_api_goes_on_beside_it(fake: FakeNode, proxy: list[bytes]) -> None:
    """A connection whose first request is the API's stays with the API, also for a request with a port's Host."""
    reader, writer = await _connect(fake)
    for host in ("localhost", f"80-{ID}.localhost"):
        writer.write(f"GET /v1/version HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
        assert b"version" in await reader.readexactly(int(length.split(b":")[1]))
    assert proxy == []
    writer.close()


@pytest.mark.parametrize(("sandbox", "status"), [(ID, b"502"), (ID.replace("fake", "other"), b"404")])
async def test_without_a_proxy_the_error_is_typed(fake: FakeNode, sandbox: str, status: bytes) -> None:
    """A dead proxy is 502 and another node's sandbox 404, with an error in wire form; then the connection ends."""
    reader, writer = await _connect(fake)
    writer.write(f"GET / HTTP/1.1\r\nhost: 80-{sandbox}.localhost\r\n\r\n".encode())
    answer = await reader.read()
    assert answer.split(b" ")[1] == status
    assert b'{"error":{' in answer
    writer.close()


async def test_a_reader_that_waits_holds_the_proxy_back(fake: FakeNode, proxy: list[bytes]) -> None:
    """Nothing is stored without bound for a client that does not read."""
    reader, writer = await _connect(fake)
    sock = writer.get_extra_info("socket")
    assert isinstance(sock.family, socket.AddressFamily)
    writer.write(f"GET / HTTP/1.1\r\nhost: 80-{ID}.localhost\r\n\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    block = bytes(1 << 16)
    written = 0
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2):
            while written < 256 << 20:
                writer.write(block)
                written += len(block)
                await writer.drain()
    assert sum(map(len, proxy)) < 64 << 20
    writer.transport.abort()
