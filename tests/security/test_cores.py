"""Programs that crash: the machine's own handler of core dumps never sees one of a sandbox."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import anyio
import pytest

import dsec

from .inside import USERS, attempts

pytestmark = [pytest.mark.node, pytest.mark.anyio]

PATTERN = Path("/proc/sys/kernel/core_pattern")
WAYS = (
    "",
    "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))",
    "call(302, 0, 4, struct.pack('QQ', 0, 1), 0)",
    "call(160, 4, struct.pack('QQ', 0, 0))",
)
"""Before a crash: nothing, and every way to change the limit of cores."""


@pytest.fixture
def handled(tmp_path: Path) -> Iterator[IO[str]]:
    """A handler for as long as the test runs, and the names of what crashed, a line each."""
    pipe, handler, before = tmp_path / "crashes", tmp_path / "handler", PATTERN.read_text()
    os.mkfifo(pipe)
    handler.write_text(f'#!/bin/sh\necho "$1" > {pipe}\ncat > /dev/null\n')
    handler.chmod(0o755)
    # Read and written, so that no handler waits for a reader.
    with os.fdopen(os.open(pipe, os.O_RDWR), encoding="utf-8") as crashes:
        PATTERN.write_text(f"|{handler} %e")
        try:
            yield crashes
        finally:
            PATTERN.write_text(before)


def names(crashes: IO[str], last: str) -> list[str]:
    """What crashed, up to this one."""
    found: list[str] = []
    while last not in found:
        found.append(crashes.readline().strip())
    return found


@pytest.mark.parametrize("user", USERS)
async def test_no_core_reaches_the_machine(sandbox: dsec.Sandbox, handled: IO[str], user: str) -> None:
    """Crashes as they come, after every way to change the limit of cores; the handler works all the time."""
    # RLIMIT_CORE of 1 stops handlers, 0 would not; the filter lets nobody change it.
    for index, before in enumerate(WAYS):
        assert await crashed(sandbox, f"inside{index}", before, user) == {"limit": [1, 1], "crash": 11}
    assert not [name for name in await handled_until(handled) if name.startswith("inside")]


async def crashed(sandbox: dsec.Sandbox, name: str, before: str, user: str) -> dict[str, Any]:
    """Let a process of this name crash after this; what limit of cores it had, and how it ended."""
    program = f"""
{before}
found["limit"] = list(resource.getrlimit(resource.RLIMIT_CORE))
child = os.fork()
if child == 0:
    open("/proc/self/comm", "w").write("{name}")
    ctypes.CDLL(None).prctl(4, 1)
    os.kill(os.getpid(), 11)
found["crash"] = os.waitpid(child, 0)[1]
"""
    return await attempts(sandbox, program, user)


async def handled_until(handled: IO[str]) -> list[str]:
    """What the handler has seen so far: handlers begin in the order of the crashes, and the last is one outside."""
    code = "import ctypes, os, resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); "
    crash = f"{code}open('/proc/self/comm', 'w').write('outside'); os.kill(os.getpid(), 11)"
    await anyio.run_process(["python3", "-c", crash], check=False)
    return await anyio.to_thread.run_sync(names, handled, "outside")


async def test_limits_of_cores_can_be_said(sandbox: dsec.Sandbox) -> None:
    """`ulimit -c`, which scripts and profiles set, goes well, and other limits are still set for real."""
    said = await sandbox.run_shell("set -e; ulimit -c 0; ulimit -n 99; ulimit -n", check=True)
    assert said.stdout.strip() == "99"
