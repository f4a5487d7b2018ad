"""Files of a sandbox, read and written as its user would."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

import dsec

pytestmark = [pytest.mark.node, pytest.mark.anyio]


async def test_twenty_megabytes_there_and_back(sandbox: dsec.Sandbox) -> None:
    """Any bytes, larger than every window, are the same afterwards, and parts of them can be read."""
    data = random.Random(1).randbytes(20_000_001)
    written = await sandbox.write("/data.bin", data)
    assert (written.bytes, written.path, written.mode) == (len(data), "/data.bin", 0o644)
    assert await sandbox.read("/data.bin") == data
    assert await sandbox.read("/data.bin", offset=19_999_000) == data[19_999_000:]
    assert await sandbox.read("/data.bin", offset=10, limit=5_000_000) == data[10:5_000_010]
    assert await sandbox.read("/data.bin", offset=30_000_000) == b""
    assert await sandbox.read("/data.bin", limit=0) == b""


async def test_empty_and_text(sandbox: dsec.Sandbox) -> None:
    """An empty file is one; text is written as UTF-8; a relative path begins at the sandbox's directory."""
    assert (await sandbox.write("/empty", b"")).bytes == 0
    assert await sandbox.read("/empty") == b""
    await sandbox.write("relative.txt", "grüß\n")
    assert (await sandbox.run_shell("cat relative.txt")).stdout == "grüß\n"
    assert await sandbox.read(Path("relative.txt")) == "grüß\n".encode()


@pytest.mark.parametrize(
    ("path", "error", "python"),
    [
        ("/no/such/file", dsec.FileMissing, FileNotFoundError),
        ("/no-such", dsec.FileMissing, FileNotFoundError),
        ("/etc", dsec.FileIsDirectory, IsADirectoryError),
        ("/etc/passwd/x", dsec.FileNotDirectory, NotADirectoryError),
    ],
)
async def test_what_cannot_be_read(
    sandbox: dsec.Sandbox, path: str, error: type[dsec.FileError], python: type[OSError]
) -> None:
    """Python's own exception too, with errno and path; the command's fault, not to be retried."""
    with pytest.raises(error) as caught:
        await sandbox.read(path)
    assert isinstance(caught.value, python)
    assert (caught.value.filename, caught.value.fault, caught.value.retryable) == (path, "command", False)
    assert caught.value.errno and caught.value.sandbox_id == sandbox.id


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/no/such/directory/file", dsec.FileMissing),
        ("/etc", dsec.FileIsDirectory),
        ("/etc/passwd/x", dsec.FileNotDirectory),
        ("/sys/x", dsec.FileError),
        ("/proc/sys/kernel/hostname", dsec.FileError),
    ],
)
async def test_what_cannot_be_written(sandbox: dsec.Sandbox, path: str, error: type[dsec.FileError]) -> None:
    """Typed, and nothing changes."""
    with pytest.raises(error):
        await sandbox.write(path, b"x")


async def test_the_users_permissions_hold(sandbox: dsec.Sandbox) -> None:
    """As another user only what that user may read and write; what it writes is its own."""
    await sandbox.write("/root/secret", "s", mode=0o600)
    for act in (sandbox.read("/root/secret", user="nobody"), sandbox.write("/root/x", b"", user="nobody")):
        with pytest.raises(dsec.FileDenied) as denied:
            await act
        assert isinstance(denied.value, PermissionError)
    await sandbox.write("/tmp/own", "mine", user="nobody")
    assert (await sandbox.run_shell("stat -c '%U %a' /tmp/own")).stdout == "nobody 644\n"
    with pytest.raises(dsec.InvalidArgument):
        await sandbox.read("/etc/passwd", user="no-such-user")


async def test_links_lead_where_they_lead_inside(sandbox: dsec.Sandbox) -> None:
    """A link's target is the sandbox's, absolute too; a write goes through the link and keeps it; a loop ends."""
    await sandbox.run_shell("echo target > /target; ln -s /target /link; ln -s /loop /loop; ln -s /etc/hostname /h")
    assert await sandbox.read("/link") == b"target\n"
    await sandbox.write("/link", "new")
    assert (await sandbox.run_shell("readlink /link; cat /target")).stdout == "/target\nnew"
    with pytest.raises(dsec.FileError):
        await sandbox.read("/loop")
    with pytest.raises(dsec.FileError):
        await sandbox.write("/loop", b"x")
    own = (await sandbox.exec("hostname")).stdout.encode()
    assert await sandbox.read("/../../../h") == own


async def test_links_out_of_proc_are_refused(sandbox: dsec.Sandbox) -> None:
    """Magic links of /proc would lead into the helper that reads: refused."""
    for path in ("/proc/self/mem", "/proc/self/root/etc/passwd", "/proc/self/fd/0", "/proc/self/environ"):
        with pytest.raises(dsec.FileError):
            await sandbox.read(path)


async def test_special_files_do_not_hang(sandbox: dsec.Sandbox) -> None:
    """A FIFO, a socket, a device: refused at once, for reading and writing."""
    made = "import socket, os; os.mkfifo('/fifo'); socket.socket(socket.AF_UNIX).bind('/socket')"
    await sandbox.exec("python3", "-c", made, check=True)
    async with asyncio.timeout(20):
        for path in ("/fifo", "/socket", "/dev/zero", "/dev/ptmx"):
            with pytest.raises(dsec.FileError):
                await sandbox.read(path)
            with pytest.raises(dsec.FileError):
                await sandbox.write(path, b"x")


async def test_planted_passwd_does_not_hang(sandbox: dsec.Sandbox) -> None:
    """A FIFO in the place of /etc/passwd makes the look-up of a user fail, not wait."""
    await sandbox.run_shell("rm /etc/passwd && mkfifo /etc/passwd", check=True)
    async with asyncio.timeout(20):
        with pytest.raises(dsec.DSecError):
            await sandbox.exec("true", user="alice")
        assert (await sandbox.exec("true", user="0")).ok


async def test_parents_and_mode(sandbox: dsec.Sandbox) -> None:
    """Missing directories are made on request; mode is as chmod has it; a replaced file keeps its mode and owner."""
    with pytest.raises(dsec.FileMissing):
        await sandbox.write("/a/b/c.sh", "x")
    assert (await sandbox.write("/a/b/c.sh", "#!/bin/sh\necho hi\n", parents=True, mode=0o4750)).mode == 0o4750
    await sandbox.run_shell("chown nobody:games /a/b/c.sh; chmod 6711 /a/b/c.sh", check=True)
    assert (await sandbox.write("/a/b/c.sh", "#!/bin/sh\necho ho\n")).mode == 0o6711
    assert (await sandbox.run_shell("stat -c '%U:%G %a' /a/b/c.sh; /a/b/c.sh")).stdout == "nobody:games 6711\nho\n"


async def test_a_write_is_atomic(sandbox: dsec.Sandbox) -> None:
    """A program that reads all the time sees the whole old or the whole new file, never a mixture or a gap."""
    await sandbox.write("/atomic", b"0" * 1_000_000)
    program = (
        "import os\n"
        "print('ready', flush=True)\n"
        "while not os.path.exists('/done'):\n"
        "    data = open('/atomic', 'rb').read()\n"
        "    if len(data) != 1000000 or len(set(data)) != 1:\n"
        "        print('torn', len(data))\n"
    )
    running = await sandbox.spawn("python3", "-c", program)
    lines = running.lines()
    assert await anext(lines) == "ready"
    for digit in b"123456789":
        await sandbox.write("/atomic", bytes([digit]) * 1_000_000)
    await sandbox.write("/done", b"")
    assert [line async for line in lines] == []
    assert (await sandbox.run_shell("ls -A / | grep '^\\.' || true")).stdout == ""


async def test_a_cancelled_write_leaves_nothing(sandbox: dsec.Sandbox) -> None:
    """The old file stays and no draft beside it."""
    await sandbox.run_shell("mkdir /d; echo old > /d/f", check=True)
    task = asyncio.create_task(sandbox.write("/d/f", os.urandom(64 << 20)))
    await asyncio.wait([task], timeout=0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    look = "while [ $(ls -A /d | wc -l) != 1 ]; do sleep 0.02; done; cat /d/f"
    assert (await sandbox.run_shell(look, timeout_s=10)).stdout == "old\n"


async def test_names_of_any_bytes(sandbox: dsec.Sandbox) -> None:
    """Blanks, percent signs, plus, question marks, newlines and bytes that are no UTF-8 in names."""
    for name in (b"/a b", b"/100%25+x?y&z=#", b"/line\nbreak", b"/\xff\xfe", "/ünï".encode(), b"/-rf"):
        await sandbox.write(os.fsdecode(name), name)
        assert await sandbox.read(os.fsdecode(name)) == name
    program = "import os; print(sorted(name for name in os.listdir(b'/') if b'a b' in name or b'\\xff' in name))"
    assert (await sandbox.exec("python3", "-c", program)).stdout == "[b'a b', b'\\xff\\xfe']\n"


@pytest.mark.parametrize("path", ["", "a\0b", "/" + "x" * 5000])
async def test_impossible_paths(sandbox: dsec.Sandbox, path: str) -> None:
    """Typed errors for what is no path."""
    for act in (sandbox.read(path), sandbox.write(path, b"")):
        with pytest.raises((dsec.InvalidArgument, dsec.FileError)):
            await act


async def test_impossible_ranges_and_modes(sandbox: dsec.Sandbox) -> None:
    """Negative offsets and limits, modes beyond 7777: InvalidArgument."""
    with pytest.raises(dsec.InvalidArgument):
        await sandbox.read("/etc/passwd", offset=-1)
    with pytest.raises(dsec.InvalidArgument):
        await sandbox.read("/etc/passwd", limit=-1)
    with pytest.raises(dsec.InvalidArgument):
        await sandbox.write("/x", b"", mode=0o17777)


async def test_files_of_a_gone_sandbox(client: dsec.DSecClient) -> None:
    """SandboxGone with its cause."""
    async with client.sandbox("dsec/debian:12") as sandbox:
        await sandbox.stop()
        for act in (sandbox.read("/etc/passwd"), sandbox.write("/x", b"")):
            with pytest.raises(dsec.SandboxGone) as gone:
                await act
            assert gone.value.cause == "stopped"


async def test_many_side_by_side(sandbox: dsec.Sandbox) -> None:
    """Thirty writes and reads at once do not mix."""

    async def one(number: int) -> bool:
        data = b"%d" % number * 100_000
        await sandbox.write(f"/f{number}", data)
        return await sandbox.read(f"/f{number}") == data

    assert all(await asyncio.gather(*(one(number) for number in range(30))))
