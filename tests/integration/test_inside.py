"""What a sandbox looks like from within: a machine of its own, with nothing of the node's in it."""

from __future__ import annotations

import json
import re

import pytest

import dsec

from .conftest import IMAGE

pytestmark = [pytest.mark.node, pytest.mark.anyio]


async def shell(sandbox: dsec.Sandbox, script: str, **fields: object) -> str:
    """Standard output of a script that must go well."""
    return (await sandbox.run_shell(script, check=True, **fields)).stdout  # type: ignore[arg-type]


async def python(sandbox: dsec.Sandbox, program: str) -> str:
    """Standard output of a Python program that must go well."""
    return (await sandbox.exec("python3", "-c", program, check=True)).stdout


async def test_users_are_its_own_range(sandbox: dsec.Sandbox) -> None:
    """65,536 IDs of its own, none of them the host's."""
    inside, outside, count = (await shell(sandbox, "cat /proc/self/uid_map")).split()
    assert (inside, count) == ("0", "65536") and int(outside) >= 0x40000000
    assert (await shell(sandbox, "cat /proc/self/gid_map")).split() == [inside, outside, count]


async def test_ranges_do_not_overlap(client: dsec.DSecClient) -> None:
    """Two sandboxes have different ranges."""
    async with client.sandbox(IMAGE) as one, client.sandbox(IMAGE) as two:
        starts = [int((await shell(each, "cat /proc/self/uid_map")).split()[1]) for each in (one, two)]
        assert abs(starts[0] - starts[1]) >= 65536


async def test_names(sandbox: dsec.Sandbox) -> None:
    """Host name, /etc/hostname, /etc/hosts for localhost, ::1 and the own name, /etc/resolv.conf."""
    name = (await shell(sandbox, "hostname")).strip()
    assert name and name in sandbox.id
    hosts = await shell(sandbox, "cat /etc/hosts")
    assert re.search(r"^127\.0\.0\.1\s+localhost", hosts, re.M) and re.search(r"^::1\s.*localhost", hosts, re.M)
    assert name in hosts
    assert (await shell(sandbox, "getent ahosts localhost | grep -c 127.0.0.1")).strip() != "0"
    assert (await shell(sandbox, f"getent hosts {name}")).strip()
    assert await shell(sandbox, "cat /etc/resolv.conf") is not None


async def test_devices(sandbox: dsec.Sandbox) -> None:
    """/dev holds the harmless devices, which work, and nothing else; new ones cannot be made."""
    found = set((await shell(sandbox, "ls /dev")).split())
    wanted = {"null", "zero", "full", "random", "urandom", "tty", "pts", "ptmx", "shm", "mqueue", "fd", "stdin",
              "stdout", "stderr"}  # fmt: skip
    assert wanted <= found and found <= wanted | {"core", "console"}
    out = await shell(sandbox, "head -c4 /dev/zero | od -An -tx1; head -c8 /dev/urandom | wc -c; echo x > /dev/null")
    assert out.split() == ["00", "00", "00", "00", "8"]
    assert not (await sandbox.run_shell("echo x > /dev/full")).ok
    assert (await shell(sandbox, "echo out > /dev/stdout; echo via > /proc/self/fd/1", user="nobody")) == "out\nvia\n"
    assert not (await sandbox.exec("mknod", "/disk", "b", "8", "0")).ok


async def test_terminals_work(sandbox: dsec.Sandbox) -> None:
    """A pseudo-terminal of its own devpts can be opened and used."""
    program = "import os, pty; a, b = pty.openpty(); os.write(b, b'hi\\n'); print(os.ttyname(b), os.read(a, 9))"
    assert await python(sandbox, program) == "/dev/pts/0 b'hi\\r\\n'\n"
    assert (await shell(sandbox, "script -qec 'tty' /dev/null </dev/null")).strip() == "/dev/pts/0"


async def test_shared_memory_is_as_large_as_asked(client: dsec.DSecClient) -> None:
    """/dev/shm is shm_mib, by default 64, and not more."""
    async with client.sandbox(IMAGE) as plain, client.sandbox(IMAGE, shm_mib=16) as small:
        assert (await shell(plain, "df -m --output=size /dev/shm | tail -1")).strip() == "64"
        assert (await shell(small, "df -m --output=size /dev/shm | tail -1")).strip() == "16"
        assert not (await small.run_shell("head -c 20M /dev/zero > /dev/shm/x")).ok
        await shell(small, "rm /dev/shm/x")
        assert await python(small, "import multiprocessing as m; q = m.Queue(); q.put(1); print(q.get())") == "1\n"


async def test_message_queues(sandbox: dsec.Sandbox) -> None:
    """POSIX message queues are there and its own."""
    assert await shell(sandbox, "touch /dev/mqueue/q && ls /dev/mqueue") == "q\n"


async def test_system_directories_are_read_only_and_masked(sandbox: dsec.Sandbox) -> None:
    """/sys and /proc/sys cannot be written; masked files are empty or refuse."""
    for path in ("/sys/kernel/x", "/proc/sys/kernel/hostname", "/proc/sysrq-trigger", "/sys/fs/cgroup/x"):
        assert not (await sandbox.run_shell(f"echo x > {path}")).ok, path
    masked = (
        "for f in /proc/kcore /proc/keys /proc/timer_list /proc/kallsyms; do head -c1 $f 2>/dev/null; done | wc -c"
    )
    assert await shell(sandbox, masked) == "0\n"
    assert not (await sandbox.run_shell("mount -o remount,rw /sys || mount -o remount,rw /proc/sys")).ok


async def test_only_its_own_processes(client: dsec.DSecClient) -> None:
    """It sees what it runs, nothing of the node or a neighbour, not even its init; others see only their own."""
    async with client.sandbox(IMAGE) as other, client.sandbox(IMAGE) as sandbox:
        running = await other.spawn("sleep", "4242")
        listing = "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done 2>/dev/null"
        lines = [line for line in (await shell(sandbox, listing)).splitlines() if line.strip()]
        assert not [line for line in lines if "4242" in line or "dsec" in line or "init" in line]
        assert 1 <= len(lines) <= 4
        await running.kill(grace_s=0)
        waiting = await sandbox.spawn("sleep", "1000")
        assert (await shell(sandbox, "pgrep -c sleep || true", user="nobody")).strip() == "0"
        assert (await shell(sandbox, "ls -d /proc/1 2>&1 || true", user="nobody")).startswith("ls: cannot access")
        await waiting.kill(grace_s=0)


async def test_mounts_tell_nothing_of_the_host(sandbox: dsec.Sandbox) -> None:
    """mountinfo has the sandbox's own mounts only; no path, option or superblock names the host's places."""
    lines = (await shell(sandbox, "cat /proc/self/mountinfo")).splitlines()
    points = {line.split()[4] for line in lines}
    roots = [line for line in lines if line.split()[4] == "/"]
    assert len(roots) == 1 and " overlay " in roots[0]
    for prefix in ("/run/dsec", "/var/lib", "/tmp", "/work", "/root"):
        assert not [point for point in points if point.startswith(prefix)]
    text = "\n".join(lines)
    for word in ("dsec-", "pool.img", "/tmp", "/run/", "layers/", ".sock"):
        assert word not in text, [line for line in lines if word in line]


async def test_nothing_of_the_platform_is_readable(sandbox: dsec.Sandbox) -> None:
    """No platform process, environment variable, descriptor, cgroup path or executable can be seen inside."""
    assert "dsec" not in await shell(sandbox, "env")
    for path in (await shell(sandbox, "cut -d: -f3 /proc/self/cgroup")).split():
        assert re.fullmatch(r"/((\.\./)?e\d+)?", path)
    assert not (await sandbox.run_shell("cat /proc/1/environ /proc/1/maps; readlink /proc/1/exe; ls /proc/1/fd")).ok
    assert not (await sandbox.run_shell("readlink /proc/1/exe")).ok


async def test_no_descriptor_is_inherited(sandbox: dsec.Sandbox) -> None:
    """A program has 0, 1 and 2: pipes and /dev/null, nothing else."""
    program = (
        "import os; print(sorted(os.listdir('/proc/self/fd')), [os.readlink(f'/proc/self/fd/{n}') for n in range(3)])"
    )
    out = await python(sandbox, program)
    assert out.startswith("['0', '1', '2', '3']"), out
    assert "/dev/null" in out and "pipe:" in out and "/run" not in out


async def test_a_session_and_group_of_its_own(sandbox: dsec.Sandbox) -> None:
    """The program leads its own session and group, has no terminal, default signals and an empty mask."""
    program = (
        "import os, signal\nprint(os.getpid() == os.getsid(0) == os.getpgid(0), signal.pthread_sigmask(0, []))\n"
    )
    assert await python(sandbox, program) == "True set()\n"
    shown = (await sandbox.exec("grep", "-E", "Sig(Blk|Ign)", "/proc/self/status", check=True)).stdout
    assert shown == "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n"


async def test_network_is_loopback_alone(sandbox: dsec.Sandbox) -> None:
    """lo is up with both families, low ports can be bound, and there is no way out."""
    assert (await shell(sandbox, "ls /sys/class/net")).split() == ["lo"]
    program = (
        "import socket, errno\n"
        "for family, address in ((socket.AF_INET, '127.0.0.1'), (socket.AF_INET6, '::1')):\n"
        "    server = socket.create_server((address, 80), family=family)\n"
        "    client = socket.create_connection(server.getsockname()[:2])\n"
        "    client.sendall(b'x'); print(server.accept()[0].recv(1))\n"
        "try:\n"
        "    socket.create_connection(('1.1.1.1', 80), 2)\n"
        "except OSError as error:\n"
        "    print(errno.errorcode[error.errno])\n"
    )
    assert await python(sandbox, program) == "b'x'\nb'x'\nENETUNREACH\n"
    assert not (await sandbox.run_shell("ip link add d0 type dummy")).ok


async def test_ordinary_work(sandbox: dsec.Sandbox) -> None:
    """Compile and run C, commit with git, install a local wheel, change owners: as on any Debian."""
    await sandbox.write("/src/a.c", '#include <stdio.h>\nint main(void) { puts("compiled"); }\n', parents=True)
    assert await shell(sandbox, "cd /src && gcc -O1 -o a a.c && ./a") == "compiled\n"
    git = "cd /src && git init -q . && git config user.email a@b && git config user.name n && git add a.c"
    assert "1 file changed" in await shell(sandbox, git + " && git commit -m first")
    owners = (
        "chown -R nobody:games /src && stat -c %U:%G /src/a.c && su -s /bin/sh nobody -c 'echo >> /src/a.c; id -un'"
    )
    assert await shell(sandbox, owners) == "nobody:games\nnobody\n"
    assert (
        await shell(sandbox, "ln /src/a.c /src/b.c && mv /src/b.c /usr/b.c && rm -r /src && cat /usr/b.c | wc -l")
        == "3\n"
    )


WHEEL = """
import base64, hashlib, zipfile
files = {"hello_dsec.py": "TEXT = 'from a wheel'\\n",
         "hello_dsec-1.0.dist-info/METADATA": "Metadata-Version: 2.1\\nName: hello-dsec\\nVersion: 1.0\\n",
         "hello_dsec-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"}
record = "".join(f"{name},,\\n" for name in [*files, "hello_dsec-1.0.dist-info/RECORD"])
with zipfile.ZipFile("/tmp/hello_dsec-1.0-py3-none-any.whl", "w") as wheel:
    for name, text in {**files, "hello_dsec-1.0.dist-info/RECORD": record}.items():
        wheel.writestr(name, text)
"""


async def test_a_wheel_is_installed(sandbox: dsec.Sandbox) -> None:
    """pip works without a network."""
    await python(sandbox, WHEEL)
    install = "python3 -m pip install -q --no-index --break-system-packages --root-user-action ignore /tmp/*.whl"
    use = "python3 -c 'import hello_dsec; print(hello_dsec.TEXT)'"
    assert await shell(sandbox, f"{install} && {use}") == "from a wheel\n"


async def test_setuid_programs_work(sandbox: dsec.Sandbox) -> None:
    """A setuid program becomes root of the sandbox, as sudo needs it."""
    source = '#include <stdio.h>\n#include <unistd.h>\nint main(void) { printf("%d %d\\n", getuid(), geteuid()); }\n'
    await sandbox.write("/a.c", source)
    await shell(sandbox, "gcc -o /usr/local/bin/a /a.c && chmod 4755 /usr/local/bin/a")
    assert await shell(sandbox, "a", user="1000:1000") == "1000 0\n"


async def test_capabilities_and_limits(sandbox: dsec.Sandbox) -> None:
    """Docker's default capabilities or fewer, none for a plain user; core dumps off, descriptors many."""
    kept = int((await shell(sandbox, "grep CapBnd /proc/self/status")).split()[1], 16)
    docker = sum(1 << bit for bit in (0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31))
    assert kept & ~docker == 0 and kept
    assert (await shell(sandbox, "grep CapEff /proc/self/status", user="nobody")).split()[1] == "0" * 16
    assert (await shell(sandbox, "grep CapInh /proc/self/status")).split()[1] == "0" * 16
    assert (await shell(sandbox, "grep -E '^Seccomp:' /proc/self/status")).split()[1] == "2"
    assert (await shell(sandbox, "ulimit -c; [ $(ulimit -n) -ge 1024 ] && echo many")) == "0\nmany\n"
    assert not (await sandbox.exec("mount", "-t", "tmpfs", "x", "/mnt")).ok
    assert not (await sandbox.exec("dmesg")).ok


async def test_an_image_is_never_changed(client: dsec.DSecClient) -> None:
    """What one sandbox writes or deletes no other sees."""
    async with client.sandbox(IMAGE) as one:
        await one.run_shell("rm -rf /usr/share/doc /etc/debian_version; echo x > /etc/motd; chmod 000 /etc/passwd")
        assert (await one.run_shell("ls /etc/debian_version")).exit_code == 2
    async with client.sandbox(IMAGE) as two:
        assert (await shell(two, "cat /etc/debian_version; ls -d /usr/share/doc; stat -c %a /etc/passwd")).endswith(
            "644\n"
        )


async def test_processors_and_memory_can_be_asked_for(sandbox: dsec.Sandbox) -> None:
    """Tools that size themselves find processors, memory and load."""
    program = "import json, os; print(json.dumps([os.cpu_count(), os.sysconf('SC_PHYS_PAGES'), *os.getloadavg()]))"
    assert all(number >= 0 for number in json.loads(await python(sandbox, program)))
