"""Processes that come in from outside, and the init: neither descriptors nor memory nor program leak."""

from __future__ import annotations

import asyncio
import os
import re
from contextlib import suppress
from pathlib import Path

import pytest

import dsec
from dsec.node.binaries import find_binaries
from dsec.testing.node import RunningNode

from .inside import USERS, attempts, python

pytestmark = [pytest.mark.node, pytest.mark.anyio]

SNOOP = Path(__file__).with_name("snoop.c")
SNOOP_S = 3.0


async def visitors(sandbox: dsec.Sandbox, user: str) -> None:
    """Execs and file operations, one after the other, until cancelled."""
    while True:
        await sandbox.exec("true", user=user)
        await sandbox.exec("true", user="nobody")
        await sandbox.read("/etc/passwd", user=user)
        await sandbox.write("/tmp/visitor", b"x" * 100_000, user="root")


async def snooped(sandbox: dsec.Sandbox, user: str) -> set[tuple[str, str]]:
    """What of the host is seen of whoever enters, by pidfd_getfd, /proc/PID/{exe,root,cwd,fd,maps} and ptrace."""
    await sandbox.write("/tmp/snoop.c", SNOOP.read_bytes())
    await sandbox.exec("gcc", "-O2", "-w", "-o", "/usr/bin/snoop", "/tmp/snoop.c", check=True)
    snoop = await sandbox.spawn("snoop", str(SNOOP_S), user=user)
    busy = [asyncio.create_task(visitors(sandbox, each)) for each in USERS]
    result = await snoop.wait()
    for task in busy:
        task.cancel()
    await asyncio.gather(*busy, return_exceptions=True)
    seen = {(kind, what) for kind, _, what in (line.partition(" ") for line in result.stdout.splitlines()) if what}
    numbers = {kind: int(what) for kind, what in seen if kind in ("hits", "closed", "top")}
    assert numbers["closed"] > 100 and numbers["top"] > 20, f"nobody was caught entering: {numbers}"
    assert "/usr/bin/true" in {what for _, what in seen}, "the snoop sees nothing at all"
    own = ("/usr/bin/", "/usr/lib/", "/etc/ld.so.cache", "/dev/null", "pipe:", "/proc/")
    return {
        (kind, what)
        for kind, what in seen
        if kind not in numbers and not what.startswith(own) and not (kind in ("root", "cwd") and what == "/")
    }


@pytest.mark.parametrize("user", USERS)
async def test_visitors_are_closed(sandbox: dsec.Sandbox, user: str) -> None:
    """Whoever enters is opened thousands of times: only the programs of the sandbox, after their exec, are ever seen,
    no program, file or memory of the host.
    """
    # close_range, then non-dumpable, then setns: no ptrace access without CAP_SYS_PTRACE, which nobody inside has.
    assert await snooped(sandbox, user) == set()


INIT = """
for name in ("mem", "maps", "environ", "exe", "cwd", "root", "fd", "stack", "ns/mnt"):
    attempt(name, lambda: os.stat(f"/proc/1/{name}") and "seen")
handle = call(434, 1, 0)
for number in range(16):
    attempt(f"fd {number}", call, 438, handle, number, 0)
attempt("attach", call, 101, 16, 1, 0, 0)
attempt("seize", call, 101, 0x4206, 1, 0, 0)
there = struct.pack("QQ", 0x400000, 8)
here = struct.pack("QQ", ctypes.addressof(buffer), 8)
attempt("read", call, 310, 1, here, 1, there, 1, 0)
attempt("write", call, 311, 1, here, 1, there, 1, 0)
for number in (1, 2, 9, 11, 15, 19):
    with __import__("contextlib").suppress(PermissionError):
        os.kill(1, number)
"""


@pytest.mark.parametrize("user", USERS)
async def test_init_is_closed(sandbox: dsec.Sandbox, user: str) -> None:
    """Reading, tracing, robbing and killing PID 1, and writing its memory."""
    # init is non-dumpable and deaf to its own namespace's signals; hidepid hides what may not be traced.
    found = await attempts(sandbox, INIT, user)
    assert set(found.values()) <= {"EPERM", "EACCES", "ENOENT"}, found
    assert (await sandbox.exec("true")).exit_code == 0


async def test_init_cannot_be_read(sandbox: dsec.Sandbox, node: RunningNode) -> None:
    """The init's program is nobody's to read, which keeps it closed before it has closed itself."""
    (init,) = node.sandbox_processes()
    program = Path(f"/proc/{init}/exe")
    assert (await asyncio.to_thread(program.stat)).st_mode & 0o777 == 0o111


async def descriptors(sandbox: dsec.Sandbox, user: str) -> set[int]:
    """The descriptors that a program finds open."""
    result = await sandbox.exec("find", "/proc/self/fd", "-type", "l", "-printf", "%f %l\n", user=user)
    numbers = {int(line.split()[0]): line.split()[1] for line in result.stdout.splitlines()}
    opened_by_find = {number for number, target in numbers.items() if target.startswith(("/proc", "/"))}
    return set(numbers) - opened_by_find | {0}


async def test_exec_gets_three_descriptors(sandbox: dsec.Sandbox) -> None:
    """A program finds stdin, stdout and stderr, and no other descriptor, whoever runs it and however."""
    # Everything else is marked close-on-exec just before the exec, whatever its number is.
    for user in (*USERS, "nobody"):
        assert await descriptors(sandbox, user) == {0, 1, 2}
    program = await sandbox.spawn("sh", "-c", "cat > /dev/null; ls /proc/$$/fd", stdin=dsec.PIPE)
    await program.stdin.close()
    assert (await program.wait()).stdout.split() == ["0", "1", "2"]


@pytest.mark.parametrize(
    "interpreter",
    ["/proc/self/exe", "/proc/thread-self/exe", "/proc/self/../self/exe", "/link"],
)
async def test_keepers_program_does_not_run_inside(sandbox: dsec.Sandbox, interpreter: str) -> None:
    """A script whose interpreter is the entering process's own program, which is the keeper's."""
    # The node runs a copy of the keeper that only the host's root may execute (or read).
    await sandbox.exec("ln", "-s", "/proc/self/exe", "/link", check=True)
    await sandbox.write("/evil", f"#!{interpreter} --help\n", mode=0o755)
    for user in USERS:
        with pytest.raises((dsec.NotExecutable, dsec.ExecutableNotFound)):
            await sandbox.exec("/evil", user=user)


async def climbed(sandbox: dsec.Sandbox) -> list[int]:
    """The descriptors of the entering process from which a program of the host is reached and executed."""
    keeper = find_binaries().keeper.resolve()
    assert keeper.is_file()
    found = []
    for number in range(64):
        await sandbox.write("/evil", f"#!/proc/self/fd/{number}/{'../' * 12}{keeper.as_posix()[1:]}\n", mode=0o755)
        with suppress(dsec.NotExecutable, dsec.ExecutableNotFound):
            await sandbox.exec("/evil")
            found.append(number)
    return found


async def test_descriptors_are_no_interpreters(sandbox: dsec.Sandbox) -> None:
    """A script whose interpreter starts at a descriptor of the entering process and climbs to the host's files."""
    # No directory of the host is among the descriptors that are kept; the rest is closed before anything is entered.
    assert await climbed(sandbox) == []


async def magic_places(sandbox: dsec.Sandbox) -> list[str]:
    """The magic links of the entering process that can be a program's working directory."""
    links = ("/proc/self/root", "/proc/self/cwd", "/proc/self/fd/3", "/proc/1/root", "/proc/self/task/1/root")
    found = []
    for directory in links:
        with suppress(dsec.InvalidArgument):
            await sandbox.exec("true", cwd=directory)
            found.append(directory)
    return found


async def test_magic_links_are_no_places(sandbox: dsec.Sandbox) -> None:
    """Programs and working directories that lead through /proc/self/{exe,root,cwd,fd} of the entering process."""
    # openat2 with RESOLVE_NO_MAGICLINKS.
    assert await magic_places(sandbox) == []
    for program in ("/proc/self/exe", "/proc/self/fd/3", "/proc/self/root/usr/bin/true", "/proc/self/fd/0"):
        with pytest.raises((dsec.NotExecutable, dsec.ExecutableNotFound)):
            await sandbox.exec(program)


async def test_racing_links_lead_nowhere(sandbox: dsec.Sandbox) -> None:
    """A link that flips between a program and /proc/self/exe while it is executed, 100 times."""
    # What is checked and what is executed may differ; what is executed is still closed to the sandbox.
    flip = (
        "import os\nwhile 1:\n for to in ('/usr/bin/true', '/proc/self/exe'):\n"
        "  os.symlink(to, '/n'); os.rename('/n', '/l')"
    )
    program = await sandbox.spawn("python3", "-c", flip)
    for _ in range(100):
        with suppress(dsec.NotExecutable, dsec.ExecutableNotFound):
            result = await sandbox.exec("/l", "--help")
            assert "keeper" not in result.stdout + result.stderr
    await program.kill()


async def test_host_binary_cannot_be_written(sandbox: dsec.Sandbox, node: RunningNode) -> None:
    """Programs keep trying to open the executables of all processes for writing while others enter."""
    # There is never a host executable to be opened; and its owner is not mapped.
    binaries = find_binaries()
    before = [
        (path, path.stat().st_mtime_ns, path.stat().st_size) for path in (binaries.keeper, node.paths.keeper_program)
    ]
    writer = (
        "import os, glob\nwhile 1:\n for path in glob.glob('/proc/[0-9]*/exe'):\n  try:\n"
        "   if not os.readlink(path).startswith('/usr/bin/'): print('host', os.readlink(path), flush=True)\n"
        "   os.close(os.open(path, os.O_WRONLY)); print('open', flush=True)\n  except OSError: pass"
    )
    program = await sandbox.spawn("python3", "-c", writer)
    for _ in range(30):
        await sandbox.exec("true")
        await sandbox.read("/etc/hostname")
    await program.kill()
    assert (await program.wait()).stdout == ""
    assert [(path, path.stat().st_mtime_ns, path.stat().st_size) for path, *_ in before] == before
    assert node.paths.keeper_program.stat().st_mode & 0o777 == 0o700


async def test_environment_is_the_callers(sandbox: dsec.Sandbox, node: RunningNode) -> None:
    """Nothing of the node's processes shows in environment, host name, mounts or limits of a program."""
    told = await python(
        sandbox,
        "import os\nprint(dict(os.environ), os.uname())\n"
        "for name in ('mountinfo', 'limits'): print(open(f'/proc/self/{name}').read())",
    )
    assert str(node.paths.root) not in told
    assert not re.search(rf"\b{re.escape(os.uname().nodename)}\b", told)
