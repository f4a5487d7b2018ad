"""Files and trees in and out of a sandbox: exact, counted, whole or not at all, over broken connections."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import socket
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dsec
from dsec.testing.node import RunningNode

pytestmark = [pytest.mark.node, pytest.mark.anyio]


def _tree(top: Path) -> Path:
    """A tree with everything that a tree may have."""
    (top / "sub" / "deeper").mkdir(parents=True)
    (top / "empty").mkdir(mode=0o700)
    (top / "a").write_bytes(b"hello")
    (top / "a").chmod(0o640)
    (top / "sub" / "big").write_bytes(random.Random(2).randbytes(3_000_001))
    (top / "sub" / "run").write_text("#!/bin/sh\n")
    (top / "sub" / "run").chmod(0o4755)
    (top / "sub" / "deeper" / ("n" * 200)).write_bytes(b"")
    (top / "sub" / os.fsdecode(b"\xff\n")).write_bytes(b"bytes")
    (top / "link").symlink_to("sub/big")
    (top / "sub" / "up").symlink_to("../a")
    os.link(top / "a", top / "sub" / "same")
    os.utime(top / "a", (1_500_000_000, 1_500_000_000))
    os.utime(top / "link", (1_400_000_000, 1_400_000_000), follow_symlinks=False)
    (top / "empty").chmod(0o555)
    return top


def _seen(top: Path) -> dict[str, tuple[object, ...]]:
    """What is below a directory, but for owners."""
    found: dict[str, tuple[object, ...]] = {}
    for directory, names, files in os.walk(top):
        for name in [*names, *files]:
            path = Path(directory, name)
            about = path.lstat()
            kind = stat.S_IFMT(about.st_mode)
            content: object = b""
            if kind == stat.S_IFLNK:
                content = path.readlink()
            elif kind == stat.S_IFREG:
                content = path.read_bytes()
            mode = 0 if kind == stat.S_IFLNK else stat.S_IMODE(about.st_mode)
            found[os.path.relpath(path, top)] = (kind, mode, content, int(about.st_mtime))
    return found


async def test_a_file_there_and_back(sandbox: dsec.Sandbox, tmp_path: Path) -> None:
    """Bytes, mode and time are the same; the counts are told; the owner is the user."""
    source = tmp_path / "f"
    source.write_bytes(random.Random(3).randbytes(20_000_001))
    source.chmod(0o751)
    os.utime(source, (1_400_000_000, 1_400_000_000))
    sent = await sandbox.files.upload(source, "/data/f", parents=True)
    assert (sent.bytes, sent.entries, sent.skipped) == (20_000_001, 1, ())
    there = await sandbox.files.stat("/data/f")
    assert (there.size, there.mode, there.uid, there.mtime) == (20_000_001, 0o751, 0, 1_400_000_000)
    back = await sandbox.files.download("/data/f", tmp_path / "back")
    assert back == sent
    assert (tmp_path / "back").read_bytes() == source.read_bytes()
    assert (tmp_path / "back").stat().st_mode & 0o7777 == 0o751
    assert int((tmp_path / "back").stat().st_mtime) == 1_400_000_000
    await sandbox.files.upload(source, "/tmp/mine", user="nobody")
    assert (await sandbox.files.stat("/tmp/mine")).uid == 65534
    await sandbox.files.upload(source, "/data/")
    (tmp_path / "sub").mkdir()
    await sandbox.files.download("/data/f", f"{tmp_path}/sub/")
    assert (tmp_path / "sub" / "f").stat().st_size == 20_000_001


async def test_a_tree_there_and_back(sandbox: dsec.Sandbox, tmp_path: Path) -> None:
    """Modes, times, links, names of any bytes and empty directories are kept; set-ID bits only when asked for."""
    source = _tree(tmp_path / "tree")
    sent = await sandbox.files.upload(source, "/tree")
    assert sent.entries == len(_seen(source)) + 1
    seen = await sandbox.run_shell(
        "cd /tree && find . -printf '%y %m %s %l\\n' | wc -l; stat -c %a sub/run empty; stat -c %h a; readlink sub/up"
    )
    assert seen.stdout == f"{sent.entries}\n4755\n555\n2\n../a\n"
    back = await sandbox.files.download("/tree", tmp_path / "back", set_ids=True)
    assert (back.bytes, back.entries) == (sent.bytes, sent.entries)
    assert _seen(tmp_path / "back") == _seen(source)
    assert (tmp_path / "back" / "a").stat().st_nlink == 2
    await sandbox.files.download("/tree", tmp_path / "plain")
    assert (tmp_path / "plain" / "sub" / "run").stat().st_mode & 0o7777 == 0o755
    for name in ("tree", "back", "plain"):
        (tmp_path / name / "empty").chmod(0o755)


async def test_over_what_is_there(sandbox: dsec.Sandbox, tmp_path: Path) -> None:
    """Files and links are replaced, links not followed; others stay; directories that are there keep their mode."""
    source = tmp_path / "tree"
    (source / "d").mkdir(parents=True)
    (source / "d" / "f").write_text("new")
    (source / "l").write_text("file")
    await sandbox.run_shell(
        "mkdir -p -m 750 /t/d; echo old > /t/d/f; echo stay > /t/d/other; echo x > /safe; ln -s /safe /t/l",
        check=True,
    )
    await sandbox.files.upload(source, "/t")
    seen = await sandbox.run_shell("cat /t/d/f /t/d/other /t/l /safe; stat -c %a /t/d; ls -A /t /t/d")
    assert seen.stdout == "newstay\nfilex\n750\n/t:\nd\nl\n\n/t/d:\nf\nother\n"
    await sandbox.run_shell("rm -r /t/d/f && mkdir /t/d/f", check=True)
    with pytest.raises(IsADirectoryError):
        await sandbox.files.upload(source, "/t")


async def test_holes_stay_holes(sandbox: dsec.Sandbox, tmp_path: Path) -> None:
    """4 TiB of which 12 KiB are data take 12 KiB on the way, there and here."""
    source = tmp_path / "sparse"
    with source.open("wb") as file:
        for offset in (0, 1 << 30, (1 << 42) - 4096):
            file.seek(offset)
            file.write(b"data" * 1024)
    moved: list[int] = []
    sent = await sandbox.files.upload(source, "/sparse", progress=moved.append)
    assert sent.bytes == 1 << 42 and max(moved) < 1 << 20
    there = await sandbox.run_shell("stat -c %s /sparse; test $(stat -c %b /sparse) -lt 200; tail -c 4 /sparse")
    assert there.stdout == f"{1 << 42}\ndata" and there.ok
    await sandbox.files.download("/sparse", tmp_path / "back")
    found = (tmp_path / "back").stat()
    assert found.st_size == 1 << 42 and found.st_blocks < 200
    with (tmp_path / "back").open("rb") as file:
        file.seek(1 << 30)
        assert file.read(4100) == b"data" * 1024 + bytes(4)


_NAMES = st.binary(min_size=1, max_size=120).filter(
    lambda name: not set(name) & {0, 0x2F} and name not in (b".", b"..")
)
_FILES = st.one_of(st.binary(max_size=3000), st.integers(0, 3).map(lambda n: n))
_TREES: st.SearchStrategy[dict[bytes, object]] = st.recursive(
    st.dictionaries(_NAMES, _FILES, max_size=4), lambda below: st.dictionaries(_NAMES, below | _FILES, max_size=4)
)


def _plant(directory: Path, tree: dict[bytes, object]) -> None:
    directory.mkdir()
    for name, content in tree.items():
        path = directory / os.fsdecode(name)
        if isinstance(content, dict):
            _plant(path, content)
        elif isinstance(content, bytes):
            path.write_bytes(content)
        else:
            with path.open("wb") as file:
                for number in range(int(str(content)) + 1):
                    file.seek(number << 20)
                    file.write(b"x" * number)
                file.truncate((5 << 20) + 17)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=_TREES)
def test_any_tree(node: RunningNode, tmp_path_factory: pytest.TempPathFactory, tree: dict[bytes, object]) -> None:
    """Hypothesis finds no tree that does not come back as it was."""
    top = tmp_path_factory.mktemp("any")
    _plant(top / "in", tree)

    async def both() -> None:
        async with node.client() as client, client.sandbox("dsec/debian:12") as sandbox:
            sent = await sandbox.files.upload(top / "in", "/any")
            assert await sandbox.files.download("/any", top / "out") == sent

    asyncio.run(both())
    assert _seen(top / "out") == _seen(top / "in")


async def test_errors_name_the_path(sandbox: dsec.Sandbox, tmp_path: Path) -> None:
    """Python's own errors, of here and of there, with the path that failed; nothing half-written is left."""
    files = sandbox.files
    with pytest.raises(FileNotFoundError) as here:
        await files.upload(tmp_path / "none", "/x")
    assert here.value.filename == str(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        await files.download("/none", tmp_path / "x")
    (tmp_path / "f").write_text("f")
    with pytest.raises(FileNotFoundError):
        await files.upload(tmp_path / "f", "/no/such/f")
    with pytest.raises(IsADirectoryError):
        await files.upload(tmp_path / "f", "/etc")
    with pytest.raises(PermissionError):
        await files.upload(tmp_path / "f", "/etc/f", user="nobody")
    with pytest.raises(dsec.FileError):
        await files.upload(tmp_path / "f", "/proc/f")
    await sandbox.run_shell("mkdir -m 711 /p; echo s > /p/secret; chmod 600 /p/secret; mkdir /p/d; mkfifo /fifo")
    with pytest.raises(PermissionError):
        await files.download("/p/secret", tmp_path / "s", user="nobody")
    with pytest.raises(PermissionError):
        await files.download("/p", tmp_path / "s", user="nobody")
    with pytest.raises(dsec.FileError) as special:
        await files.download("/fifo", tmp_path / "s")
    assert special.value.errno == errno.EINVAL
    with pytest.raises(FileNotFoundError):
        await files.download("/p/secret", tmp_path / "no" / "s")
    assert sorted(os.listdir(tmp_path)) == ["f"]  # noqa: PTH208


async def test_a_full_disk(client: dsec.DSecClient, tmp_path: Path) -> None:
    """EDQUOT or ENOSPC as FileError; the file that was there stays."""
    (tmp_path / "big").write_bytes(os.urandom(40 << 20))
    async with client.sandbox("dsec/debian:12", disk_mib=20) as sandbox:
        await sandbox.write("/big", "old")
        with pytest.raises(dsec.FileError) as full:
            await sandbox.files.upload(tmp_path / "big", "/big")
        assert full.value.errno in (errno.EDQUOT, errno.ENOSPC)
        assert (await sandbox.run_shell("cat /big; ls -A / | grep ^.dsec || true")).stdout == "old"


async def test_a_cancelled_upload_leaves_nothing(sandbox: dsec.Sandbox, tmp_path: Path) -> None:
    """The old file stays, no draft and no process are left, at once."""
    (tmp_path / "big").write_bytes(os.urandom(64 << 20))
    await sandbox.write("/big", "old")
    moving = asyncio.Event()
    loop = asyncio.get_running_loop()

    def progress(arrived: int) -> None:
        if arrived > 1 << 20:
            loop.call_soon_threadsafe(moving.set)

    task = asyncio.create_task(sandbox.files.upload(tmp_path / "big", "/big", progress=progress))
    await moving.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await sandbox.run_shell("cat /big; ls -A / | grep ^.dsec || true")).stdout == "old"


async def test_a_cancelled_download_leaves_nothing(sandbox: dsec.Sandbox, tmp_path: Path) -> None:
    """The old file stays and no temporary one beside it."""
    await sandbox.run_shell("head -c 64M /dev/urandom > /big", check=True)
    (tmp_path / "big").write_text("old")
    moving = asyncio.Event()
    loop = asyncio.get_running_loop()

    def progress(arrived: int) -> None:
        if arrived > 1 << 20:
            loop.call_soon_threadsafe(moving.set)

    task = asyncio.create_task(sandbox.files.download("/big", tmp_path / "big", progress=progress))
    await moving.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (os.listdir(tmp_path), (tmp_path / "big").read_text()) == (["big"], "old")  # noqa: PTH208


async def test_what_no_archive_holds(sandbox: dsec.Sandbox, tmp_path: Path) -> None:
    """FIFOs and sockets are left out and counted, on both sides; nothing waits for them."""
    (tmp_path / "in").mkdir()
    os.mkfifo(tmp_path / "in" / "fifo")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "in" / "s"))
        sent = await sandbox.files.upload(tmp_path / "in", "/in")
    assert sent.skipped_count == 2 and {Path(path).name for path in sent.skipped} == {"fifo", "s"}
    await sandbox.run_shell("mkfifo /in/pipe; ln /dev/null /in/null 2>/dev/null; ln -s pipe /in/link", check=True)
    back = await sandbox.files.download("/in", tmp_path / "out")
    assert back.skipped_count == 1 and [path.name for path in (tmp_path / "out").iterdir()] == ["link"]


async def test_links_out_of_the_tree(sandbox: dsec.Sandbox, tmp_path: Path) -> None:
    """Left out and told, unless all are asked for; those that stay inside are kept."""
    await sandbox.run_shell(
        "mkdir -p /t/d; cd /t; ln -s /etc/passwd abs; ln -s ../up up; ln -s ../x d/in; ln -s ../../out d/out; "
        "ln -s . here; ln -s here/../../etc sly",
        check=True,
    )
    back = await sandbox.files.download("/t", tmp_path / "t")
    assert {Path(path).name for path in back.skipped} == {"abs", "up", "out", "sly"}
    assert {path.name for path in (tmp_path / "t").rglob("*")} == {"d", "in", "here"}
    assert (await sandbox.files.download("/t", tmp_path / "all", links="all")).skipped == ()
    assert (tmp_path / "all" / "abs").readlink() == Path("/etc/passwd")
    link = await sandbox.files.download("/t/abs", tmp_path / "link", follow=False)
    assert link.entries == 1 and (tmp_path / "link").readlink() == Path("/etc/passwd")


async def test_the_whole_root(sandbox: dsec.Sandbox, tmp_path: Path) -> None:
    """/ comes without what is mounted in it: no file of /proc, /sys or /dev."""
    back = await sandbox.files.download("/etc", tmp_path / "etc", links="all")
    assert back.entries > 100 and (tmp_path / "etc" / "hostname").read_text().strip()
    moved: list[int] = []
    await sandbox.files.download("/dev", tmp_path / "dev", progress=moved.append)
    assert (tmp_path / "dev").is_dir() and max(moved) < 1 << 20


async def test_transfers_of_a_gone_sandbox(client: dsec.DSecClient, tmp_path: Path) -> None:
    """SandboxGone with its cause, before and during."""
    (tmp_path / "big").write_bytes(os.urandom(64 << 20))
    async with client.sandbox("dsec/debian:12") as sandbox:
        task = asyncio.create_task(sandbox.files.upload(tmp_path / "big", "/big"))
        await asyncio.wait([task], timeout=0.02)
        await sandbox.stop()
        with pytest.raises(dsec.SandboxGone):
            await task
        with pytest.raises(dsec.SandboxGone):
            await sandbox.files.download("/etc", tmp_path / "x")


async def test_many_at_once(sandbox: dsec.Sandbox, tmp_path: Path) -> None:
    """Forty small trees at once, sixteen at a time, all exact."""

    async def one(number: int) -> bool:
        source = tmp_path / str(number)
        source.mkdir()
        (source / "f").write_bytes(b"%d" % number * 1000)
        await sandbox.files.upload(source, f"/m{number}")
        await sandbox.files.download(f"/m{number}", tmp_path / f"{number}b")
        return (tmp_path / f"{number}b" / "f").read_bytes() == b"%d" % number * 1000

    assert all(await asyncio.gather(*(one(number) for number in range(40))))


def _peaks(node: RunningNode) -> dict[str, int]:
    """Most resident memory of each part so far, KiB."""
    found = {}
    for name, service in node.services().items():
        status = Path(f"/proc/{service.pid}/status").read_text()
        found[name] = int(status.split("VmHWM:")[1].split()[0])
    return found


async def test_memory_does_not_grow_with_size(node: RunningNode, sandbox: dsec.Sandbox, tmp_path: Path) -> None:
    """Half a gigabyte each way costs no part of the node more than 48 MiB."""
    with (tmp_path / "big").open("wb") as file:
        for _ in range(512):
            file.write(os.urandom(1 << 20))
    before = _peaks(node)
    await sandbox.files.upload(tmp_path / "big", "/big")
    await sandbox.files.download("/big", tmp_path / "back")
    grown = {name: peak - before[name] for name, peak in _peaks(node).items()}
    assert max(grown.values()) < 48 << 10, grown
