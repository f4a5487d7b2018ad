"""Refused calls to the kernel are on record, each with its exec; the errno is the same, and a flood slows itself."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

import dsec
from dsec.testing.node import private_node

from .inside import IMAGE, attempts

pytestmark = [pytest.mark.node, pytest.mark.anyio]

MOUNT = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
def mount():
    libc.mount(b"none", b"/mnt", b"tmpfs", 0, None)
    return errno.errorcode[ctypes.get_errno()]
"""


async def calls(sandbox: dsec.Sandbox) -> list[dsec.AuditEvent]:
    """Its events of refused calls."""
    return [each for each in (await sandbox.events()).events if each.kind == "syscall"]


async def test_every_call_of_note(sandbox: dsec.Sandbox) -> None:
    """Each is refused with EPERM, as ever, and is one event in plain words."""
    found = await attempts(
        sandbox,
        """
def clone(flag):
    pid = call(56, flag | 17, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    return pid
for name, arguments in dict(mount=(165, b"none", b"/mnt", b"tmpfs", 0, 0), umount2=(166, b"/proc/sys", 2),
        pivot_root=(155, b"/", b"/mnt"), fsopen=(430, b"tmpfs", 0), open_tree=(428, -100, b"/", 1),
        unshare=(272, 0x10000000), bpf=(321, 0, buffer, 72), perf_event_open=(298, buffer, 0, -1, -1, 0),
        io_uring_setup=(425, 8, buffer), userfaultfd=(323, 1), add_key=(248, b"user", b"x", b"y", 1, -3),
        keyctl=(250, 0, -3, 0), open_by_handle_at=(304, 3, buffer, 0), init_module=(175, buffer, 10, b""),
        kexec_load=(246, 0, 0, 0, 0), syslog=(103, 3, buffer, 4096)).items():
    attempt(name, call, *arguments)
attempt("setns", lambda: call(308, os.open("/proc/self/ns/mnt", 0), 0))
attempt("clone", clone, 0x20000)
for name, arguments in {"socket AF_VSOCK": (40, 1, 0), "socket AF_PACKET": (17, 3, 0), "socket SOCK_RAW": (2, 3, 1),
                        "socket AF_ALG": (38, 5, 0)}.items():
    attempt(name, lambda: socket.socket(*arguments).fileno())
for name, number in {"ioctl TIOCSTI": 0x5412, "ioctl of btrfs": 0x5000940E, "ioctl of XFS": 0xC0C0586D,
                     "ioctl FS_IOC_SETFLAGS": 0x40086602}.items():
    attempt(name, lambda: fcntl.ioctl(os.open("/", 0), number, bytes(1024)))
""",
        "root",
    )
    assert set(found.values()) == {"EPERM"}
    events = await calls(sandbox)
    assert Counter(each.name for each in events) == Counter(found.keys())
    assert all(each.count == 1 and each.exec_id for each in events)
    assert len({each.exec_id for each in events}) == 1
    reasons = {each.name: each.reason for each in events}
    assert reasons["mount"] == "mount" and reasons["clone"] == reasons["setns"] == "namespace"
    assert reasons["keyctl"] == "key" and reasons["socket AF_VSOCK"] == "socket" and reasons["bpf"] == "kernel"
    assert reasons["ioctl TIOCSTI"] == "terminal" and reasons["ioctl of btrfs"] == "extents"


async def test_users_and_children_are_seen_too(sandbox: dsec.Sandbox) -> None:
    """What a normal user's grandchild calls in a session of its own is the exec's."""
    # An exec's result waits for its own program alone, so that waits until nobody holds the pipe any more.
    program = (
        f"{MOUNT}\nuntil, held = os.pipe()\nif os.fork() == 0 and os.fork() == 0:\n os.setsid()\n print(mount())\n"
        "else:\n os.close(held)\n os.read(until, 1)\n"
    )
    result = await sandbox.exec("python3", "-c", program, user="1000:1000")
    assert result.stdout == "EPERM\n"
    assert [(each.name, each.exec_id) for each in await calls(sandbox)] == [("mount", result.exec_id)]


async def test_honest_programs_leave_no_event(sandbox: dsec.Sandbox) -> None:
    """Shells, threads, children, sockets and files are nothing of note."""
    program = """
import socket, subprocess, threading
thread = threading.Thread(target=lambda: None)
thread.start()
thread.join()
subprocess.run("id; ls -la /; cp /etc/passwd /tmp/x; ps > /dev/null", shell=True, check=True)
socket.socket().close()
socket.socketpair()
"""
    assert (await sandbox.exec("python3", "-c", program)).ok
    assert (await sandbox.events()).events == []


async def test_strict_tells_of_tracing(client: dsec.DSecClient) -> None:
    """What strict refuses besides is on record there, and goes on in the default."""
    program = "import ctypes; print(ctypes.CDLL(None).ptrace(0, 0, 0, 0))"
    for profile, names in (("strict", ["ptrace"]), ("default", [])):
        async with client.sandbox(IMAGE, profile=profile) as sandbox:
            await sandbox.exec("python3", "-c", program)
            assert [each.name for each in await calls(sandbox)] == names


async def test_a_session_names_its_run(sandbox: dsec.Sandbox) -> None:
    """In a session it is the run's."""
    async with sandbox.open_session() as session:
        await session.run("true")
        run = await session.run("umount /proc/sys")
        assert {(each.name, each.exec_id) for each in await calls(sandbox)} == {("umount2", run.exec_id)}


async def test_a_terminal_is_no_way_round(sandbox: dsec.Sandbox) -> None:
    """An exec with a terminal has a listener as well, and its terminal."""
    running = await sandbox.spawn(
        "python3", "-c", f"{MOUNT}\nprint(mount(), os.isatty(0))", pty=dsec.Pty(rows=24, cols=80)
    )
    assert (await running.wait()).stdout.split() == ["EPERM", "True"]
    assert [each.name for each in await calls(sandbox)] == ["mount"]


async def test_a_flood_slows_itself(client: dsec.DSecClient, sandbox: dsec.Sandbox) -> None:
    """Thousands of calls are a few events whose counts add up; whoever makes them waits, and nobody else does."""
    flood = f"""{MOUNT}
for _ in range(3):
    os.fork()
for _ in range(250):
    assert mount() == "EPERM"
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
"""
    running = await sandbox.spawn("python3", "-c", flood, timeout_s=120)
    async with client.sandbox(IMAGE) as other:
        assert (await other.exec("true")).ok
    result = await running.wait()
    assert result.ok and result.duration_s >= 4  # 2,000 calls, 400 of them at once, 200 in each second after that
    await sandbox.stop()
    events = await calls(sandbox)
    assert sum(each.count for each in events) == 2000
    assert len(events) <= 12 and {each.exec_id for each in events} == {result.exec_id}


async def test_only_the_latest_are_kept(sandbox: dsec.Sandbox) -> None:
    """Of more different events than are kept the latest are told, and how many are lost."""
    for _ in range(10):
        async with asyncio.TaskGroup() as tasks:
            for _ in range(30):
                tasks.create_task(sandbox.exec("umount", "/proc/sys"))
    found = await sandbox.events()
    total = int(found.next.split("-")[1])
    assert total >= 300 and len(found.events) == 256
    assert found.dropped == total - 256
    assert [each.number for each in found.events] == list(range(total - 256, total))
    await sandbox.stop()
    found = await sandbox.events()
    assert (len(found.events), found.dropped) == (64, int(found.next.split("-")[1]) - 64)


async def test_a_dead_runtime_lets_calls_wait(store: Path) -> None:
    """A call while there is no runtime waits for the next one, is refused as ever, and is on record."""
    program = f"{MOUNT}\nos.read(0, 1)\nprint(mount())"
    with private_node(store) as own:
        async with own.client() as client, client.sandbox(IMAGE) as sandbox:
            pipe = await sandbox.spawn("python3", "-c", program, stdin=dsec.PIPE)
            terminal = await sandbox.spawn("python3", "-c", program, pty=dsec.Pty(rows=24, cols=80), stdin=dsec.PIPE)
            own.kill("runtime")
            ended = []
            for running in (pipe, terminal):
                await running.stdin.write("\n")
                ended.append(await running.wait())
            assert all("EPERM" in each.stdout for each in ended)
            found = {(each.name, each.exec_id, each.count) for each in await calls(sandbox)}
            assert found == {("mount", each.exec_id, 1) for each in ended}


async def test_a_waiting_call_can_be_killed(sandbox: dsec.Sandbox) -> None:
    """Whoever floods and waits for answers is killed and stopped like anybody."""
    running = await sandbox.spawn("python3", "-c", f"{MOUNT}\nos.write(1, b'ready')\nwhile True: mount()")
    assert await anext(aiter(running.events()))
    await running.kill()
    assert (await running.wait()).ended == "cancelled"
    assert (await sandbox.exec("true")).ok


async def test_no_listener_of_ones_own(sandbox: dsec.Sandbox) -> None:
    """A program gets none (EBUSY), and so cannot answer in the platform's place; other filters it can have."""
    program = """
import ctypes, errno, struct
libc = ctypes.CDLL(None, use_errno=True)
step = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7fff0000))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 1, ctypes.addressof(step)))
libc.prctl(38, 1, 0, 0, 0)
for flags in (8, 0):
    print(libc.syscall(317, 1, flags, program), errno.errorcode.get(ctypes.get_errno(), ""))
    ctypes.set_errno(0)
"""
    assert (await sandbox.exec("python3", "-c", program)).stdout.split() == ["-1", "EBUSY", "0"]
