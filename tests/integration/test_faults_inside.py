"""Keeper, a sandbox's init, or one program dies at a step: what cannot be known is never a success."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import dsec
from dsec.api.ids import exec_id
from dsec.node.up import UpOptions, up
from dsec.testing.faults import SETTINGS, Faults
from dsec.testing.node import RunningNode, private_node, wait_until

from .fault_operations import IMAGE, OPERATIONS

pytestmark = [pytest.mark.node, pytest.mark.anyio, pytest.mark.timeout(120)]

KEEPER_STEPS = (
    "runtime.create.root",
    "runtime.create.spawned",
    "runtime.exec.leaf",
    "runtime.exec.spawned",
    "runtime.exec.measured",
    "runtime.stdin.stored",
    "runtime.write.received",
    "runtime.stop.emptied",
)
INIT_STEPS = ("runtime.exec.leaf", "runtime.exec.spawned", "runtime.exec.drained", "runtime.stdin.stored")


@pytest.fixture(scope="module")
def own_node(store: Path) -> Iterator[RunningNode]:
    """One node for this module, whose parts die."""
    with private_node(store, settings=SETTINGS) as running:
        yield running


def _inits(node: RunningNode) -> set[int]:
    """PIDs of the processes that are the first of their sandbox."""
    found = set()
    for pid in node.sandbox_processes():
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
            if any(line.startswith("NSpid:") and line.split()[-1] == "1" for line in status.splitlines()):
                found.add(pid)
    return found


@pytest.mark.parametrize("name", KEEPER_STEPS)
async def test_the_keeper_dies_at(own_node: RunningNode, name: str) -> None:
    """Sandboxes are lost, execs have an unknown outcome, and the next ``dsec up`` sweeps what is left of them."""
    faults = Faults(own_node)
    runtime = own_node.services()["runtime"].pid
    async with running(own_node).client() as client:
        sandbox = await client.sandbox(IMAGE)
        with faults.armed(name, "stop"):
            step = asyncio.ensure_future(OPERATIONS[name.split(".")[1]](client, sandbox.id, name))
            await asyncio.to_thread(faults.wait_passed, name)
            await asyncio.to_thread(own_node.kill, "keeper")
            with contextlib.suppress(ProcessLookupError):
                os.kill(runtime, signal.SIGCONT)
            report = await asyncio.to_thread(up, UpOptions(paths=own_node.paths))
        step.cancel()
        await asyncio.gather(step, return_exceptions=True)
    again = RunningNode(paths=own_node.paths, url=report.url, token=own_node.token)
    async with again.client() as client:
        lost = await client.attach(sandbox.id).info()
        assert (lost.state, lost.cause) == ("lost", "keeper")
        # One whose end was measured before the keeper died may have been told, and is true then.
        if name.split(".")[1] in ("exec", "stdin") and name != "runtime.exec.measured":
            program = dsec.Exec(client.attach(sandbox.id), exec_id(sandbox.id, name), None)
            with pytest.raises((dsec.OutcomeUnknown, dsec.NotFound)):
                await program.wait()
        async with client.sandbox(IMAGE) as fresh:
            assert (await fresh.exec("echo", "works")).stdout == "works\n"
        await client.stop_all(mine=True)  # a create that was recorded is finished for whoever comes with its key
    _check_nothing_left(again)


@pytest.mark.parametrize("name", INIT_STEPS)
async def test_an_init_dies_at(own_node: RunningNode, name: str) -> None:
    """The sandbox ends as ``init-died``; what ran in it is gone with it, unless its true end was seen before."""
    faults = Faults(own_node)
    async with running(own_node).client() as client:
        before = _inits(own_node)
        sandbox = await client.sandbox(IMAGE)
        (init,) = _inits(own_node) - before
        with faults.armed(name, "stop"):
            step = asyncio.ensure_future(OPERATIONS[name.split(".")[1]](client, sandbox.id, name))
            await asyncio.to_thread(faults.wait_passed, name)
            os.kill(init, signal.SIGKILL)
            await asyncio.to_thread(faults.go_on, name)
        with pytest.raises(dsec.SandboxGone) as caught:
            await step
        # What had not yet entered finds the sandbox dead before anybody knows of what: lost.
        assert caught.value.details["cause"] in ("init-died", "lost")
        info = await sandbox.info()
        assert info.cause == "init-died"
    _check_nothing_left(own_node)


async def test_a_program_is_killed_from_outside(own_node: RunningNode) -> None:
    """Whoever kills one program by its PID ends only that: its result says so, and its sandbox works on."""
    async with running(own_node).client() as client, client.sandbox(IMAGE) as sandbox:
        before = own_node.sandbox_processes()
        program = await sandbox.spawn("sleep", "1000")
        (pid,) = own_node.sandbox_processes() - before
        os.kill(pid, signal.SIGKILL)
        result = await program.wait()
        assert (result.ended, result.signal, result.exit_code) == ("signalled", signal.SIGKILL, None)
        assert (await sandbox.exec("true")).ok


def _check_nothing_left(node: RunningNode) -> None:
    try:
        wait_until(lambda: node.leftovers() == [], "nothing is left", timeout_s=10)
    except AssertionError:
        pytest.fail(f"left behind: {'; '.join(node.leftovers())}")


def running(node: RunningNode) -> RunningNode:
    """The node as it is now: after a repair it has another port."""
    address = node.services()["apiserver"].addresses[0].removeprefix("tcp:")
    return RunningNode(paths=node.paths, url=f"http://{address}", token=node.token)
