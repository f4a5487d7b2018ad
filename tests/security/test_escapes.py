"""Escapes from containers of the last ten years, and what models were seen to do in training, where no other module
has them: reaching for others' processes, files that change owner as they are copied up, the platform's own sockets
and logs inside, scans. docs/security.md has the whole list.
"""

from __future__ import annotations

import pytest

import dsec

from .inside import IMAGE, USERS, attempts

pytestmark = [pytest.mark.node, pytest.mark.anyio]

OTHERS = """
last = int(open("/proc/sys/kernel/pid_max").read())
mine = os.getpid()
def reached(act):
    got = []
    for pid in range(2, min(last, 70_000)):
        if pid == mine:
            continue
        try:
            act(pid)
        except OSError:
            continue
        got.append(pid)
    return got
found["signals"] = reached(lambda pid: os.kill(pid, 0))
found["groups"] = reached(lambda pid: os.kill(-pid, 0) if pid != os.getpgrp() else os.kill(last, 0))
found["handles"] = reached(lambda pid: os.close(os.pidfd_open(pid)))
found["traced"] = reached(lambda pid: call(101, 0x4206, pid, 0, 0))
here = struct.pack("QQ", ctypes.addressof(buffer), 8)
found["memory"] = reached(lambda pid: call(310, pid, here, 1, here, 1, 0))
found["limits"] = reached(lambda pid: resource.prlimit(pid, resource.RLIMIT_NOFILE))
found["scheduling"] = reached(lambda pid: os.sched_getaffinity(pid))
found["listed"] = [each for each in os.listdir("/proc") if each.isdigit() and int(each) not in (1, mine)]
"""


@pytest.mark.parametrize("user", USERS)
async def test_processes_of_others(client: dsec.DSecClient, sandbox: dsec.Sandbox, user: str) -> None:
    """Signals, tracing, memory, handles and limits of every process ID there can be: only one's own is there."""
    # A PID namespace of its own. The neighbour's programs run all the time.
    async with client.sandbox(IMAGE, memory_mib=256) as neighbour:
        await neighbour.spawn("sleep", "1000")
        found = await attempts(sandbox, OTHERS, user)
        assert {name: got for name, got in found.items() if got} == {}


async def test_a_nested_overlay_copies_up_no_set_id_program(client: dsec.DSecClient) -> None:
    """In a nested container of a normal user, an overlay does not bring a program of root's over to where that user
    writes (CVE-2023-0386), while it does bring the user's own.
    """
    # The kernel copies up no owner that the namespace does not have.
    script = """
mount -t tmpfs none /mnt
mkdir /mnt/upper /mnt/work
mount -t overlay none -o lowerdir=/lower,upperdir=/mnt/upper,workdir=/mnt/work,userxattr /lower
touch /lower/own
touch /lower/roots || chmod 4755 /lower/roots
find /mnt/upper -type f -printf '%f '
"""
    lower = "mkdir /lower; cp /usr/bin/id /lower/roots; cp /usr/bin/id /lower/own; chmod 4777 /lower/*"
    async with client.sandbox(IMAGE, profile="nested", memory_mib=256) as sandbox:
        await sandbox.run_shell(f"{lower}; chown 1000:1000 /lower/own", check=True)
        flags = ("--user", "--map-root-user", "--mount")
        made = await sandbox.exec("unshare", *flags, "sh", "-c", script, user="1000:1000")
        assert made.stdout == "own ", made.stderr


async def test_copying_up_takes_set_ids_away(sandbox: dsec.Sandbox) -> None:
    """A set-ID program that a user gets to own, by a link, a move or a copy of the layer's, makes nobody root."""
    await sandbox.run_shell("cp /usr/bin/id /usr/bin/suid; chmod 6755 /usr/bin/suid; mkdir -m 1777 /t", check=True)
    for act in ("ln /usr/bin/suid /t/x", "mv /usr/bin/suid /t/x", "cp -p /usr/bin/suid /t/x", "touch /usr/bin/suid"):
        done = await sandbox.run_shell(f"{act} && test -u /t/x", user="1000:1000")
        assert done.exit_code != 0, act
    await sandbox.run_shell("chown 1000:1000 /usr/bin/suid", check=True)
    assert (await sandbox.run_shell("stat -c %a /usr/bin/suid")).stdout == "755\n"


async def test_nobody_to_forge_calls_to(sandbox: dsec.Sandbox) -> None:
    """The platform has no socket inside, named, abstract or of a port, while execs, a session and a terminal run."""
    # Nothing of it runs in there: all comes by pipes that are made outside.
    async with sandbox.open_session() as session:
        running = [await sandbox.spawn("sleep", "1000"), await sandbox.spawn("sleep", "1000", pty=dsec.Pty(24, 80))]
        found = await attempts(
            sandbox,
            """
lines = lambda name: open("/proc/net/" + name).read().splitlines()[1:]
found["unix"] = lines("unix")
found["ports"] = lines("tcp") + lines("tcp6") + lines("udp") + lines("udp6") + lines("raw")
found["files"] = [os.path.join(at, name) for at, _, names in os.walk("/") if not at.startswith("/proc")
                  for name in names if stat.S_ISSOCK(os.lstat(os.path.join(at, name)).st_mode)]
""",
        )
        assert found == {"unix": [], "ports": [], "files": []}
        assert (await session.run("echo fine")).stdout == "fine\n"
        for each in running:
            await each.kill(grace_s=0)


async def test_nothing_is_logged_inside(sandbox: dsec.Sandbox) -> None:
    """Nothing of what the platform does for a sandbox is written into it: no file changes but the sandbox's own."""
    await sandbox.run_shell("touch /mark; sleep 0.1", check=True)
    await sandbox.exec("true", env={"SECRET": "in-the-environment"})
    await sandbox.write("/own", b"x")
    await sandbox.read("/own")
    async with sandbox.open_session() as session:
        await session.run("true")
    seen = await sandbox.run_shell(
        "find / -xdev -newer /mark ! -path '/proc/*' -type f; grep -rls in-the-environment /proc/[0-9]*/environ"
        " /var/log /tmp /run /root"
    )
    assert seen.stdout.split() == ["/own"]


async def test_a_scan_finds_nothing_and_is_on_record(client: dsec.DSecClient) -> None:
    """Ports of private addresses, the node's among them, with everything allowed that can be: none is open, each
    attempt is counted, and the first are on record with address and port.
    """
    # What is protected no policy opens: nothing is dialled.
    scan = (
        "import itertools, socket\nopened = []\n"
        "for host, port in itertools.product(('10.0.0.1', '192.168.1.1', '172.16.0.1', '127.0.0.2'),"
        " range(7360, 7380)):\n"
        "  try:\n    with socket.create_connection((host, port), 20) as one:\n"
        "      one.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n')\n      if one.recv(1): opened.append((host, port))\n"
        "  except OSError: pass\nprint(opened)"
    )
    async with client.sandbox(IMAGE, network="open") as sandbox:
        assert (await sandbox.exec("python3", "-c", scan, check=True)).stdout == "[]\n"
        seen = {(each.address, each.port, each.reason) for each in (await sandbox.events()).events}
        wanted = {(host, port) for host in ("10.0.0.1", "192.168.1.1", "172.16.0.1") for port in range(7360, 7380)}
        assert seen == {(*each, "protected_address") for each in wanted}
        assert (await sandbox.network()).refused == len(wanted)
