"""Terminals: what is inside sees its own, and nothing of who holds the other end."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

import dsec
from dsec.testing.node import RunningNode

from .inside import IMAGE, USERS

pytestmark = [pytest.mark.node, pytest.mark.anyio]

SNOOP = Path(__file__).with_name("snoop.c")
SNOOP_S = 3.0
SIZE = dsec.Pty(24, 80)


async def shown(sandbox: dsec.Sandbox, script: str, user: str = "root") -> list[str]:
    """What a script shows at a terminal, by lines."""
    running = await sandbox.spawn(shell=script, pty=SIZE, user=user)
    return (await running.wait()).output.replace("\r\n", "\n").splitlines()


async def visitors(sandbox: dsec.Sandbox, user: str) -> None:
    """Programs at terminals, one after the other, until cancelled."""
    while True:
        running = await sandbox.spawn("true", pty=SIZE, user=user)
        await running.wait()


async def test_masters_are_never_seen(sandbox: dsec.Sandbox) -> None:
    """Root inside opens whoever comes in at a terminal, by pidfd_getfd and /proc: no master, nothing of the host."""
    await sandbox.write("/tmp/snoop.c", SNOOP.read_bytes())
    await sandbox.exec("gcc", "-O2", "-w", "-o", "/usr/bin/snoop", "/tmp/snoop.c", check=True)
    snoop = await sandbox.spawn("snoop", str(SNOOP_S), user="root")
    busy = [asyncio.create_task(visitors(sandbox, each)) for each in (*USERS, *USERS)]
    result = await snoop.wait()
    for task in busy:
        task.cancel()
    await asyncio.gather(*busy, return_exceptions=True)
    seen = [tuple(line.split(" ", 1)) for line in result.stdout.splitlines() if " " in line]
    numbers = {kind: int(what) for kind, what in seen if kind in ("hits", "closed", "top")}
    assert numbers["closed"] > 20, f"nobody was caught entering: {numbers}"
    assert not [what for _, what in seen if "ptmx" in what]
    own = ("/usr/bin/", "/usr/lib/", "/etc/ld.so.cache", "/dev/null", "/dev/pts/", "/dev/tty", "pipe:", "/proc/")
    leaks = {
        (kind, what)
        for kind, what in seen
        if kind not in numbers and not what.startswith(own) and not (kind in ("root", "cwd") and what == "/")
    }
    assert leaks == set()


@pytest.mark.parametrize("user", USERS)
async def test_descriptors_at_a_terminal(sandbox: dsec.Sandbox, user: str) -> None:
    """A program has its terminal three times and nothing else open."""
    look = (
        "import os\nfor each in sorted(os.listdir('/proc/self/fd'), key=int):\n"
        "  if os.path.exists(f'/proc/self/fd/{each}'): print(each, os.readlink(f'/proc/self/fd/{each}'))\n"
        "print(os.ttyname(0))"
    )
    running = await sandbox.spawn("python3", "-c", look, pty=SIZE, user=user)
    *lines, name = (await running.wait()).output.split("\r\n")[:-1]
    assert lines == [f"{each} {name}" for each in range(3)]


async def test_terminals_of_others(sandbox: dsec.Sandbox) -> None:
    """A user can neither read nor write another's terminal, and nobody types into one (TIOCSTI)."""
    theirs = await sandbox.spawn(shell="tty; cat", pty=SIZE, user="root")
    name = (await anext(theirs.lines())).strip()
    for act in (f"cat {name}", f"echo x > {name}", f"stty -F {name}"):
        assert not (await sandbox.run_shell(act, user="nobody")).ok
    push = (
        "import fcntl, termios\n"
        "try: fcntl.ioctl(0, termios.TIOCSTI, b'x'); print('typed')\n"
        "except OSError as error: print(error.errno)"
    )
    running = await sandbox.spawn("python3", "-c", push, pty=SIZE)
    assert (await running.wait()).output.strip() == "1"
    await theirs.kill(grace_s=0)


async def test_every_sandbox_has_its_own(client: dsec.DSecClient, sandbox: dsec.Sandbox) -> None:
    """Two sandboxes give their first terminals the same name; neither sees the other's, or the node's."""
    first = await sandbox.spawn(shell="tty; cat", pty=SIZE)
    async with client.sandbox(IMAGE, memory_mib=256) as other:
        assert (await anext(first.lines())).strip() == "/dev/pts/0"
        assert (await other.run_shell("ls /dev/pts")).stdout == "ptmx\n"
        assert await shown(other, "tty; ls -1 /dev/pts") == ["/dev/pts/0", "0", "ptmx"]
    with suppress(dsec.SandboxGone):
        await first.kill(grace_s=0)


async def test_a_sandbox_does_not_take_all(node: RunningNode, client: dsec.DSecClient, sandbox: dsec.Sandbox) -> None:
    """One that opens all the terminals it can has a limit of its own: its neighbour still gets one."""
    hoard = (
        "import os, sys, time\n"
        "held = []\n"
        "try:\n  while len(held) < 5000: held.append(os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY))\n"
        "except OSError as error: print(len(held), error.errno, flush=True)\n"
        "time.sleep(1000)"
    )
    hoarder = await sandbox.spawn("python3", "-c", hoard)
    count, errno = (await anext(hoarder.lines())).split()
    assert (int(count), errno) == (128, "28")
    with pytest.raises(dsec.CapacityError):
        await sandbox.spawn("true", pty=SIZE)
    async with client.sandbox(IMAGE, memory_mib=256) as other:
        assert await shown(other, "echo fine") == ["fine"]
    await hoarder.kill(grace_s=0)
