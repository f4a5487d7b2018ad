"""Limits that are met around the death of the runtime: none of them is lost, and none is told twice."""

from __future__ import annotations

import asyncio
import os
import select
import signal
from pathlib import Path

import pytest

import dsec
from dsec.testing.node import RunningNode, private_node

from .inside import IMAGE

pytestmark = [pytest.mark.node, pytest.mark.anyio]

HOG_WHEN_TOLD = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
print("ready", flush=True)
signal.sigwait([signal.SIGUSR1])
b = bytearray(300 << 20)
"""
FORKS = """
import os, time
children, refused = [], 0
for _ in range(60):
    try:
        child = os.fork()
    except OSError:
        refused += 1
        continue
    if child == 0:
        time.sleep(60)
        os._exit(0)
    children.append(child)
for child in children:
    os.kill(child, 9)
    os.waitpid(child, 0)
print(refused)
"""
LOUD = """
import os, sys
for _ in range(100):
    sys.stderr.buffer.write(bytes(1 << 20))
sys.stderr.flush()
open("/said", "w").close()
os.read(0, 1)
"""


async def limits(sandbox: dsec.Sandbox) -> list[tuple[str, str | None, str | None, int]]:
    """Reason, name, exec and count of each limit that was met."""
    found = (await sandbox.events()).events
    return [(each.reason, each.name, each.exec_id, each.count) for each in found if each.kind == "limit"]


def die_while_the_runtime_stands_still(node: RunningNode) -> None:
    """Have the program that waits for it use up its memory while the runtime sees nothing, and kill the runtime."""
    runtime = node.services()["runtime"].pid
    os.kill(runtime, signal.SIGSTOP)
    try:
        (waiting,) = [
            pid for pid in node.sandbox_processes() if b"sigwait" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        handle = os.pidfd_open(waiting)
        os.kill(waiting, signal.SIGUSR1)
        assert select.select([handle], [], [], 60)[0], "it is killed for memory"
        os.close(handle)
    finally:
        os.kill(runtime, signal.SIGKILL)


async def test_a_kill_that_no_runtime_saw(store: Path) -> None:
    """A program that is killed for memory while there is no runtime to see it is one event, and stays one."""
    with private_node(store) as own:
        async with own.client() as client:
            async with client.sandbox(IMAGE, memory_mib=96) as sandbox:
                hog = await sandbox.spawn("python3", "-c", HOG_WHEN_TOLD)
                assert await anext(hog.lines()) == "ready"
                await asyncio.to_thread(die_while_the_runtime_stands_still, own)
                assert (await hog.wait()).signal == signal.SIGKILL
                own.kill("runtime")
                assert (await sandbox.exec("true")).ok
            assert [(reason, count) for reason, _, _, count in await limits(sandbox)] == [("memory", 1)]


async def test_what_was_gathered_is_told_by_the_next_one(store: Path) -> None:
    """Refused forks that were counted and not yet told when the runtime died are told after it, though another event
    was written in between; all counts together are what the programs saw."""
    with private_node(store) as own:
        async with own.client() as client:
            async with client.sandbox(IMAGE, memory_mib=192, pids=16) as sandbox:
                # Beside it no fork is one exec's alone: all of them are the same thing, and gathered.
                beside = await sandbox.spawn("sleep", "600")
                refused = 0
                for _ in range(3):
                    refused += int((await sandbox.exec("python3", "-c", FORKS, check=True)).stdout)
                hog = await sandbox.exec("python3", "-c", "b = bytearray(300 << 20)")
                own.kill("runtime")
                assert (await sandbox.exec("true")).ok
                await beside.kill()
            found = await limits(sandbox)
            assert sum(count for reason, _, _, count in found if reason == "pids") == refused
            assert [each for each in found if each[0] != "pids"] == [("memory", None, hog.exec_id, 1)]


async def test_output_that_was_too_much(store: Path) -> None:
    """That a stream lost its middle is told once, whether the runtime died before it was told or after."""
    with private_node(store) as own:
        async with own.client() as client, client.sandbox(IMAGE) as sandbox:
            await sandbox.exec("mkfifo", "/said", check=True)
            loud = await sandbox.spawn("python3", "-c", LOUD, stdin=dsec.PIPE)
            await sandbox.exec("cat", "/said", check=True, timeout_s=60)
            own.kill("runtime")
            await loud.stdin.write("\n")
            assert (await loud.wait()).exit_code == 0
            told = [("output", "stderr", loud.id, 1)]
            assert await limits(sandbox) == told
            own.kill("runtime")
            assert (await sandbox.exec("true")).ok
            assert await limits(sandbox) == told
