"""stat, exists, list, mkdir, move, remove: as a user of pathlib and os expects, with the caller's rights."""

from __future__ import annotations

import asyncio
import errno
import os

import pytest

import dsec

pytestmark = [pytest.mark.node, pytest.mark.anyio]


async def test_stat_tells_what_is_there(sandbox: dsec.Sandbox) -> None:
    """Kind, size, mode, owner, time and a link's target, of what leads there or of the link itself."""
    await sandbox.run_shell(
        "mkdir /s; cd /s; printf hello > f; chown 7:8 f; chmod 4751 f; touch -d @1500000000.5 f; ln -s f l; "
        "ln -s none broken; mkfifo p; mkdir d; chmod 1777 d",
        check=True,
    )
    found = await sandbox.files.stat("/s/f")
    assert (found.path, found.name, found.kind, found.size) == ("/s/f", "f", "file", 5)
    assert (found.mode, found.uid, found.gid, found.mtime) == (0o4751, 7, 8, 1500000000.5)
    assert (found.is_file, found.is_dir, found.is_link, found.target) == (True, False, False, None)
    assert (await sandbox.files.stat("/s/l")).kind == "file"
    link = await sandbox.files.stat("/s/l", follow=False)
    assert (link.kind, link.target) == ("link", "f")
    assert (await sandbox.files.stat("/s/p")).kind == "fifo"
    directory = await sandbox.files.stat("/s/d/")
    assert (directory.kind, directory.mode) == ("directory", 0o1777)
    assert (await sandbox.files.stat("/dev/null")).kind == "char"
    with pytest.raises(FileNotFoundError):
        await sandbox.files.stat("/s/broken")
    with pytest.raises(NotADirectoryError):
        await sandbox.files.stat("/s/f/x")


async def test_exists(sandbox: dsec.Sandbox) -> None:
    """As os.path.exists: broken links and loops do not, what may not be looked at raises."""
    await sandbox.run_shell("ln -s none /broken; ln -s loop /loop; mkdir -m 700 /closed", check=True)
    exists = sandbox.files.exists
    assert [await exists(path) for path in ("/etc/passwd", "/etc", "/none", "/etc/passwd/x", "/broken", "/loop")] == [
        True, True, False, False, False, False,
    ]  # fmt: skip
    assert await exists("/broken", follow=False)
    with pytest.raises(PermissionError):
        await exists("/closed/x", user="nobody")


async def test_proc_is_refused(sandbox: dsec.Sandbox) -> None:
    """Files of /proc are those of the helper: neither looked at nor listed, also not on the way down."""
    for path in ("/proc/self/exe", "/proc/1/root", "/proc/self", "/proc/self/fd/0"):
        with pytest.raises(dsec.FileError):
            await sandbox.files.stat(path, follow=False)
    with pytest.raises(dsec.FileDenied):
        [each async for each in sandbox.files.list("/proc")]
    found = [each.path async for each in sandbox.files.list("/", depth=2)]
    assert "/proc" in found and not [path for path in found if path.startswith("/proc/")]


async def test_list_streams_what_is_there(sandbox: dsec.Sandbox) -> None:
    """Entries with their facts; depth counts levels; links are told, not followed; any bytes in names."""
    await sandbox.run_shell(
        "mkdir -p /l/a/b/c; echo x > /l/a/f; ln -s a /l/link; touch $(printf '/l/\\377')", check=True
    )
    one = {each.path: each async for each in sandbox.files.list("/l")}
    assert set(one) == {"/l/a", "/l/link", os.fsdecode(b"/l/\xff")}
    assert (one["/l/link"].kind, one["/l/link"].target) == ("link", "a")
    two = {each.path async for each in sandbox.files.list("/l/", depth=2)}
    assert two == set(one) | {"/l/a/b", "/l/a/f"}
    assert "/l/a/b/c" in {each.path async for each in sandbox.files.list("/l", depth=64)}
    with pytest.raises(NotADirectoryError):
        [each async for each in sandbox.files.list("/l/a/f")]
    with pytest.raises(FileNotFoundError):
        [each async for each in sandbox.files.list("/none")]
    with pytest.raises(dsec.InvalidArgument):
        [each async for each in sandbox.files.list("/l", depth=0)]


async def test_a_huge_directory(sandbox: dsec.Sandbox) -> None:
    """30,000 names come whole; leaving the iterator early ends the helper."""
    many = (
        "import os; os.mkdir('/h')\nfor n in range(30000): open(f'/h/{n}', 'w').close()\nprint(len(os.listdir('/h')))"
    )
    assert (await sandbox.exec("python3", "-c", many, check=True)).stdout == "30000\n"
    names = {each.name async for each in sandbox.files.list("/h")}
    assert names == {str(number) for number in range(30000)}
    async for _ in sandbox.files.list("/h"):
        break


async def test_mkdir(sandbox: dsec.Sandbox) -> None:
    """As pathlib: parents, exist_ok; the mode is exact; what cannot be made is Python's own error."""
    files = sandbox.files
    await files.mkdir("/m", mode=0o2775)
    assert (await files.stat("/m")).mode == 0o2775
    with pytest.raises(FileExistsError) as there:
        await files.mkdir("/m")
    assert isinstance(there.value, dsec.FileExists) and there.value.errno == errno.EEXIST
    await files.mkdir("/m/", exist_ok=True)
    with pytest.raises(FileNotFoundError):
        await files.mkdir("/m/a/b")
    await files.mkdir("/m/a/b/", parents=True)
    assert (await files.stat("/m/a/b")).mode == 0o755
    await sandbox.write("/m/f", "")
    with pytest.raises(FileExistsError):
        await files.mkdir("/m/f", exist_ok=True)
    with pytest.raises(NotADirectoryError):
        await files.mkdir("/m/f/x", parents=True)
    with pytest.raises(PermissionError):
        await files.mkdir("/root/x", user="nobody")
    await files.mkdir("/tmp/own", user="nobody")
    assert (await files.stat("/tmp/own")).uid == 65534
    for path in ("/", "/m/..", "/proc/x"):
        with pytest.raises(dsec.FileError):
            await files.mkdir(path)
    with pytest.raises(dsec.InvalidArgument):
        await files.mkdir("/m/x", mode=0o17777)


async def test_move(sandbox: dsec.Sandbox) -> None:
    """A rename: the new name is exact, nothing is replaced unasked, and links are moved as links."""
    files = sandbox.files
    await sandbox.run_shell(
        "mkdir /v /v/d /v/full; cd /v; echo a > a; echo b > b; ln -s a l; touch full/x", check=True
    )
    with pytest.raises(FileExistsError):
        await files.move("/v/a", "/v/b")
    await files.move("/v/a", "/v/b", overwrite=True)
    assert await sandbox.read("/v/b") == b"a\n"
    await files.move("/v/l", "/v/moved")
    assert (await files.stat("/v/moved", follow=False)).target == "a"
    await files.move("/v/full", "/v/d", overwrite=True)
    assert await files.exists("/v/d/x")
    with pytest.raises(FileNotFoundError):
        await files.move("/v/none", "/v/x")
    with pytest.raises(FileNotFoundError):
        await files.move("/v/b", "/v/none/x")
    with pytest.raises(dsec.FileIsDirectory):
        await files.move("/v/b", "/v/d", overwrite=True)
    await sandbox.run_shell("mkdir /v/e; touch /v/e/y", check=True)
    with pytest.raises(dsec.FileError) as full:
        await files.move("/v/d", "/v/e", overwrite=True)
    assert full.value.errno in (errno.ENOTEMPTY, errno.EEXIST)
    with pytest.raises(dsec.FileError) as across:
        await files.move("/v/b", "/dev/shm/b")
    assert across.value.errno == errno.EXDEV and "mv" in str(across.value)
    with pytest.raises(PermissionError):
        await files.move("/v/b", "/v/c", user="nobody")


async def test_remove(sandbox: dsec.Sandbox) -> None:
    """Files, links, empty directories; trees only when asked; links are removed, not what they lead to."""
    files = sandbox.files
    await sandbox.run_shell(
        "mkdir -p /r/t/u/v /r/empty /keep; touch /r/t/f /r/t/u/g /r/f /keep/it; "
        "ln -s /keep /r/t/link; ln -s /keep /r/l",
        check=True,
    )
    assert await files.remove("/r/f") == 1
    assert await files.remove("/r/l") == 1
    assert await files.remove("/r/empty/") == 1
    with pytest.raises(dsec.FileError) as full:
        await files.remove("/r/t")
    assert full.value.errno == errno.ENOTEMPTY
    assert await files.remove("/r/t", recursive=True) == 6
    assert (await sandbox.run_shell("ls -A /r; ls /keep")).stdout == "it\n"
    with pytest.raises(FileNotFoundError):
        await files.remove("/r/none")
    assert await files.remove("/r/none", missing_ok=True) == 0
    assert await files.remove("/none/x", missing_ok=True) == 0
    with pytest.raises(PermissionError):
        await files.remove("/keep/it", user="nobody")
    for path in ("/", "/keep/..", "."):
        with pytest.raises(dsec.FileError):
            await files.remove(path, recursive=True)


async def test_a_deep_tree_is_removed(sandbox: dsec.Sandbox) -> None:
    """900 levels, whose whole path no system call would take."""
    deep = (
        "import os\nos.mkdir('/deep'); os.chdir('/deep')\nfor _ in range(900): os.mkdir('d' * 50); os.chdir('d' * 50)"
    )
    await sandbox.exec("python3", "-c", deep, check=True)
    assert await sandbox.files.remove("/deep", recursive=True) == 901


async def test_calls_of_a_gone_sandbox(client: dsec.DSecClient) -> None:
    """SandboxGone with its cause, for each."""
    async with client.sandbox("dsec/debian:12") as sandbox:
        await sandbox.stop()
        files = sandbox.files
        for act in (files.stat("/"), files.mkdir("/x"), files.move("/x", "/y"), files.remove("/x")):
            with pytest.raises(dsec.SandboxGone):
                await act
        with pytest.raises(dsec.SandboxGone):
            [each async for each in files.list("/")]


async def test_calls_side_by_side(sandbox: dsec.Sandbox) -> None:
    """Forty at once, each with its own answer."""

    async def one(number: int) -> bool:
        await sandbox.files.mkdir(f"/c{number}/x", parents=True)
        await sandbox.files.move(f"/c{number}/x", f"/c{number}/y")
        return [each.name async for each in sandbox.files.list(f"/c{number}")] == ["y"]

    assert all(await asyncio.gather(*(one(number) for number in range(40))))
