"""Isolation profiles: what strict takes away besides, and what nested opens and keeps shut."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import dsec

from .inside import IMAGE, USERS, attempts

pytestmark = [pytest.mark.node, pytest.mark.anyio]

SETUID = "cp /usr/bin/id /tmp/id; chown 0:0 /tmp/id; chmod 4755 /tmp/id"


@pytest.fixture
async def strict(client: dsec.DSecClient) -> AsyncIterator[dsec.Sandbox]:
    """A sandbox of the strict profile."""
    async with client.sandbox(IMAGE, profile="strict", memory_mib=256) as made:
        yield made


@pytest.fixture
async def nested(client: dsec.DSecClient) -> AsyncIterator[dsec.Sandbox]:
    """A sandbox of the nested profile."""
    async with client.sandbox(IMAGE, profile="nested", memory_mib=256) as made:
        yield made


async def status(sandbox: dsec.Sandbox, user: str | None = None) -> dict[str, str]:
    """Lines of the status of a process of the sandbox."""
    text = (await sandbox.exec("cat", "/proc/self/status", user=user, check=True)).stdout
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)


async def test_a_profile_is_shown_and_kept(client: dsec.DSecClient, strict: dsec.Sandbox) -> None:
    """`info` says the profile; the default is `default`; what does not exist is refused by name."""
    assert (await strict.info()).profile == "strict"
    async with client.sandbox(IMAGE) as plain:
        assert (await plain.info()).profile == "default"
    with pytest.raises(dsec.Unsupported, match="profile"):
        await client.run_container(dsec.SandboxArgs(IMAGE, profile="unconfined"))


async def gained(sandbox: dsec.Sandbox) -> str:
    """Who a normal user becomes by a set-user-ID program of root."""
    await sandbox.run_shell(SETUID, check=True)
    return (await sandbox.exec("/tmp/id", "-u", user="1000:1000", check=True)).stdout.strip()


async def test_strict_gains_nothing(client: dsec.DSecClient, strict: dsec.Sandbox) -> None:
    """A set-user-ID program of root makes a normal user root by default, and does not in strict."""
    # no_new_privs, of the init and of every exec.
    async with client.sandbox(IMAGE) as plain:
        assert (await gained(plain), await gained(strict)) == ("0", "1000")
    assert (await status(strict))["NoNewPrivs"] == "1"


@pytest.mark.parametrize("user", USERS)
async def test_strict_holds_few_capabilities(strict: dsec.Sandbox, user: str) -> None:
    """Root holds six capabilities and can have no others, a normal user none."""
    few = f"{0b11101011:016x}"
    found = await status(strict, user)
    assert (found["CapBnd"], found["CapAmb"]) == (few, "0" * 16)
    assert found["CapEff"] == (few if user == "root" else "0" * 16)


REACHED_LESS = """
def clone(flag):
    pid = call(56, flag | 17, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    return pid
for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
    attempt(f"clone {flag:#x}", clone, flag)
    attempt(f"unshare {flag:#x}", call, 272, flag)
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
numbers = dict(ptrace=(101, 16, child, 0, 0), readv=(310, child, buffer, 1, buffer, 1, 0),
    writev=(311, child, buffer, 1, buffer, 1, 0), getfd=(438, os.pidfd_open(child), 1, 0), chroot=(161, b"/tmp"),
    kcmp=(312, child, child, 0, 0, 0), io_setup=(206, 8, buffer), vmsplice=(278, 1, buffer, 1, 0),
    secret=(447, 0), modify_ldt=(154, 0, buffer, 16), personality=(135, 0x0400000),
    handle=(303, -100, b"/", buffer, buffer, 0))
for name, arguments in numbers.items():
    attempt(name, call, *arguments)
os.kill(child, 9)
"""


@pytest.mark.parametrize("user", USERS)
async def test_strict_reaches_less_of_the_kernel(strict: dsec.Sandbox, user: str) -> None:
    """Tracing, reading other processes' memory, descriptors of others, namespaces, chroot, old asynchronous I/O, …"""
    # The filter's additional refusals.
    found = await attempts(strict, REACHED_LESS, user)
    assert set(found.values()) == {"EPERM"}, found


async def test_strict_runs_programs(strict: dsec.Sandbox) -> None:
    """A shell with pipes, threads, another user by root, a terminal, files: what is not refused works."""
    said = await strict.run_shell(
        "set -e; echo a | cat > /tmp/a; python3 -c 'import threading; t = threading.Thread(target=print, args=(7,));"
        " t.start(); t.join()'; setpriv --reuid 1000 --clear-groups id -u; cat /tmp/a",
        check=True,
    )
    assert said.stdout.split() == ["7", "1000", "a"]
    await strict.write("/tmp/b", "text")
    assert await strict.read("/tmp/b") == b"text"


@pytest.mark.parametrize("user", USERS)
async def test_nested_containers(nested: dsec.Sandbox, user: str) -> None:
    """A container in the sandbox: own users, own PIDs, own /proc, mounts, another root, a host name of its own."""
    script = """
set -e
test $$ = 1
test "$(id -u)" = 0
test "$(ls -d /proc/[0-9]* | wc -l)" -lt 6
mount -t tmpfs none /mnt
mkdir /mnt/root /mnt/root/old
mount --rbind / /mnt/root 2>/dev/null || mount --bind /usr /mnt/root
hostname inner
test "$(hostname)" = inner
umount -l /mnt
echo done
"""
    flags = ("--user", "--map-root-user", "--mount", "--pid", "--uts", "--ipc", "--fork", "--mount-proc")
    inner = await nested.exec("unshare", *flags, "sh", "-c", script, user=user)
    assert (inner.stdout.strip(), inner.exit_code) == ("done", 0), inner.stderr
    assert (await nested.exec("hostname", check=True)).stdout.strip() != "inner"


async def test_nested_has_many_users(nested: dsec.Sandbox) -> None:
    """Root of the sandbox maps a range of its own IDs into a container; none outside of its 65,536."""
    found = await attempts(
        nested,
        """
def mapped(line):
    (reader, go), (back, ready) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            call(272, 0x10000000)
            os.write(ready, b"x")
            os.read(reader, 1)
            os.setgroups([]); os.setgid(1); os.setuid(1)
            os._exit(os.getuid())
        finally:
            os._exit(99)
    os.read(back, 1)
    try:
        for name in ("gid_map", "uid_map"):
            with open(f"/proc/{pid}/{name}", "w") as file:
                file.write(line)
    finally:
        os.write(go, b"x")
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code
attempt("own", mapped, "0 1000 64000")
attempt("beyond", mapped, "0 60000 10000")
attempt("host", mapped, "0 0 4294967295")
""",
    )
    assert found.pop("own") == 1
    assert set(found.values()) == {"EPERM"}, found


KEPT_SHUT = """
for name, flag in dict(net=0x40000000, cgroup=0x2000000, time=0x80).items():
    attempt("unshare " + name, call, 272, flag | 0x10000000)
uid, gid = os.getuid(), os.getgid()
call(272, 0x10000000 | 0x20000 | 0x20000000)
open("/proc/self/setgroups", "w").write("deny")
open("/proc/self/uid_map", "w").write(f"0 {uid} 1")
open("/proc/self/gid_map", "w").write(f"0 {gid} 1")
pid = os.fork()
if pid:
    os.waitpid(pid, 0)
    os._exit(0)
found["root"] = os.getuid()
none, mnt = b"none", b"/mnt"
for kind in (b"sysfs", b"cgroup", b"cgroup2", b"debugfs", b"tracefs", b"securityfs", b"devtmpfs", b"configfs",
             b"btrfs", b"ext4", b"erofs", b"xfs", b"nfs", b"9p", b"pstore", b"efivarfs"):
    attempt("mount " + kind.decode(), call, 165, none, mnt, kind, 0, 0)
attempt("umount mask", call, 166, b"/proc/kcore", 2)
attempt("umount proc/sys", call, 166, b"/proc/sys", 2)
attempt("umount queues", call, 166, b"/dev/mqueue", 2)
attempt("writable proc/sys", call, 165, none, b"/proc/sys", none, 32 | 4096, 0)
attempt("writable sys", call, 165, none, b"/sys", none, 32 | 4096, 0)
attempt("dev", call, 165, none, b"/tmp", none, 32 | 4096, 0)
for name, number in dict(fsopen=430, fspick=433, open_tree=428, move_mount=429, mount_setattr=442).items():
    attempt(name, call, number, -100, b"/", 0, 0, 0)
attempt("device", os.mknod, "/tmp/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
call(165, b"proc", mnt, b"proc", 0, 0)
found["visible"] = sorted(int(name) for name in os.listdir("/mnt") if name.isdigit())[-1] < 4
def write(path, text):
    descriptor = os.open(path, os.O_WRONLY)
    try:
        return os.write(descriptor, text)
    finally:
        os.close(descriptor)
def read(path):
    return len(open(path, "rb").read(100))
for name in ("kernel/core_pattern", "kernel/modprobe", "kernel/sysrq", "vm/drop_caches", "fs/suid_dumpable",
             "net/ipv4/ip_forward", "fs/binfmt_misc/register"):
    attempt("set " + name, write, "/mnt/sys/" + name, b"1")
attempt("sysrq", write, "/mnt/sysrq-trigger", b"h")
for name in ("kcore", "kmsg", "kpagecount", "kpageflags", "kpagecgroup", "timer_list", "slabinfo", "vmallocinfo"):
    attempt("read " + name, read, "/mnt/" + name)
found["symbols"] = sorted({line.split()[0].strip("0") for line in open("/mnt/kallsyms")})
for name, number, arguments in (("bpf", 321, (0, buffer, 72)), ("keyctl", 250, (0, -3, 0)), ("io_uring", 425,
        (8, buffer)), ("userfaultfd", 323, (0,)), ("perf", 298, (buffer, 0, -1, -1)), ("module", 313, (0, b"", 0))):
    attempt(name, call, number, *arguments)
attempt("packet", lambda: socket.socket(17, 3, 0).fileno())
attempt("raw", lambda: socket.socket(2, 3, 1).fileno())
found["fuse"] = os.path.exists("/dev/fuse")
"""


@pytest.mark.parametrize("user", USERS)
async def test_nested_keeps_the_rest_shut(nested: dsec.Sandbox, user: str) -> None:
    """As root of a nested container: the network, cgroups, devices, masks, settings, the new mount calls, other
    filesystems, the real root's namespaces."""
    # The filter refuses network, cgroup and time namespaces and does not know the new mount calls; masks and
    # read-only mounts are locked; the kernel lets a user namespace mount few filesystems, and no device.
    found = await attempts(nested, KEPT_SHUT, user)
    assert (found.pop("root"), found.pop("visible"), found.pop("fuse"), found.pop("symbols")) == (
        0,
        True,
        False,
        [""],
    )
    refused = {"EPERM", "EACCES", "ENOSYS", "EROFS", "EINVAL", "ENODEV", "ENOENT", "EBUSY"}
    assert {name: result for name, result in found.items() if result not in refused} == {}


async def test_default_has_no_user_namespaces(client: dsec.DSecClient) -> None:
    """The default does not nest, nor does strict: never loosened silently."""
    for profile in ("default", "strict"):
        async with client.sandbox(IMAGE, profile=profile) as sandbox:
            assert (await sandbox.exec("unshare", "-Ur", "true")).exit_code != 0


async def test_a_fork_is_held_as_what_it_is_of(strict: dsec.Sandbox) -> None:
    """A fork of a strict sandbox is strict: nothing is loosened by copying."""
    (made,) = await strict.fork(1).all()
    assert made.sandbox is not None, made.error
    try:
        assert (await made.sandbox.info()).profile == "strict"
        assert (await status(made.sandbox))["NoNewPrivs"] == "1"
    finally:
        await made.sandbox.stop()
