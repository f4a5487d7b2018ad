"""Transfers while parts of the node die: exact all the same, and nothing is left."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import dsec
from dsec.testing.node import RunningNode, private_node, wait_until

pytestmark = [pytest.mark.node, pytest.mark.anyio]
SIZE = 96 << 20


@pytest.fixture(scope="module")
def own_node(store: Path) -> Iterator[RunningNode]:
    """A node whose parts may be killed."""
    with private_node(store) as running:
        yield running


@pytest.fixture
async def sandbox(own_node: RunningNode) -> AsyncIterator[dsec.Sandbox]:
    """A sandbox on it."""
    async with own_node.client() as client, client.sandbox("dsec/debian:12") as made:
        yield made


@pytest.fixture
def big(tmp_path: Path) -> Path:
    """A file that takes longer than a signal."""
    path = tmp_path / "big"
    path.write_bytes(os.urandom(SIZE))
    return path


def _once_at(offset: int, act: Callable[[], None]) -> Callable[[int], None]:
    """A progress that acts once, in the transfer's own thread: the transfer is under way then, whatever the speed."""
    done: list[bool] = []

    def progress(arrived: int) -> None:
        if arrived >= offset and not done:
            done.append(True)
            act()

    return progress


async def _same(sandbox: dsec.Sandbox, path: Path) -> None:
    ours = (await asyncio.to_thread(subprocess.check_output, ["sha256sum", str(path)])).split()[0].decode()
    theirs = (await sandbox.run_shell("sha256sum /big")).stdout.split()[0]
    assert ours == theirs


@pytest.mark.parametrize("part", ["apiserver", "edge", "runtime"])
async def test_an_upload_survives(own_node: RunningNode, sandbox: dsec.Sandbox, big: Path, part: str) -> None:
    """A part dies in the middle: the same bytes arrive, no draft and no process is left."""
    sent = await sandbox.files.upload(big, "/big", progress=_once_at(SIZE // 3, lambda: own_node.kill(part)))
    assert (sent.bytes, sent.entries) == (SIZE, 1)
    await _same(sandbox, big)
    assert (await sandbox.run_shell("ls -A / | grep ^.dsec || true")).stdout == ""


@pytest.mark.parametrize("part", ["apiserver", "edge", "runtime"])
async def test_a_download_survives(own_node: RunningNode, sandbox: dsec.Sandbox, tmp_path: Path, part: str) -> None:
    """A part dies in the middle: the same bytes come, and nothing temporary stays here."""
    await sandbox.run_shell(f"head -c {SIZE} /dev/urandom > /big", check=True)
    back = await sandbox.files.download(
        "/big", tmp_path / "back", progress=_once_at(SIZE // 3, lambda: own_node.kill(part))
    )
    assert (back.bytes, back.entries) == (SIZE, 1)
    await _same(sandbox, tmp_path / "back")
    assert os.listdir(tmp_path) == ["back"]  # noqa: PTH208


async def test_the_runtimes_death_leaves_nothing(own_node: RunningNode, sandbox: dsec.Sandbox, big: Path) -> None:
    """Killed in the middle of a tree, and the client gone too: whole files or none, no temporary one, no process."""
    killed = asyncio.Event()
    loop = asyncio.get_running_loop()

    def kill() -> None:
        own_node.kill("runtime")
        loop.call_soon_threadsafe(killed.set)

    task = asyncio.create_task(sandbox.files.upload(big.parent, "/tree", progress=_once_at(SIZE // 3, kill)))
    await killed.wait()
    task.cancel()
    with suppress(asyncio.CancelledError, dsec.DSecError):
        await task
    look = "find /tree -name '.dsec-*' -o -size -96M -type f; ls /proc | grep -c '^[0-9]'"
    assert (await sandbox.run_shell(look)).stdout in ("3\n", "4\n")
    with pytest.raises(FileNotFoundError):
        await sandbox.read("/none")


async def test_a_dead_client_leaves_nothing(own_node: RunningNode, sandbox: dsec.Sandbox, big: Path) -> None:
    """SIGKILL of the client: the transfer waits for half a minute, then it is as if it had never been."""
    await sandbox.write("/big", "old")
    words = [sys.executable, "-c", _FEEDER, sandbox.id, str(big)]
    client = await asyncio.create_subprocess_exec(*words, env=own_node.environment, stdout=subprocess.PIPE)
    assert client.stdout is not None
    assert await client.stdout.readline() == b"moving\n"
    client.kill()
    await client.wait()
    await asyncio.to_thread(
        wait_until, lambda: own_node.sandbox_processes() == set(_init(own_node)), "the helper has ended", timeout_s=60
    )
    assert (await sandbox.run_shell("cat /big; ls -A / | grep ^.dsec || true")).stdout == "old"


_FEEDER = """
import asyncio, sys, threading, dsec

async def main():
    async with dsec.DSecClient() as client:
        told = []
        def progress(arrived):
            if arrived > 1 << 20 and not told:
                told.append(print("moving", flush=True))
                threading.Event().wait()
        await client.attach(sys.argv[1]).files.upload(sys.argv[2], "/big", progress=progress)

asyncio.run(main())
"""


def _init(node: RunningNode) -> list[int]:
    """The sandbox's init: the first process, and after all else has ended the only one."""
    return sorted(node.sandbox_processes())[:1]
