"""A signal meets the death of a part: a program that counts its signals never counts one twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import dsec
from dsec.testing.faults import SETTINGS, Faults
from dsec.testing.node import RunningNode, private_node

from .fault_operations import IMAGE

pytestmark = [pytest.mark.node, pytest.mark.anyio, pytest.mark.timeout(120)]

# Standard error is closed to what bash says of a `sleep` that the group's signal has ended.
COUNTS = (
    "exec 2>/dev/null; n=0; trap 'n=$((n+1))' USR1; echo ready; until [ -e /tmp/over ]; do sleep 0.01; done; echo $n"
)


@pytest.fixture(scope="module")
def own_node(store: Path) -> Iterator[RunningNode]:
    """One node for this module, whose parts die."""
    with private_node(store, settings=SETTINGS) as running:
        yield running


@pytest.mark.parametrize(("name", "times"), [("edge.kill.asked", "0"), ("edge.kill.confirmed", "1"), (None, "1")])
async def test_it_is_sent_once(own_node: RunningNode, name: str | None, times: str) -> None:
    """Confirmed: counted once. The connection broke over it: unknown, once at most, and never sent again."""
    async with own_node.client() as client, client.sandbox(IMAGE) as sandbox:
        program = await sandbox.spawn(shell=COUNTS)
        lines = program.lines()
        assert await anext(lines) == "ready"
        if name is not None:
            faults = Faults(own_node)
            with faults.armed(name, "kill"):
                with pytest.raises(dsec.OutcomeUnknown):
                    await program.signal("USR1")
                await asyncio.to_thread(faults.wait_passed, name)
        else:
            await program.signal("USR1")
        await sandbox.write("/tmp/over", b"")
        assert [line async for line in lines] == [times]
        assert (await program.wait()).ok
