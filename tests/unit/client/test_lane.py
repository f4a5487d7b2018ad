"""Lanes: taken by output that comes fast, given up without a loss."""

from __future__ import annotations

import asyncio

import pytest

import dsec
from dsec.api import frames
from dsec.client.client import DSecClient
from dsec.client.lane import Lane, Pace
from dsec.client.streams import Flowing
from dsec.client.wire import Lost
from dsec.testing.fake_node import FakeNode

pytestmark = pytest.mark.anyio
MIB = 1 << 20


def test_only_what_comes_fast_is_heavy() -> None:
    """Four megabytes at once are heavy; the same in small portions over a second are not, however much it becomes."""
    assert not Pace(0.0).is_heavy(4 * MIB - 1, 0.0)
    assert Pace(0.0).is_heavy(4 * MIB, 0.1)
    slow = Pace(0.0)
    assert not any(slow.is_heavy(MIB, second) for second in range(100))
    assert not slow.is_heavy(3 * MIB, 100.0)
    assert not slow.is_heavy(MIB, 100.1)
    assert slow.is_heavy(4 * MIB, 100.2)


class _Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def abort(self) -> None:
        self.aborted = True


def _feed(lane: Lane, data: bytes) -> None:
    view = memoryview(data)
    while view:
        room = lane.get_buffer(-1)
        count = min(len(room), len(view))
        room[:count] = view[:count]
        lane.buffer_updated(count)
        view = view[count:]


async def test_frames_are_cut_out_of_whatever_comes() -> None:
    """Frames of all sizes arrive whole and in order, however the bytes are split."""
    for step in (1 << 20, 100_003, 7919):
        receiver = Flowing()
        lane, transport = Lane(b"request", receiver), _Transport()
        lane.connection_made(transport)
        assert transport.written == b"request"
        sizes = [1, 200, 70_000, 250_000, 3, 260_000, 0, 250_000] * 3
        sent = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: dsec-transfer\r\n\r\n"
        for number, size in enumerate(sizes):
            frame = frames.data_frame(1, 1, number, bytes([number]) * size)
            sent += len(frame).to_bytes(4, "big") + frame
        for start in range(0, len(sent), step):
            _feed(lane, sent[start : start + step])
        for number, size in enumerate(sizes):
            assert (await receiver.next())[3:] == [number, bytes([number]) * size]
        assert lane.received
        lane.connection_lost(None)
        with pytest.raises(Lost):
            await receiver.next()


@pytest.mark.parametrize("answer", [b"HTTP/1.1 404 Refused\r\n\r\n", b"HTTP/1.1 101 OK\r\n\r\n\xff\xff\xff\xff\x00"])
async def test_what_is_no_lane_is_left(answer: bytes) -> None:
    """An answer that is no upgrade, or frames that are none, end it; its reader hears so when it has ended."""
    lane, transport = Lane(b"request", Flowing()), _Transport()
    lane.connection_made(transport)
    _feed(lane, answer)
    assert transport.aborted and not lane.received
    lane.connection_lost(None)


async def test_output_is_whole_where_there_are_no_lanes(fake: FakeNode, client: DSecClient) -> None:
    """A server that knows no lanes is asked for one once; everything comes on the WebSocket, exactly."""
    sandbox = await client.sandbox("image")
    size = 24 * MIB
    running = await sandbox.spawn("spew", str(size))
    output = bytearray()
    async for event in running.events():
        if isinstance(event, dsec.Stdout):
            assert event.offset == len(output)
            output += event.data
    assert output == bytes(range(256)) * (size // 256)
    assert sum(path.endswith("/output") for _, path, _ in fake.edge.requests) <= 1
