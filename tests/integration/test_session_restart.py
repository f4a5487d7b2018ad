"""Each part of a node is killed while a session runs a script: nothing is lost, nothing is run twice."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import dsec
from dsec.testing.node import RunningNode, private_node, wait_until

pytestmark = [pytest.mark.node, pytest.mark.anyio, pytest.mark.timeout(180)]

COUNT = 300
SCRIPT = (
    "echo begun > /tmp/begun; echo run >> /tmp/runs; n=$((n + 1))\n"
    f"i=0; while [ $i -lt {COUNT} ]; do echo line-$i; echo err-$i >&2; i=$((i+1)); sleep 0.005; done; (exit 7)"
)
OUT = b"".join(b"line-%d\n" % i for i in range(COUNT))
ERR = b"".join(b"err-%d\n" % i for i in range(COUNT))
BEGUN = "until [ -e /tmp/begun ]; do sleep 0.01; done; rm /tmp/begun"


@pytest.fixture(scope="module")
def own_node(store: Path) -> Iterator[RunningNode]:
    """One node for this module, whose parts are killed; it is whole again after each test."""
    with private_node(store) as running:
        yield running


@contextlib.asynccontextmanager
async def opened(node: RunningNode) -> AsyncIterator[tuple[dsec.Sandbox, dsec.Session]]:
    """A session in a sandbox of its own."""
    async with (
        node.client() as client,
        client.sandbox("dsec/debian:12") as sandbox,
        sandbox.open_session() as session,
    ):
        yield sandbox, session


@pytest.mark.parametrize("act", ["restart", "kill"])
@pytest.mark.parametrize("part", ["runtime", "edge", "apiserver"])
async def test_a_run_survives_a_parts_end(own_node: RunningNode, part: str, act: str) -> None:
    """Every byte of the run and no other, the true status, once; the session goes on with its state."""
    async with opened(own_node) as (sandbox, session):
        assert (await session.run("n=10; echo before")).stdout == "before\n"
        running = asyncio.create_task(session.run(SCRIPT))
        await sandbox.run_shell(BEGUN)
        before = own_node.services()[part].pid
        await asyncio.to_thread(own_node.restart if act == "restart" else own_node.kill, part)
        result = await running
        assert (result.stdout_bytes, result.stderr_bytes) == (OUT, ERR)
        assert (result.exit_code, result.ended) == (7, "exited")
        after = await session.run("echo $? $n; cat /tmp/runs")
        assert after.stdout == "7 11\nrun\n" and not session.closed
        wait_until(lambda: own_node.services()[part].pid not in (0, before), f"{part} runs again")


async def test_a_run_survives_a_new_keeper(own_node: RunningNode) -> None:
    """The keeper re-execs in place and goes on holding the session's pipes; a new runtime finds them there."""
    async with opened(own_node) as (sandbox, session):
        running = asyncio.create_task(session.run(SCRIPT))
        await sandbox.run_shell(BEGUN)
        await asyncio.to_thread(own_node.restart, "keeper")
        await asyncio.to_thread(own_node.kill, "runtime")
        result = await running
        assert (result.stdout_bytes, result.exit_code) == (OUT, 7)


def sleepers(node: RunningNode) -> list[int]:
    """Host PIDs of the node's `sleep`s."""
    found = []
    for pid in node.sandbox_processes():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text() == "sleep\n":
                found.append(pid)
    return found


async def test_a_status_that_nobody_has_read(own_node: RunningNode) -> None:
    """The script ends while the runtime stands still and then is killed: its successor asks the shell again."""
    async with opened(own_node) as (sandbox, session):
        script = "echo begun > /tmp/begun; n=1; sleep 1000; echo out; (exit 9)"
        running = asyncio.create_task(session.run(script))
        await sandbox.run_shell(BEGUN)
        wait_until(lambda: len(sleepers(own_node)) == 1, "the script sleeps")
        pid = own_node.services()["runtime"].pid
        os.kill(pid, signal.SIGSTOP)
        os.kill(sleepers(own_node)[0], signal.SIGTERM)
        wait_until(lambda: not sleepers(own_node), "the script is beyond its sleep")
        os.kill(pid, signal.SIGKILL)
        result = await running
        assert (result.exit_code, result.stdout) == (9, "out\n")
        assert (await session.run("echo $n")).stdout == "1\n"


async def test_a_result_is_found_again_after_restarts(own_node: RunningNode) -> None:
    """Its key leads to the recorded result, also when session and runtime have ended since."""
    async with own_node.client() as client, client.sandbox("dsec/debian:12") as sandbox:
        session = await sandbox.open_session()
        first = await session.run("echo run >> /tmp/runs; echo one; (exit 3)", key="one")
        assert (await session.run("exit 4", key="two")).exit_code == 4
        for part in ("runtime", "edge"):
            await asyncio.to_thread(own_node.kill, part)
            again = await session.run("echo run >> /tmp/runs; echo one; (exit 3)", key="one")
            assert again == first
            assert (await session.run("exit 4", key="two")).exit_code == 4
        with pytest.raises(dsec.Conflict):
            await session.run("true", key="three")
        assert await sandbox.read("/tmp/runs") == b"run\n"


async def test_a_timeout_that_began_before(own_node: RunningNode) -> None:
    """Deadline, cause and what is to be spared are known to the successor: the run ends in time, a job lives on."""
    async with opened(own_node) as (sandbox, session):
        job = (await session.run("sleep 1000 & echo $!")).stdout.strip()
        script = "echo begun > /tmp/begun; while :; do sleep 1000; done"
        running = asyncio.create_task(session.run(script, timeout_s=3, grace_s=5))
        await sandbox.run_shell(BEGUN)
        await asyncio.to_thread(own_node.kill, "runtime")
        result = await running
        assert result.ended == "timeout" and 3 <= result.duration_s < 60
        assert (await session.run(f"kill -0 {job}")).ok and not session.closed
