"""What a sandbox tries and does not get is on record, with sandbox, exec, time and reason; bounded."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import dsec
from dsec.testing.node import RunningNode, private_node

from .inside import IMAGE

pytestmark = [pytest.mark.node, pytest.mark.anyio]

FORKS = """
import os, time
children = []
for _ in range(200):
    try:
        child = os.fork()
    except OSError:
        continue
    if child == 0:
        time.sleep(60)
        os._exit(0)
    children.append(child)
for child in children:
    os.kill(child, 9)
    os.waitpid(child, 0)
"""


async def limits(sandbox: dsec.Sandbox) -> list[tuple[str, str | None, str | None, int]]:
    """Reason, name, exec and count of each limit that was met."""
    found = (await sandbox.events()).events
    return [(each.reason, each.name, each.exec_id, each.count) for each in found if each.kind == "limit"]


async def test_memory(client: dsec.DSecClient) -> None:
    """A program that is killed for memory is an event with its exec, at its time; nothing else is one."""
    async with client.sandbox(IMAGE, memory_mib=96) as sandbox:
        await sandbox.exec("true")
        assert (await sandbox.events()).events == []
        before = time.time()
        hog = await sandbox.exec("python3", "-c", "b = bytearray(300 << 20)")
        (event,) = (await sandbox.events()).events
        assert (event.kind, event.reason, event.count) == ("limit", "memory", 1)
        assert (event.sandbox_id, event.exec_id) == (sandbox.id, hog.exec_id)
        assert before - 1 <= event.at <= time.time() + 1


async def test_a_fork_bomb_is_one_event(client: dsec.DSecClient) -> None:
    """However many forks are refused, it is one event with their number."""
    async with client.sandbox(IMAGE, pids=16) as sandbox:
        bomb = await sandbox.exec("python3", "-c", FORKS, timeout_s=60)
        assert list(bomb.quota_hits) == ["pids"]
        ((reason, _, exec_id, count),) = await limits(sandbox)
        assert (reason, exec_id) == ("pids", bomb.exec_id) and count >= 150


async def test_disk(client: dsec.DSecClient) -> None:
    """That the disk has become full is one event, again only after there was room."""
    async with client.sandbox(IMAGE, disk_mib=48) as sandbox:
        first = await sandbox.run_shell("cat /dev/zero > /big")
        await sandbox.run_shell("cat /dev/zero >> /big")
        await sandbox.run_shell("rm /big && sync")
        third = await sandbox.run_shell("cat /dev/zero > /big")
        assert [(reason, exec_id) for reason, _, exec_id, _ in await limits(sandbox)] == [
            ("disk", first.exec_id),
            ("disk", third.exec_id),
        ]


async def test_time(client: dsec.DSecClient) -> None:
    """An exec whose time is over is an event; one that is cancelled is none."""
    async with client.sandbox(IMAGE) as sandbox:
        slow = await sandbox.exec("sleep", "60", timeout_s=0.2)
        other = await sandbox.spawn("sleep", "60")
        await other.kill()
        assert await limits(sandbox) == [("time", None, slow.exec_id, 1)]


async def test_output(client: dsec.DSecClient) -> None:
    """More output than is kept is an event of its stream."""
    async with client.sandbox(IMAGE) as sandbox:
        loud = await sandbox.run_shell("head -c 100M /dev/zero >&2; echo quiet")
        assert await limits(sandbox) == [("output", "stderr", loud.exec_id, 1)]


async def test_a_session_names_its_run(client: dsec.DSecClient) -> None:
    """What a run of a session meets is that run's."""
    async with client.sandbox(IMAGE, memory_mib=96) as sandbox, sandbox.open_session() as session:
        await session.run("true")
        hog = await session.run("python3 -c 'b = bytearray(300 << 20)'")
        assert await limits(sandbox) == [("memory", None, hog.exec_id, 1)]


async def test_events_outlive_the_runtime_and_the_sandbox(store: Path) -> None:
    """A runtime that begins anew has them and notes nothing twice; so has the record of a sandbox that has ended."""
    with private_node(store) as own:
        async with own.client() as client:
            async with client.sandbox(IMAGE, memory_mib=96) as sandbox:
                await sandbox.exec("python3", "-c", "b = bytearray(300 << 20)")
                before = await sandbox.events()
                own.kill("runtime")
                await sandbox.exec("true")
                assert await sandbox.events() == before
                assert await sandbox.events(before.next) == dsec.AuditEvents(events=[], next=before.next)
            ended = await sandbox.events()
            assert (ended.events, ended.next) == (before.events, before.next)


async def test_what_was_left_in_the_background(client: dsec.DSecClient) -> None:
    """Kills among what an exec has left behind are seen at the latest when the sandbox ends."""
    left = "mkfifo /go /done; (read x < /go; python3 -c 'b = bytearray(300 << 20)'; echo > /done) > /dev/null 2>&1 &"
    async with client.sandbox(IMAGE, memory_mib=96) as sandbox:
        await sandbox.run_shell(left)
        await sandbox.run_shell("echo > /go; read x < /done", timeout_s=60)
    assert [(reason, count) for reason, _, _, count in await limits(sandbox)] == [("memory", 1)]


async def test_counters(client: dsec.DSecClient, node: RunningNode) -> None:
    """The node counts all events by kind and reason."""
    before = node.stats()["audit"].get("limit time", 0)
    async with client.sandbox(IMAGE) as sandbox:
        await sandbox.exec("sleep", "60", timeout_s=0.1)
    assert node.stats()["audit"]["limit time"] == before + 1
