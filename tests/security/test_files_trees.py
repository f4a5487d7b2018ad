"""Trees in and out of a sandbox whose programs race them, plant links, and lay traps."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import dsec
from dsec.client.bulk import Bulk
from dsec.client.tar_out import Counts
from dsec.client.transfers import _transfer_id, upload_tar
from dsec.client.unpack import Unpacking

pytestmark = [pytest.mark.node, pytest.mark.anyio]

FLIP = """
import ctypes, os
libc = ctypes.CDLL(None)
os.makedirs('/home/t/d', exist_ok=True); os.chmod('/home/t', 0o777); os.chmod('/home/t/d', 0o777)
os.symlink('/root/safe', '/home/t/l')
os.setuid(1000)
print('ready', flush=True)
while 1: libc.renameat2(-100, b'/home/t/d', -100, b'/home/t/l', 2)
"""


async def _racing(sandbox: dsec.Sandbox) -> Any:
    """/home/t/d and a link to root's own directory keep changing places, by a normal user."""
    await sandbox.run_shell("mkdir -p /root/safe /home/t; chmod 755 /root; echo s > /root/safe/secret", check=True)
    program = await sandbox.spawn("python3", "-c", FLIP)
    async for _ in program.lines():
        break
    return program


async def test_links_that_race_an_upload(sandbox: dsec.Sandbox, tmp_path: Path) -> None:
    """Root's upload never follows a link that a user put there meanwhile: nothing appears outside the target."""
    # Members are reached by openat2 beneath the target: a link that leads out of it is an error, not a way.
    program = await _racing(sandbox)
    (tmp_path / "d").mkdir()
    for number in range(20):
        (tmp_path / "d" / f"f{number}").write_text("mine")
    for _ in range(20):
        with suppress(dsec.FileError):
            await sandbox.files.upload(tmp_path, "/home/t")
    await program.kill()
    assert (await sandbox.run_shell("ls /root/safe")).stdout == "secret\n"
    await sandbox.run_shell("rm -rf /home/t/*", check=True)
    assert (await sandbox.files.upload(tmp_path, "/home/t")).entries == 22


async def test_links_that_race_a_removal(sandbox: dsec.Sandbox) -> None:
    """A tree is removed by descriptors: what a link leads to stays, whenever the link came."""
    # The directories must be there to be flipped; the race goes on over many removals.
    program = await _racing(sandbox)
    for _ in range(30):
        with suppress(dsec.FileError):
            await sandbox.files.mkdir("/home/t/d/x/y", parents=True)
        with suppress(dsec.FileError):
            await sandbox.files.remove("/home/t/d", recursive=True)
        await sandbox.run_shell("mkdir -p -m 777 /home/t/d; ln -s /root/safe /home/t/l 2>/dev/null; true")
    await program.kill()
    assert (await sandbox.run_shell("cat /root/safe/secret")).stdout == "s\n"


async def test_links_that_race_a_download(sandbox: dsec.Sandbox, tmp_path: Path) -> None:
    """A download of a tree holds the tree's own files: links in it are links, never what they lead to."""
    program = await _racing(sandbox)
    await sandbox.run_shell("for n in $(seq 50); do echo mine > /home/t/f$n; done", check=True)
    for number in range(20):
        await sandbox.files.download("/home/t", tmp_path / str(number), links="all")
    await program.kill()
    found = [os.path.join(place, name) for place, _, names in os.walk(tmp_path) for name in names]  # noqa: PTH118
    assert len(found) >= 50 and not [path for path in found if path.endswith("secret")]


async def test_a_tree_that_changes_all_the_time(sandbox: dsec.Sandbox, tmp_path: Path) -> None:
    """Files that grow, shrink, come, go and turn into FIFOs: a copy or a typed error, never a hang."""
    churn = (
        "import os, random\nos.makedirs('/c/d', exist_ok=True)\nprint('ready', flush=True)\n"
        "while 1:\n"
        "    path = f'/c/d/{random.randrange(20)}'\n"
        "    try:\n"
        "        what = random.randrange(4)\n"
        "        if what == 0: open(path, 'wb').write(b'x' * random.randrange(200000))\n"
        "        elif what == 1: os.truncate(path, random.randrange(1000))\n"
        "        elif what == 2: os.unlink(path)\n"
        "        else: os.mkfifo(path)\n"
        "    except OSError: pass\n"
    )
    program = await sandbox.spawn("python3", "-c", churn)
    async for _ in program.lines():
        break
    async with asyncio.timeout(90):
        for number in range(20):
            with suppress(dsec.FileError):
                await sandbox.files.download("/c", tmp_path / str(number))
    await program.kill()


async def test_an_archive_that_leads_out(sandbox: dsec.Sandbox) -> None:
    """Members with dots, absolute names, through links of the archive's own: beneath the target or refused."""
    await sandbox.run_shell("mkdir /in /out", check=True)
    for names in (
        [("../out/x", None)],
        [("l", "/out"), ("l/x", None)],
        [("l", "../out"), ("l/x", None)],
        [("a", None), ("l", "../in/../out"), ("l/x", None)],
    ):
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as archive:
            for name, link in names:
                info = tarfile.TarInfo(name)
                if link is not None:
                    info.type, info.linkname = tarfile.SYMTYPE, link
                archive.addfile(info, io.BytesIO())
        with pytest.raises(dsec.FileError):
            await upload_tar(sandbox, [stream.getvalue()], {"path": "/in"}, lambda _: None)
    assert (await sandbox.run_shell("ls -A /out")).stdout == ""


async def test_archive_bombs(sandbox: dsec.Sandbox) -> None:
    """Headers of gigabytes and maps without end are refused; a file of 8 EiB of holes is only that."""
    huge = tarfile.TarInfo("huge")
    huge.pax_headers = {
        "GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "huge",
        "GNU.sparse.realsize": str(2**63 - 1),
    }  # fmt: skip
    huge.size = 512
    holes = huge.tobuf(tarfile.PAX_FORMAT) + b"1\n9223372036854775807\n0\n".ljust(512, b"\0")
    long = tarfile.TarInfo("long")
    long.type, long.size = b"x", 1 << 33
    endless = tarfile.TarInfo("map")
    endless.pax_headers = dict(huge.pax_headers, **{"GNU.sparse.realsize": "1"})
    endless.size = 1 << 30
    maps = endless.tobuf(tarfile.PAX_FORMAT) + b"100000000\n" + b"0\n" * 1_000_000
    await sandbox.files.mkdir("/in")
    for bomb in (long.tobuf(tarfile.GNU_FORMAT), maps):
        with pytest.raises(dsec.FileError):
            await upload_tar(sandbox, [bomb + bytes(2048)], {"path": "/in"}, lambda _: None)
    assert (await sandbox.run_shell("ls -A /in")).stdout == ""
    await upload_tar(sandbox, [holes + bytes(2048)], {"path": "/in"}, lambda _: None)
    assert (await sandbox.run_shell("stat -c '%s %b' /in/huge")).stdout == f"{2**63 - 1} 0\n"


async def test_devices_come_neither_in_nor_out(sandbox: dsec.Sandbox, tmp_path: Path) -> None:
    """Device members are left out; /dev gives none away."""
    info = tarfile.TarInfo("null")
    info.type, info.devmajor, info.devminor = tarfile.CHRTYPE, 1, 3
    await sandbox.files.mkdir("/in")
    done = await upload_tar(sandbox, [info.tobuf() + bytes(1024)], {"path": "/in"}, lambda _: None)
    assert (done.entries, done.skipped_count) == (0, 1)
    with pytest.raises(dsec.FileError):
        await sandbox.files.download("/dev/null", tmp_path / "x")


def _unpacked(archive: bytes, target: Path, **how: bool) -> Counts:
    pieces = iter([archive[:700], archive[700:]])
    counts = Counts()
    settings = {"owners": False, "set_ids": False, "all_links": True} | how
    Unpacking(str(target), counts, **settings).run(lambda: next(pieces, b""))
    return counts


@pytest.mark.parametrize(
    "names",
    [
        [("../x", "")],
        [("a/../../x", "")],
        [("l", "/outside"), ("l/x", "")],
        [("l", ".."), ("l/x", "")],
        [("d/l", "../.."), ("d/l/x", "")],
        [("l", "/outside"), ("l/", "dir")],
    ],
)
def test_nothing_is_written_outside_here(tmp_path: Path, names: list[tuple[str, str]]) -> None:
    """An archive of a sandbox that lies about names and links: an error here, and nothing outside the target."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, link in names:
            info = tarfile.TarInfo(name)
            if link == "dir":
                info.type = tarfile.DIRTYPE
            elif link:
                info.type, info.linkname = tarfile.SYMTYPE, link.replace("/outside", str(tmp_path / "outside"))
            archive.addfile(info, io.BytesIO())
    (tmp_path / "outside").mkdir()
    (tmp_path / "target").mkdir()
    with pytest.raises(dsec.DSecError):
        _unpacked(stream.getvalue(), tmp_path / "target")
    assert os.listdir(tmp_path / "outside") == []  # noqa: PTH208
    assert sorted(os.listdir(tmp_path)) == ["outside", "target"]  # noqa: PTH208


async def test_a_connection_can_ask_for_nothing_else(sandbox: dsec.Sandbox) -> None:
    """A transfer's connection is copied unread to the runtime: another open on it ends it."""
    from dsec.api import frames

    address = sandbox._link().bulk_address(sandbox.id)
    bulk = Bulk(address, _transfer_id(), {"direction": "upload", "path": "/x"})

    def attempt() -> bool:
        bulk._connect(0)
        assert bulk._next()[1] == frames.Kind.ITEM
        bulk._send_frame(frames.open_frame(2, "sandbox.list", {}))
        try:
            while True:
                if bulk._next()[0] == 2:
                    return False
        except Exception:
            return True
        finally:
            bulk._close()

    assert await asyncio.to_thread(attempt)
    # What it began waits for its client half a minute, or until the sandbox ends.
