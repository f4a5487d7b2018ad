"""What a stopped sandbox wrote, kept: opened in new ones, exact, as often as asked; gone in time without Python."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import dsec
from dsec.node.local_calls import RuntimeCalls
from dsec.testing.node import RunningNode, wait_until

from .conftest import IMAGE
from .test_cli_terminal import person

pytestmark = [pytest.mark.node, pytest.mark.anyio]

WROTE = """
set -e
echo kept > /root/note; chmod 600 /root/note; chown 33:33 /root/note
ln -s note /root/link; ln /root/note /root/hard
rm /etc/motd || true; rm -r /usr/share/doc
mkdir -p /etc/opt && echo new > /etc/opt/x
head -c 3000000 /dev/urandom > /root/random; sha256sum < /root/random > /root/sum
"""
LOOKS = """
set -e
cat /root/note /root/link /etc/opt/x; stat -c '%a %u %g %h' /root/note
test ! -e /usr/share/doc; sha256sum < /root/random | cmp - /root/sum
"""


def disks(node: RunningNode) -> list[str]:
    """The disks that the runtime keeps."""
    with RuntimeCalls(node.paths.runtime_socket) as runtime:
        return [str(one["sandbox_id"]) for one in runtime.call("disk.list", {})["disks"]]


@pytest.fixture(autouse=True)
async def no_disk_left(node: RunningNode, client: dsec.DSecClient) -> AsyncIterator[None]:
    """Each test's disks go with its tombstones."""
    yield
    async for info in client.find(state="stopped"):
        await client.attach(info.id).remove()
    assert disks(node) == []


async def kept(client: dsec.DSecClient, keep_s: float = 600, **fields: Any) -> str:
    """A sandbox that wrote and whose disk is kept."""
    sandbox = await client.sandbox(IMAGE, **fields)
    await sandbox.run_shell(WROTE, check=True)
    stopped = await sandbox.stop(keep="disk", keep_s=keep_s)
    assert stopped.kept_until is not None and stopped.kept_until > stopped.ended_at
    return sandbox.id


async def test_a_new_sandbox_on_a_kept_disk(client: dsec.DSecClient) -> None:
    """It has every change (deletions, links, modes, owners) and goes on from there; the kept one stays as it is."""
    old = await kept(client, env={"MINE": "1"}, workdir="/root")
    for _ in range(2):
        async with client.sandbox(IMAGE, from_disk=old) as sandbox:
            looked = await sandbox.run_shell(LOOKS, check=True)
            assert looked.stdout == "kept\nkept\nnew\n600 33 33 2\n"
            assert (await sandbox.run_shell("echo $MINE; pwd")).stdout == "1\n/root\n"
            info = await sandbox.info()
            assert info.from_disk == old
            await sandbox.run_shell("echo changed > /root/note; rm /etc/opt/x", check=True)


async def test_keeping_again(client: dsec.DSecClient) -> None:
    """A sandbox on a kept disk can be kept in turn: a chain of copies, also after the first is removed."""
    first = await kept(client)
    sandbox = await client.sandbox(IMAGE, from_disk=first)
    await sandbox.run_shell("echo second > /root/second", check=True)
    second = (await sandbox.stop(keep="disk", keep_s=600)).id
    await client.attach(first).remove()
    async with client.sandbox(IMAGE, from_disk=second) as third:
        assert (await third.run_shell("cat /root/note /root/second", check=True)).stdout == "kept\nsecond\n"


async def test_it_counts_and_goes_in_time(node: RunningNode, client: dsec.DSecClient) -> None:
    """Admission counts what it takes; after keep_s it is removed, told, and its space comes back."""
    before = (await client.status()).requests["disk_bytes"]
    old = await kept(client, keep_s=2)
    counted = (await client.status()).requests["disk_bytes"] - before
    assert 3_000_000 <= counted < 64 << 20
    async with asyncio.timeout(30):
        while (await client.attach(old).info()).kept_until is not None:  # noqa: ASYNC110  (no event tells of it)
            await asyncio.sleep(0.02)
    assert disks(node) == []
    assert (await client.status()).requests["disk_bytes"] == before
    with pytest.raises(dsec.NotFound) as gone:
        await client.sandbox(IMAGE, from_disk=old)
    assert gone.value.phase == "disk"


async def test_it_goes_in_time_without_python(node: RunningNode, client: dsec.DSecClient) -> None:
    """The runtime removes it while apiserver and edge stand still; the edge then counts it no more."""
    old = await kept(client, keep_s=3)
    pids = [node.services()[part].pid for part in ("apiserver", "edge")]
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        await asyncio.to_thread(wait_until, lambda: disks(node) == [], "the disk goes", timeout_s=30)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    async with asyncio.timeout(30):
        while (await client.attach(old).info()).kept_until is not None:  # noqa: ASYNC110  (no event tells of it)
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("parts", [["runtime"], ["edge"], ["runtime", "edge"]])
async def test_it_survives_restarts(node: RunningNode, client: dsec.DSecClient, parts: list[str]) -> None:
    """A new runtime and a new edge still have it, count it, and open it."""
    old = await kept(client)
    for part in parts:
        node.kill(part)
    async with client.sandbox(IMAGE, from_disk=old) as sandbox:
        assert (await sandbox.run_shell(LOOKS)).ok
    assert disks(node) == [old]
    assert (await client.status()).requests["disk_bytes"] >= 3_000_000


async def test_what_is_refused(client: dsec.DSecClient) -> None:
    """A disk that is not kept, another image, a stop that comes too late to keep."""
    sandbox = await client.sandbox(IMAGE)
    await sandbox.stop()
    with pytest.raises(dsec.Conflict):
        await sandbox.stop(keep="disk")
    with pytest.raises(dsec.NotFound):
        await client.sandbox(IMAGE, from_disk=sandbox.id)
    old = await kept(client)
    with pytest.raises(dsec.InvalidArgument):
        await client.sandbox("other:1", from_disk=old)
    with pytest.raises(dsec.InvalidArgument):
        await client.attach(old).stop(keep="disk", keep_s=-1)


async def test_its_limit_holds_for_what_is_added(client: dsec.DSecClient) -> None:
    """disk_mib is for what the new sandbox writes; the kernel refuses more."""
    old = await kept(client)
    async with client.sandbox(IMAGE, from_disk=old, disk_mib=20) as sandbox:
        result = await sandbox.run_shell("head -c 15000000 /dev/urandom > /root/more && sync")
        assert result.ok
        result = await sandbox.run_shell("head -c 15000000 /dev/urandom > /root/too-much && sync")
        assert not result.ok and "disk" in result.quota_hits


def dsec_cli(node: RunningNode, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command line."""
    program = Path(sys.executable).with_name("dsec")
    return subprocess.run([str(program), *words], env=node.environment, capture_output=True, text=True, check=False)


async def test_a_shell_on_a_kept_disk(node: RunningNode, client: dsec.DSecClient) -> None:
    """dsec shell --from: a terminal in a new sandbox with what was written; left, that one stops; the disk stays."""
    old = await kept(client)

    def visit() -> int:
        with person(node, "shell", "--from", old) as somebody:
            somebody.type(b"cat /root/note; exit 7\r")
            somebody.sees("kept")
            return somebody.leaves_with()

    assert await asyncio.to_thread(visit) == 7
    assert disks(node) == [old]
    assert [info.id async for info in client.find()] == []
    both = await asyncio.to_thread(dsec_cli, node, "shell", "--from", old, "worker")
    assert both.returncode != 0 and "--from" in both.stderr


async def test_the_command_line(node: RunningNode, client: dsec.DSecClient) -> None:
    """stop --keep disk, create --from-disk without an image, story, logs and inspect of the stopped one."""
    sandbox = await client.sandbox(IMAGE, name="worker")
    await sandbox.run_shell("echo said; echo kept > /root/note", check=True)
    done = await asyncio.to_thread(dsec_cli, node, "stop", "--keep", "disk", "--keep-for", "10m", "worker")
    assert done.returncode == 0, done.stderr
    made = await asyncio.to_thread(dsec_cli, node, "create", "--from-disk", "worker")
    assert made.returncode == 0, made.stderr
    other = client.attach(made.stdout.strip())
    assert (await other.exec("cat", "/root/note")).stdout == "kept\n"
    await other.stop()
    story = json.loads((await asyncio.to_thread(dsec_cli, node, "story", "--json", sandbox.id)).stdout)
    assert [entry["state"] for entry in story["story"]] == ["creating", "running", "stopped"]
    table = (await asyncio.to_thread(dsec_cli, node, "story", "worker")).stdout
    assert "stopped" in table and "CAUSE" in table
    assert (await asyncio.to_thread(dsec_cli, node, "logs", sandbox.id)).stdout == "said\n"
    shown = json.loads((await asyncio.to_thread(dsec_cli, node, "inspect", sandbox.id)).stdout)
    assert shown["info"]["kept_until"] > shown["info"]["ended_at"]
