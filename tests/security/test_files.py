"""File operations, and the look-up of users, against a sandbox that lays traps for them."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import pytest

import dsec

from .inside import python

pytestmark = [pytest.mark.node, pytest.mark.anyio]

TRAPS = """
mkdir /h; cd /h
mkfifo fifo
python3 -c "import socket; socket.socket(socket.AF_UNIX).bind('/h/socket')"
ln -s /proc/self/mem mem; ln -s /proc/self/exe exe; ln -s /proc/self/root/etc/passwd root; ln -s /proc/self/fd/1 out
ln -s /proc/self/environ environ; ln -s /proc/self/cwd/x cwd; ln -s /proc/1/root/etc/passwd init
ln -s /proc/self/attr/current attr; ln -s /dev/zero zero; ln -s /dev/tty tty; ln -s loop loop; ln -s /h/fifo to-fifo
"""
TRAPPED = [
    "fifo",
    "socket",
    "mem",
    "exe",
    "root",
    "out",
    "environ",
    "cwd",
    "init",
    "attr",
    "zero",
    "tty",
    "loop",
    "to-fifo",
]
OUT_OF_BOUNDS = [
    "/proc/self/mem",
    "/proc/1/mem",
    "/proc/self/environ",
    "/proc/self/maps",
    "/proc/kcore",
    "/dev/null",
    "/dev/stdin",
    "/dev/fd/0",
    "/proc/sys/kernel/core_pattern",
    "/proc/sysrq-trigger",
    "/proc/self/oom_score_adj",
    "/proc/self/fd/3",
]


async def test_traps_for_files(sandbox: dsec.Sandbox) -> None:
    """Reading and writing FIFOs, sockets, devices, magic links and the helper's own memory: refused, at once."""
    # Forked code, as the user, opens without waiting and without magic links: regular files only, none of /proc.
    await sandbox.run_shell(TRAPS, check=True)
    began = time.monotonic()
    for path in [f"/h/{name}" for name in TRAPPED] + OUT_OF_BOUNDS:
        with pytest.raises(dsec.FileError):
            await sandbox.read(path, limit=100)
        with pytest.raises(dsec.FileError):
            await sandbox.write(path, "x" if not path.endswith("cwd") else "y")
    assert time.monotonic() - began < 20
    for path in ("/dev/new", "/sys/new", "/proc/new"):
        with pytest.raises(dsec.FileError):
            await sandbox.write(path, "x")


async def test_links_stay_inside(sandbox: dsec.Sandbox) -> None:
    """Links with any number of dots end in the sandbox's own root."""
    # The helper has entered the sandbox's mount namespace: the host's files are not below its root.
    await sandbox.run_shell("ln -s ../../../../../../../../etc/hostname /up; ln -s / /top", check=True)
    name = (await python(sandbox, "import os; print(os.uname().nodename)")).encode()
    assert await sandbox.read("/up") == await sandbox.read("/top/../../etc/hostname") == name + b"\n"


async def test_links_that_race(sandbox: dsec.Sandbox) -> None:
    """A directory and a link to /proc/self keep changing places under reads and writes."""
    # What was opened is looked at, not what its path meant before; and magic links are never followed.
    flip = (
        "import os\nos.mkdir('/d'); open('/d/environ', 'w').write('mine'); os.symlink('/proc/self', '/l')\n"
        "import ctypes; libc = ctypes.CDLL(None)\nprint('ready', flush=True)\n"
        "while 1: libc.renameat2(-100, b'/d', -100, b'/l', 2)"
    )
    program = await sandbox.spawn("python3", "-c", flip)
    async for _ in program.lines():
        break
    read = 0
    for _ in range(60):
        with suppress(dsec.FileError):
            assert await sandbox.read("/d/environ") in (b"mine", b"new")
            read += 1
        with suppress(dsec.FileError):
            await sandbox.write("/d/environ", "new")
    assert read > 0
    await program.kill()


async def test_operations_are_the_users(sandbox: dsec.Sandbox) -> None:
    """A normal user cannot read, write or replace by a file operation what it may not by a program."""
    await sandbox.run_shell(
        "mkdir /p; echo secret > /p/x; chmod 600 /p/x; chmod 755 /p; ln -s /p/x /tmp/l", check=True
    )
    for path in ("/p/x", "/tmp/l", "/etc/shadow"):
        with pytest.raises(dsec.FileDenied):
            await sandbox.read(path, user="1000:1000")
        with pytest.raises(dsec.FileDenied):
            await sandbox.write(path, "mine", user="1000:1000")
    with pytest.raises(dsec.FileDenied):
        await sandbox.write("/p/new", "mine", user="1000:1000")
    assert await sandbox.read("/p/x") == b"secret\n"


@pytest.mark.parametrize(
    "trap",
    [
        "mkfifo /etc/passwd",
        "ln -s /dev/zero /etc/passwd",
        "ln -s /proc/self/mem /etc/passwd",
        "mkdir /etc/passwd",
        "ln -s passwd /etc/passwd",
        "truncate -s 10G /etc/passwd",
        "ln -s /dev/tty /etc/passwd",
        "head -c 9000000 /dev/zero | tr '\\0' a > /etc/passwd",
    ],
)
async def test_traps_for_users(sandbox: dsec.Sandbox, trap: str) -> None:
    """/etc/passwd as a FIFO, a device, memory, a directory, a loop, endless: an error at once, root works on."""
    # Looked up by the entering child itself, without waiting, from a regular file of bounded size.
    await sandbox.run_shell(f"rm /etc/passwd; {trap}", check=True)
    began = time.monotonic()
    with pytest.raises(dsec.InvalidArgument):
        await sandbox.exec("true", user="nobody")
    with pytest.raises(dsec.InvalidArgument):
        await sandbox.read("/etc/hostname", user="nobody")
    assert time.monotonic() - began < 5
    assert (await sandbox.exec("true", user="root")).exit_code == 0


async def test_users_outside_the_range(sandbox: dsec.Sandbox) -> None:
    """IDs above 65,535, negative ones, overflowing ones, by number and by a forged passwd."""
    # Checked against the range before any ID is taken; the kernel has no mapping for others.
    forged = "".join(
        f"u{n}:x:{n}:{n}::/:/bin/sh\n" for n in ("-1", "65536", "4294967295", "4294967296", "1610612736")
    )
    await sandbox.write("/etc/passwd", forged)
    names = [line.split(":")[0] for line in forged.splitlines()]
    numbers = ["-1", "65536", "4294967295", "4294967296", "0:65536", "65536:0", "1610612736", "99999999999999999999"]
    for user in names + numbers + ["0:0:0", "root\n", "a/b", "$(id)"]:
        with pytest.raises(dsec.InvalidArgument):
            await sandbox.exec("id", user=user)


async def test_node_made_files_are_not_trusted(sandbox: dsec.Sandbox) -> None:
    """A sandbox that rewrites /etc/hosts, and cannot replace or unmount it, changes nothing outside itself."""
    await sandbox.write("/tmp/hosts", "6.6.6.6 localhost\n")
    result = await sandbox.run_shell(
        "cat /tmp/hosts > /etc/hosts; mv /tmp/hosts /etc/hosts; rm /etc/hosts; ls -i /etc/hosts"
    )
    assert "busy" in result.stderr.lower()
    assert (await sandbox.exec("true")).exit_code == 0


async def test_big_offsets(sandbox: dsec.Sandbox) -> None:
    """A sparse file of 100 TiB, and offsets to the end of numbers: bytes or an error, no wait and no memory."""
    await sandbox.exec("truncate", "-s", "100T", "/big", check=True)
    assert await asyncio.wait_for(sandbox.read("/big", offset=99 << 40, limit=10), 5) == bytes(10)
    with pytest.raises(dsec.DSecError):
        await asyncio.wait_for(sandbox.read("/big", offset=2**63 - 1, limit=10), 5)
