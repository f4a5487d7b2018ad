"""Output that comes fast moves to a connection of its own: exact bytes, whatever breaks on the way."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dsec.client.lane import Lane
from dsec.client.link import Link
from dsec.client.results import Exited, Gap, Stdout
from dsec.testing.node import RunningNode, private_node, wait_until

pytestmark = [pytest.mark.node, pytest.mark.anyio, pytest.mark.timeout(240)]

MIB = 1 << 20
SIZE = 96 * MIB
WRITE = f"import os\nfor each in range({SIZE} // 65536): os.write(1, each.to_bytes(8, 'big') * 8192)\nos._exit(3)"


def expected(offset: int, length: int) -> bytes:
    """What the program writes at an offset."""
    first, last = offset // 65536, (offset + length) // 65536
    whole = b"".join(each.to_bytes(8, "big") * 8192 for each in range(first, last + 1))
    return whole[offset - first * 65536 :][:length]


@pytest.fixture
def lanes(monkeypatch: pytest.MonkeyPatch) -> list[Lane]:
    """The lanes that clients have had, in order."""
    had: list[Lane] = []
    original = Link.lane

    def lane(self: Link, *asked: Any) -> AbstractAsyncContextManager[Lane | None]:
        @asynccontextmanager
        async def noted() -> Any:
            async with original(self, *asked) as made:
                if made is not None:
                    had.append(made)
                yield made

        return noted()

    monkeypatch.setattr(Link, "lane", lane)
    return had


@pytest.fixture(scope="module")
def own_node(store: Path) -> Iterator[RunningNode]:
    """One node for this module, parts of which are killed."""
    with private_node(store) as running:
        yield running


async def test_fast_output_takes_a_lane(own_node: RunningNode, lanes: list[Lane]) -> None:
    """It does, every byte comes once and in order, and the end is the one that is recorded."""
    async with own_node.client() as client, client.sandbox("dsec/debian:12") as sandbox:
        running = await sandbox.spawn("python3", "-c", WRITE, backpressure=True)
        taken, seen, end = 0, hashlib.sha256(), None
        async for event in running.events():
            if isinstance(event, Stdout):
                assert event.offset == taken
                taken += len(event.data)
                seen.update(event.data)
            else:
                assert end is None and isinstance(event, Exited), event
                end = event
        assert taken == SIZE
        assert seen.digest() == hashlib.sha256(expected(0, SIZE)).digest()
        assert end is not None and end.exit_code == 3
        assert len(lanes) == 1 and lanes[0].received
        assert (await running.wait()).stdout_total_bytes == SIZE


@pytest.mark.parametrize("dies", ["lane", "apiserver", "edge", "runtime"])
async def test_nothing_is_lost_when_a_lane_breaks(own_node: RunningNode, lanes: list[Lane], dies: str) -> None:
    """A lane that is cut, or whose parts are killed, costs no byte: the reader goes on where it was."""
    async with own_node.client() as client, client.sandbox("dsec/debian:12") as sandbox:
        running = await sandbox.spawn("python3", "-c", WRITE, backpressure=True)
        taken, killing, end = 0, None, None
        async for event in running.events():
            if isinstance(event, Stdout):
                assert event.offset == taken
                assert event.data == expected(taken, len(event.data))
                taken += len(event.data)
                if lanes and lanes[0].received and killing is None:
                    killing = asyncio.create_task(_kill(own_node, lanes[0], dies))
            else:
                assert isinstance(event, Exited), event
                end = event
        assert killing is not None
        await killing
        assert taken == SIZE
        assert end is not None and end.exit_code == 3


async def _kill(node: RunningNode, lane: Lane, what: str) -> None:
    if what == "lane":
        lane.close()
        return
    before = node.services()[what].pid
    await asyncio.to_thread(node.kill, what)
    await asyncio.to_thread(
        wait_until, lambda: node.services()[what].pid not in (0, before), f"the {what} runs again"
    )


async def test_a_slow_reader_of_a_lane_gets_a_gap(own_node: RunningNode, lanes: list[Lane]) -> None:
    """Without backpressure the program runs on while its reader stands still on a lane; a gap, then exact bytes."""
    size = 300 * MIB
    async with own_node.client() as client, client.sandbox("dsec/debian:12") as sandbox:
        running = await sandbox.spawn("head", "-c", str(size), "/dev/zero")
        taken, gaps, stood = 0, 0, False
        async for event in running.events():
            if isinstance(event, Stdout):
                assert event.offset == taken
                assert event.data == bytes(len(event.data))
                taken += len(event.data)
                if lanes and lanes[0].received and not stood:
                    stood = True
                    assert (await running.wait()).stdout_total_bytes == size
            elif isinstance(event, Gap):
                assert event.start == taken
                taken, gaps = event.end, gaps + 1
        assert taken == size
        assert stood and gaps == 1
