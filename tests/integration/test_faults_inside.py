"""A sandbox's init, or one program dies at a step: what cannot be known is never a success."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import dsec
from dsec.testing.faults import SETTINGS, Faults
from dsec.testing.node import RunningNode, private_node, wait_until

from .fault_operations import IMAGE, OPERATIONS

pytestmark = [pytest.mark.node, pytest.mark.anyio, pytest.mark.timeout(120)]

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


@pytest.mark.parametrize("name", INIT_STEPS)
async def test_an_init_dies_at(own_node: RunningNode, name: str) -> None:
    """The sandbox ends as ``init-died``; what ran in it is gone with it, unless its true end was seen before."""
    faults = Faults(own_node)
    async with own_node.client() as client:
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
    async with own_node.client() as client, client.sandbox(IMAGE) as sandbox:
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
