"""One client with many execs: few connections, bounded memory, everybody's turn, nothing left of the cancelled."""

from __future__ import annotations

import asyncio
import os
import resource
from pathlib import Path

import pytest

import dsec
from dsec.testing.node import RunningNode, wait_until

IMAGE = "dsec/debian:12"
EXECS = int(os.environ.get("SOAK_EXECS", "1000"))
SANDBOXES = 20
pytestmark = [pytest.mark.node, pytest.mark.anyio, pytest.mark.timeout(180 + EXECS // 4)]
_MOST_SOCKETS = 8
_CROWD = 400
"""Several times what one sandbox takes in at once."""
_MOST_KIB_EACH = 64
_DESCRIPTORS_EACH = 3
"""Two outputs and a pidfd; the listeners of some filters are among the rest."""
_PATIENCE_S = max(120, EXECS // 8)
_LOOK_S = max(2, EXECS // 400)
"""So seldom each looks for the end that the looking alone, a program each time, leaves the machine free."""


def _sockets() -> int:
    return sum(entry.is_socket() for entry in Path("/proc/self/fd").iterdir())


async def _sandboxes(node: RunningNode, client: dsec.DSecClient) -> list[dsec.Sandbox]:
    most = (node.stats()["descriptors_limit"] - 4000) // _DESCRIPTORS_EACH
    assert most >= EXECS, f"a node that starts with this `ulimit -Hn` holds some {most} execs"
    each = 2 * EXECS // SANDBOXES + 64
    args = dsec.SandboxArgs(IMAGE, pids=max(4096, each), memory_mib=2048, disk_mib=1024)
    return await asyncio.gather(*(client.sandbox(args) for _ in range(SANDBOXES)))


async def test_many_in_flight_from_one_client(node: RunningNode, client: dsec.DSecClient) -> None:
    """All of them run at once over a handful of sockets; an exec beside them is answered; each has its own result."""
    sandboxes = await _sandboxes(node, client)
    before, memory = _sockets(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    script = f"echo $0; until [ -e /tmp/over ]; do sleep {_LOOK_S}; done"
    tasks = [
        asyncio.create_task(sandboxes[number % SANDBOXES].exec("sh", "-c", script, str(number)))
        for number in range(EXECS)
    ]
    await asyncio.to_thread(wait_until, lambda: node.stats()["execs"] == EXECS, "all run", timeout_s=_PATIENCE_S)
    assert _sockets() - before <= _MOST_SOCKETS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory <= EXECS * _MOST_KIB_EACH
    beside = await asyncio.gather(*(one.exec("echo", "beside", timeout_s=60) for one in sandboxes))
    assert all(each.stdout == "beside\n" for each in beside)
    await asyncio.gather(*(one.write("/tmp/over", b"") for one in sandboxes))
    results = await asyncio.gather(*tasks)
    assert [each.stdout for each in results] == [f"{number}\n" for number in range(EXECS)]
    await asyncio.gather(*(one.stop() for one in sandboxes))


async def test_many_are_cancelled_at_once(node: RunningNode, client: dsec.DSecClient) -> None:
    """Cancelling all of them leaves no process and no exec, and the sandboxes go on working."""
    sandboxes = await _sandboxes(node, client)
    tasks = [
        asyncio.create_task(sandboxes[number % SANDBOXES].exec("sleep", "1000", grace_s=10))
        for number in range(EXECS)
    ]
    await asyncio.to_thread(wait_until, lambda: node.stats()["execs"] == EXECS, "all run", timeout_s=_PATIENCE_S)
    for task in tasks:
        task.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(each, asyncio.CancelledError) for each in outcomes)
    await asyncio.to_thread(wait_until, lambda: node.stats()["execs"] == 0, "none runs", timeout_s=60)
    for sandbox in sandboxes:
        assert (await sandbox.exec("true")).ok
        assert {each.ended for each in await sandbox.execs()} <= {"cancelled", "exited"}
    await asyncio.gather(*(one.stop() for one in sandboxes))


async def test_what_waits_to_enter_is_cancelled_unrun(node: RunningNode, client: dsec.DSecClient) -> None:
    """Execs whose turn has not come are not run in order to be killed: of those that took no time, none ran."""
    async with client.sandbox(IMAGE) as sandbox:
        script = "echo x >> /tmp/ran; exec sleep 1000"
        tasks = [asyncio.create_task(sandbox.run_shell(script, grace_s=10)) for _ in range(_CROWD)]
        await asyncio.to_thread(
            wait_until, lambda: node.stats()["execs"] == _CROWD, "all are asked for", timeout_s=60
        )
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in outcomes)
        known = await sandbox.execs()
        assert [each.ended for each in known] == ["cancelled"] * _CROWD
        ran = await sandbox.run_shell("cat /tmp/ran || true")
        assert len(ran.stdout.split()) <= sum(bool(each.duration_s) for each in known)


async def test_execs_that_are_over_cost_no_descriptors(node: RunningNode, client: dsec.DSecClient) -> None:
    """A sandbox that lives long may have run any number of programs: what has ended is not held."""
    async with client.sandbox(IMAGE) as sandbox:
        await sandbox.exec("true")
        before = node.stats()["descriptors_used"]
        for _ in range(5):
            await asyncio.gather(*(sandbox.exec("cat", stdin=b"x") for _ in range(20)))
        await asyncio.to_thread(
            wait_until, lambda: node.stats()["descriptors_used"] <= before + _MOST_SOCKETS, "they are given back"
        )
