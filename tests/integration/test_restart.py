"""Each part of a node is killed and restarted while an exec runs: nothing of the exec is lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec.client.results import Exited, Stdout
from dsec.testing.node import RunningNode, private_node, wait_until

from .test_cli import dsec

pytestmark = [pytest.mark.node, pytest.mark.anyio, pytest.mark.timeout(180)]

COUNT = 400
SCRIPT = f"i=0; while [ $i -lt {COUNT} ]; do echo line-$i; i=$((i+1)); sleep 0.005; done; exit 7"
EXPECTED = b"".join(b"line-%d\n" % i for i in range(COUNT))


@pytest.fixture(scope="module")
def own_node(store: Path) -> Iterator[RunningNode]:
    """One node for this module, whose parts are killed; it is whole again after each test."""
    with private_node(store) as running:
        yield running


async def collect(node: RunningNode, disturb: str, act: str) -> tuple[bytes, Exited | None]:
    """Run the script, disturb a part once output flows, and collect all that comes."""
    async with node.client() as client, client.sandbox("dsec/debian:12") as sandbox:
        program = await sandbox.spawn(shell=SCRIPT)
        output, end, disturbed = bytearray(), None, None
        async for event in program.events():
            if isinstance(event, Stdout):
                output += event.data
                if disturbed is None:
                    step = node.restart if act == "restart" else node.kill
                    disturbed = asyncio.create_task(asyncio.to_thread(step, disturb))
            elif isinstance(event, Exited):
                end = event
        assert disturbed is not None
        await disturbed
        return bytes(output), end


@pytest.mark.parametrize("act", ["restart", "kill"])
@pytest.mark.parametrize("part", ["runtime", "edge", "apiserver"])
async def test_exec_survives_a_parts_end(own_node: RunningNode, part: str, act: str) -> None:
    """Every byte arrives once and in order, and the true exit code, although the part ended in between."""
    before = own_node.services()[part].pid
    output, end = await collect(own_node, part, act)
    assert output == EXPECTED
    assert end is not None and end.exit_code == 7
    wait_until(lambda: own_node.services()[part].pid not in (0, before), f"{part} runs again")


@pytest.mark.timeout(180)
@pytest.mark.parametrize("part", ["runtime", "edge", "apiserver"])
async def test_input_written_to_a_part_that_is_gone_arrives(own_node: RunningNode, part: str) -> None:
    """Nobody but a reader of events uses the exec after the write; the program's answer comes all the same."""
    async with own_node.client() as client, client.sandbox("dsec/debian:12") as sandbox:
        running = await sandbox.spawn("cat", stdin="pipe")
        lines = running.lines()
        await running.stdin.write("one\n")
        assert await anext(lines) == "one"
        own_node.kill(part)
        await running.stdin.write("two\n")
        async with asyncio.timeout(60):
            assert await anext(lines) == "two"
        own_node.kill(part)
        await running.stdin.close()
        async with asyncio.timeout(60):
            assert [line async for line in lines] == []


async def test_exec_survives_a_new_keeper(own_node: RunningNode) -> None:
    """The keeper re-execs in place: same PID, same children, and the exec goes on."""
    output, end = await collect(own_node, "keeper", "restart")
    assert output == EXPECTED
    assert end is not None and end.exit_code == 7


def test_restart_of_everything_at_rest(own_node: RunningNode) -> None:
    """``dsec restart`` without a name restarts all parts, and the node is whole again."""
    before = {name: service.pid for name, service in own_node.services().items()}
    own_node.restart()
    after = {name: service.pid for name, service in own_node.services().items()}
    assert all(after[name] not in (0, before[name]) for name in before)


def test_status_counts_restarts(own_node: RunningNode) -> None:
    """For root here `dsec status` shows every part and how often it was started anew, beside what the API says."""
    before = own_node.services()["edge"]
    own_node.kill("edge")
    wait_until(lambda: own_node.services()["edge"].pid not in (0, before.pid), "edge runs again")
    told = json.loads(dsec(own_node, "status", "--json").stdout)
    parts = {part["name"]: part for part in told["parts"]}
    assert set(parts) == set(own_node.services())
    assert parts["edge"]["state"] == "running" and parts["edge"]["restarts"] > before.restarts
    assert f"restarts {parts['edge']['restarts']}" in dsec(own_node, "status").stdout
