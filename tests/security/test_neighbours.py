"""Two sandboxes side by side: neither sees, reaches or starves the other, and none can refuse to die."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

import dsec

from .inside import IMAGE, attempts, python

pytestmark = [pytest.mark.node, pytest.mark.anyio]


@pytest.fixture
async def neighbour(client: dsec.DSecClient) -> AsyncIterator[dsec.Sandbox]:
    """The other sandbox."""
    async with client.sandbox(IMAGE, memory_mib=256, name="neighbour") as made:
        yield made


async def ready(sandbox: dsec.Sandbox, program: str) -> None:
    """Start a Python program, and wait until it prints."""
    started = await sandbox.spawn("python3", "-uc", program)
    async for _ in started.lines():
        return
    raise AssertionError((await started.wait()).stderr)


async def shared(sandbox: dsec.Sandbox, neighbour: dsec.Sandbox) -> dict[str, Any]:
    """What a sandbox reaches of what its neighbour made for all to reach."""
    await ready(
        sandbox,
        """
import ctypes, os, socket, time
libc = ctypes.CDLL(None)
abstract = socket.socket(socket.AF_UNIX); abstract.bind("\\0evil"); abstract.listen()
port = socket.socket(); port.bind(("0.0.0.0", 7777)); port.listen()
made = libc.shmget(0x1234, 4096, 0o1666), libc.msgget(0x77, 0o1666), libc.semget(0x55, 1, 0o1666)
made += (libc.syscall(240, b"queue", 0o102, 0o666, 0),)
open("/dev/shm/evil", "w").close()
assert min(made) >= 0
print("ready"); time.sleep(60)
""",
    )
    return await attempts(
        neighbour,
        """
def connect(family, address):
    one = socket.socket(family); one.settimeout(1); one.connect(address); return "connected"
attempt("abstract", connect, socket.AF_UNIX, "\\0evil")
attempt("port", connect, socket.AF_INET, ("127.0.0.1", 7777))
attempt("shm", call, 29, 0x1234, 4096, 0)
attempt("msg", call, 68, 0x77, 0)
attempt("sem", call, 64, 0x55, 1, 0)
attempt("queue", call, 240, b"queue", 0, 0, 0)
attempt("memory", lambda: os.stat("/dev/shm/evil") and "seen")
found["processes"] = len([each for each in os.listdir("/proc") if each.isdigit() and int(each) != os.getpid()])
""",
    )


async def test_nothing_is_shared(sandbox: dsec.Sandbox, neighbour: dsec.Sandbox) -> None:
    """Abstract sockets, ports, SysV memory, messages, semaphores, POSIX queues and memory, processes."""
    # Network, IPC, PID, UTS and mount namespaces of its own; keys are refused by the filter.
    found = await shared(sandbox, neighbour)
    assert found.pop("processes") == 0
    assert set(found.values()) <= {"ECONNREFUSED", "ENOENT"}, found


async def test_no_way_out(sandbox: dsec.Sandbox, client: dsec.DSecClient) -> None:
    """The node's API, the metadata address, private and public addresses, broadcast and multicast."""
    # The namespace has nothing but lo, and no route.
    found = await attempts(
        sandbox,
        """
def connect(host, port, kind=socket.SOCK_STREAM):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    one = socket.socket(family, kind); one.settimeout(1); one.connect((host, port)); return "connected"
for host in ("169.254.169.254", "10.0.0.1", "172.17.0.1", "192.168.0.1", "8.8.8.8", "100.100.100.200",
             "2001:4860:4860::8888", "fe80::1", "255.255.255.255", "224.0.0.1"):
    attempt(host, connect, host, 80)
    attempt(host + " udp", connect, host, 53, socket.SOCK_DGRAM)
for port in (7373, 22, 80, 2375):
    attempt(f"localhost {port}", connect, "127.0.0.1", port)
found["links"] = os.listdir("/sys/class/net")
""",
    )
    assert found.pop("links") == ["lo"]
    assert set(found.values()) <= {"ENETUNREACH", "ECONNREFUSED", "EACCES", "EINVAL", "EADDRNOTAVAIL"}, found
    assert client  # its API is up, on 127.0.0.1 of the host


async def test_names_are_its_own(sandbox: dsec.Sandbox, neighbour: dsec.Sandbox) -> None:
    """Host names differ, and neither tells the host's."""
    names = {await python(each, "import os; print(os.uname().nodename)") for each in (sandbox, neighbour)}
    assert names == {"neighbour", sandbox.id.rsplit("-", 1)[1][:12]}


HOG = "kept = []\nfor _ in range(400): kept.append(bytearray(b'x' * (1 << 20)))"
"""More than a sandbox of a test is given, and not more than a machine has."""


async def forked(sandbox: dsec.Sandbox) -> int:
    """How many processes of 200 can be made and stay."""
    program = (
        "import os, time\nmade = 0\ntry:\n for _ in range(200):\n"
        "  if os.fork() == 0: time.sleep(60); os._exit(0)\n  made += 1\nexcept OSError: pass\nprint(made)"
    )
    return int(await python(sandbox, program))


async def test_processes_are_counted(client: dsec.DSecClient) -> None:
    """One that makes processes has so many as it was given, its program among them."""
    async with client.sandbox(IMAGE, pids=50) as made:
        assert await forked(made) == 49


async def test_fork_bomb(client: dsec.DSecClient, neighbour: dsec.Sandbox) -> None:
    """A bomb is held by its pids limit, its neighbour runs on, and it is stopped within bounded time."""
    # pids controller; the stop kills the cgroup, not process by process.
    async with client.sandbox(IMAGE, pids=200) as bomb:
        await ready(bomb, "import os\nif os.fork(): print('ready')\nwhile 1:\n try: os.fork()\n except OSError: pass")
        assert (await neighbour.exec("true")).exit_code == 0
        usage = await bomb.usage()
        assert 2 <= usage.pids <= 200
        began = time.monotonic()
        stopped = await bomb.stop()
        assert time.monotonic() - began < 10 and stopped.proof_of_death.processes == 0


async def test_memory_hogs(sandbox: dsec.Sandbox, neighbour: dsec.Sandbox) -> None:
    """Heap, tmpfs and page cache stay within the memory limit; the neighbour is not killed."""
    # memory controller; /dev/shm has a size.
    await ready(neighbour, "import time; kept = bytearray(b'x' * (100 << 20)); print('ready'); time.sleep(60)")
    hog = await sandbox.exec("python3", "-c", HOG)
    assert (hog.signal, hog.oom_kills) == (9, 1)
    shm = await sandbox.run_shell("head -c 300M /dev/zero > /dev/shm/x")
    assert "No space left" in shm.stderr
    await sandbox.run_shell("rm /dev/shm/x; head -c 200M /dev/zero > /tmp/x; cat /tmp/x > /dev/null", check=True)
    assert (await sandbox.usage()).memory_mib <= 257
    assert (await neighbour.execs())[0].ended is None


async def left_over(sandbox: dsec.Sandbox, neighbour: dsec.Sandbox) -> dict[str, Any]:
    """What a sandbox still gets of the kernel once its neighbour has taken all that it can get."""
    await ready(
        sandbox,
        """
import ctypes, os, socket, struct, time
libc = ctypes.CDLL(None)
pipes = [os.pipe() for _ in range(3000)]
while libc.inotify_init1(0) >= 0: pass
poll, watched, event = libc.epoll_create1(0), [], ctypes.create_string_buffer(struct.pack("=IQ", 1, 0))
while len(watched) < 3000 and libc.epoll_ctl(poll, 1, pipes[len(watched)][0], event) == 0: watched.append(poll)
while libc.msgget(0, 0o600) >= 0: pass
left, right = socket.socketpair()
left.setblocking(False)
try:
    while True: socket.send_fds(left, [b"x"], [pipes[0][0]] * 200)
except OSError: pass
print("ready"); time.sleep(60)
""",
    )
    return await attempts(
        neighbour,
        """
reader, writer = os.pipe()
found["pipe"] = fcntl.fcntl(writer, 1032)
attempt("inotify", lambda: libc.inotify_init1(0) >= 0)
attempt("message", lambda: libc.msgget(0, 0o600) >= 0)
left, right = socket.socketpair()
attempt("flight", lambda: socket.send_fds(left, [b"x"], [reader] * 100) == 1)
attempt("epoll", lambda: libc.epoll_ctl(libc.epoll_create1(0), 1, reader, struct.pack("=IQ", 1, 0)) == 0)
""",
    )


async def buffered(sandbox: dsec.Sandbox) -> int:
    """How many MiB of 200 connections of its own hold for a sandbox, that nobody reads."""
    program = """
import socket
server, kept, total = socket.create_server(("127.0.0.1", 7000), backlog=100), [], 0
for _ in range(100):
    one = socket.create_connection(("127.0.0.1", 7000))
    kept += [one, server.accept()]
    one.setblocking(False)
    try:
        while total < 200 << 20: total += one.send(bytes(65536))
    except OSError: pass
print(total >> 20)
"""
    return int(await python(sandbox, program))


async def test_buffers_of_connections_are_counted(client: dsec.DSecClient) -> None:
    """What the kernel holds for connections is no memory without limit."""
    # On cgroup v1 counted beside the rest: a quarter of the memory, 16 MiB at least.
    async with client.sandbox(IMAGE, memory_mib=64) as made:
        assert await buffered(made) < 100


async def test_kernel_objects_run_out_alone(sandbox: dsec.Sandbox, neighbour: dsec.Sandbox) -> None:
    """One takes all pipes, inotify instances, watches, message queues and descriptors in flight that it can get."""
    # Each sandbox has IDs of its own, and the kernel counts by those. Keys cannot be had at all (test_kernel).
    found = await left_over(sandbox, neighbour)
    assert found == {"pipe": 65536, "inotify": True, "message": True, "flight": True, "epoll": True}


async def test_output_flood(sandbox: dsec.Sandbox) -> None:
    """200 MB of output cost the client and the node what was asked for, not more."""
    result = await sandbox.exec("head", "-c", "200M", "/dev/zero", max_output_bytes=2000)
    assert result.exit_code == 0 and result.stdout_kept.truncated
    assert len(result.stdout_kept.kept_bytes) <= 2000 and result.stdout_kept.total_bytes == 200 << 20


async def test_nobody_outlives_a_kill(sandbox: dsec.Sandbox) -> None:
    """Daemons that left their session, ignore every signal and fork on die with their exec's timeout."""
    # The exec has a cgroup of its own, which is killed as one.
    deaf = (
        "import os, signal, sys\n"
        "for number in set(range(1, 65)) - {9, 19, 32, 33}: signal.signal(number, signal.SIG_IGN)\n"
        "for _ in range(20):\n if os.fork() == 0: os.setsid()\n"
        "import time; time.sleep(1000)"
    )
    result = await sandbox.exec("python3", "-c", deaf, timeout_s=1, grace_s=0.1)
    assert result.ended == "timeout"
    others = await python(
        sandbox, "import os; print(len([p for p in os.listdir('/proc') if p.isdigit() and int(p) != os.getpid()]))"
    )
    assert others == "0"
