"""Joined sockets: exact bytes both ways, one side held back by the other, one end for both."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dsec.node.joined import Joined

pytestmark = pytest.mark.anyio
Pair = tuple[socket.socket, socket.socket]


@pytest.fixture(params=["unix", "tcp"])
def pairs(request: pytest.FixtureRequest) -> Iterator[tuple[Pair, Pair]]:
    """Two connections: (outer end, end to be joined) of each."""
    made = (_pair(request.param), _pair(request.param))
    yield made
    for one, other in made:
        one.close()
        other.close()


def _pair(kind: str) -> Pair:
    if kind == "unix":
        pair = socket.socketpair()
    else:
        with socket.create_server(("127.0.0.1", 0)) as server:
            one = socket.create_connection(server.getsockname())
            pair = one, server.accept()[0]
    for each in pair:
        each.setblocking(False)
    return pair


def _descriptors() -> set[str]:
    return {each.name for each in Path("/proc/self/fd").iterdir()}


async def _exactly(source: socket.socket, count: int) -> bytes:
    loop, data = asyncio.get_running_loop(), bytearray()
    while len(data) < count:
        part = await loop.sock_recv(source, count - len(data))
        assert part, "it ended too soon"
        data += part
    return bytes(data)


async def test_bytes_pass_both_ways(pairs: tuple[Pair, Pair]) -> None:
    """What is to come first comes first; then megabytes pass at once in both directions, exactly."""
    (left, one), (right, other) = pairs
    loop = asyncio.get_running_loop()
    there, back = bytes(range(256)) * 20_000, bytes(range(255, -1, -1)) * 20_000
    joined = Joined(one.fileno(), other.fileno(), first=b"first", back=b"back", over=lambda: None)
    try:
        _, _, arrived, returned = await asyncio.gather(
            loop.sock_sendall(left, there),
            loop.sock_sendall(right, back),
            _exactly(right, 5 + len(there)),
            _exactly(left, 4 + len(back)),
        )
    finally:
        joined.close()
    assert arrived == b"first" + there
    assert returned == b"back" + back


async def test_who_does_not_read_holds_back_the_other(pairs: tuple[Pair, Pair]) -> None:
    """A sender gets rid of no more than buffers hold, the other direction goes on, and nothing is lost."""
    (left, one), (right, other) = pairs
    loop = asyncio.get_running_loop()
    data = bytes(64 << 20)
    joined = Joined(one.fileno(), other.fileno(), first=b"", back=b"", over=lambda: None)
    try:
        sending = asyncio.create_task(loop.sock_sendall(left, data))
        await loop.sock_sendall(right, b"x")
        assert await _exactly(left, 1) == b"x"
        done, _ = await asyncio.wait({sending}, timeout=0.2)  # that it stands still can only be seen by waiting
        assert not done
        assert await _exactly(right, len(data)) == data
        await sending
    finally:
        joined.close()


@pytest.mark.parametrize("ender", [0, 1])
async def test_one_end_is_the_end(pairs: tuple[Pair, Pair], ender: int) -> None:
    """Whichever side ends, what it said before arrives, it is told once, and both sockets are let go of."""
    ends = [pairs[0][0], pairs[1][0]]
    over: list[None] = []
    told = asyncio.Event()

    def note() -> None:
        over.append(None)
        told.set()

    joined = Joined(pairs[0][1].fileno(), pairs[1][1].fileno(), first=b"", back=b"", over=note)
    ends[ender].sendall(b"last words")
    ends[ender].close()
    await told.wait()
    assert await _exactly(ends[1 - ender], 10) == b"last words"
    joined.close()
    joined.close()
    pairs[0][1].close()
    pairs[1][1].close()
    assert await asyncio.get_running_loop().sock_recv(ends[1 - ender], 1) == b""
    assert len(over) == 1


async def test_without_descriptors_nothing_is_held(pairs: tuple[Pair, Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    """OSError at any of its four openings, and what was opened before is closed again."""
    (_, one), (_, other) = pairs
    real = {"dup": os.dup, "pipe2": os.pipe2}
    for allowed in range(4):
        left = iter(range(allowed))

        def short(call: str, left: Iterator[int] = left) -> Callable[..., object]:
            def asked(*arguments: int) -> object:
                if next(left, None) is None:
                    raise OSError(24, "Too many open files")
                return real[call](*arguments)

            return asked

        before = _descriptors()
        with monkeypatch.context() as scarce:
            scarce.setattr(os, "dup", short("dup"))
            scarce.setattr(os, "pipe2", short("pipe2"))
            with pytest.raises(OSError, match="Too many open files"):
                Joined(one.fileno(), other.fileno(), first=b"", back=b"", over=lambda: None)
        assert _descriptors() == before
