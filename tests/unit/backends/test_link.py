"""The link to the runtime: many calls on one connection, frames in any pieces, losses told to everybody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dsec.api import frames
from dsec.backends.link import FrameConnection, RuntimeLink
from dsec.errors import InvalidArgument, NodeError, NotFound
from dsec.testing.edge_world import failing, until
from dsec.testing.fake_runtime import FakeRuntime

pytestmark = pytest.mark.anyio


class Linked:
    """A link that is up, and how often it came up."""

    def __init__(self, socket: Path) -> None:
        self.ups = 0
        self.link = RuntimeLink(socket, self._up)

    async def _up(self) -> None:
        self.ups += 1


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[FakeRuntime]:
    """A fake runtime."""
    async with FakeRuntime(tmp_path / "runtime.sock") as fake:
        yield fake


@pytest.fixture
async def linked(runtime: FakeRuntime) -> AsyncIterator[Linked]:
    """A link to it."""
    made = Linked(runtime.socket)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(made.link.run())
        await made.link.wait_up(5)
        yield made
        running.cancel()


async def test_answers_find_their_calls(linked: Linked, runtime: FakeRuntime) -> None:
    """A call that is held does not keep others waiting, and gets its own answer."""
    gate = runtime.hold("hello")
    slow = asyncio.create_task(linked.link.call("hello", {"version": 1}))
    await gate.reached.wait()
    assert (await linked.link.call("stats", {}))["sandboxes"] == 0
    gate.open()
    assert (await slow)["version"] == 1


async def test_errors_keep_their_type(linked: Linked) -> None:
    """The runtime's NotFound is a NotFound here."""
    error = await failing(linked.link.call("sandbox.usage", {"sandbox_id": "x"}))
    assert isinstance(error, NotFound)


async def test_a_slow_answer_is_a_node_error(linked: Linked, runtime: FakeRuntime) -> None:
    """The call ends, the link stays."""
    gate = runtime.hold("stats")
    error = await failing(linked.link.call("stats", {}, timeout_s=0.05))
    assert isinstance(error, NodeError)
    gate.open()
    assert await linked.link.call("stats", {})


async def test_a_loss_fails_calls_and_streams_and_is_repaired(linked: Linked, runtime: FakeRuntime) -> None:
    """Everybody who waits gets a retryable error; the link comes back by itself and says so."""
    gate = runtime.hold("stats")
    call = asyncio.create_task(linked.link.call("stats", {}))
    stream = linked.link.stream("events", {})
    reading = asyncio.create_task(stream.next())
    await gate.reached.wait()
    await runtime.drop_connections()
    for waiting in (call, reading):
        error = await failing(waiting)
        assert isinstance(error, NodeError)
        assert error.retryable
    await until(lambda: linked.ups == 2)
    assert (await linked.link.call("stats", {}))["sandboxes"] == 0
    assert linked.link.reconnects == 1


async def test_calls_wait_for_a_runtime_that_starts(tmp_path: Path) -> None:
    """A call made before the runtime listens is answered once it does; without one it is a NodeError."""
    made = Linked(tmp_path / "runtime.sock")
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(made.link.run())
        assert isinstance(await failing(made.link.call("stats", {}, timeout_s=0.05)), NodeError)
        early = asyncio.create_task(made.link.call("stats", {}))
        async with FakeRuntime(tmp_path / "runtime.sock"):
            assert await early
        running.cancel()


async def test_a_frame_too_long_is_not_sent(linked: Linked) -> None:
    """The runtime would cut the connection for all."""
    error = await failing(linked.link.call("hello", {"version": "x" * (17 << 20)}))
    assert isinstance(error, InvalidArgument)
    assert linked.link.connected


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
async def test_frames_arrive_whole_in_whatever_pieces(size: int) -> None:
    """A frame split anywhere, and several frames in one piece, come out one by one."""
    sent = [frames.data_frame(1, 1, 0, b"x" * length) for length in (0, 1, 300, 5000)]
    wire = b"".join(len(frame).to_bytes(4, "big") + frame for frame in sent)
    arrived: list[bytes] = []
    connection = FrameConnection(arrived.append, lambda: None)
    for at in range(0, len(wire), size):
        connection.data_received(wire[at : at + size])
    assert arrived == sent
