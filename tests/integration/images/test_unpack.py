"""What an archive holds is laid down: owners, modes, times, links, attributes, whiteouts, holes, odd names."""

from __future__ import annotations

import gzip
import io
import os
import stat
import subprocess
import tarfile
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from dsec.images.samples import Member, layer_archive
from dsec.images.streams import archive_chunks
from dsec.images.unpack import Unpacked, UnpackOptions, unpack

pytestmark = pytest.mark.node
DIR, SYM, LNK, CHR, FIFO = tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE


def lay(root: Path, archive: bytes, **options: object) -> Unpacked:
    """Unpack an archive below a fresh directory."""
    root.mkdir()
    made = UnpackOptions(**{"max_bytes": 1 << 30, **options})  # type: ignore[arg-type]
    return unpack(archive_chunks(io.BytesIO(archive)), str(root), made, threading.Event())


def lay_members(root: Path, members: Sequence[Member], **options: object) -> Unpacked:
    """Unpack an archive of these members."""
    return lay(root, layer_archive(members), **options)


def test_owner_mode_and_time_are_kept(tmp_path: Path) -> None:
    """Numeric owners, setuid bits, and times to the nanosecond come through, also of directories filled later."""
    root = tmp_path / "t"
    lay_members(root, [
        Member(name="d/", kind=DIR, mode=0o2750, uid=5, gid=6, mtime=1.25),
        Member(name="d/su", data=b"x", mode=0o4755, uid=1000, gid=33, mtime=1_600_000_000.5),
        Member(name="d/link", kind=SYM, link="/etc/passwd", uid=7, gid=8, mtime=2),
        Member(name="d/old", data=b"", mtime=-5),
    ])  # fmt: skip
    top = (root / "d").stat()
    assert (stat.S_IMODE(top.st_mode), top.st_uid, top.st_gid, top.st_mtime_ns) == (0o2750, 5, 6, 1_250_000_000)
    program = (root / "d/su").stat()
    assert (stat.S_IMODE(program.st_mode), program.st_uid, program.st_gid) == (0o4755, 1000, 33)
    assert program.st_mtime_ns == 1_600_000_000_500_000_000
    link = (root / "d/link").lstat()
    assert (link.st_uid, link.st_gid, link.st_mtime_ns) == (7, 8, 2 * 10**9)
    assert (root / "d/link").readlink() == Path("/etc/passwd")
    assert (root / "d/old").stat().st_mtime == 0  # EROFS keeps no time before 1970


def test_parents_without_an_entry_are_made(tmp_path: Path) -> None:
    """Missing parents belong to root, have a fixed time, and the mode that everybody expects of them."""
    root = tmp_path / "t"
    lay_members(root, [Member(name="a/b/c", uid=1), Member(name="tmp/x"), Member(name="root/x")])
    made = (root / "a/b").stat()
    assert (made.st_uid, stat.S_IMODE(made.st_mode), made.st_mtime) == (0, 0o755, 0)
    assert stat.S_IMODE((root / "tmp").stat().st_mode) == 0o1777
    assert stat.S_IMODE((root / "root").stat().st_mode) == 0o700
    assert stat.S_IMODE(root.stat().st_mode) == 0o755


def test_hard_links_share_an_inode(tmp_path: Path) -> None:
    """Two names of one file stay one file, whichever directory they are in."""
    root = tmp_path / "t"
    lay_members(root, [
        Member(name="a/x", data=b"one"),
        Member(name="b/y", kind=LNK, link="a/x"),
        Member(name="b/z", kind=LNK, link="/a/x"),
    ])  # fmt: skip
    assert (root / "a/x").stat().st_ino == (root / "b/y").stat().st_ino == (root / "b/z").stat().st_ino


def test_attributes_and_nodes(tmp_path: Path) -> None:
    """File capabilities and user attributes are set; nodes and FIFOs are made; what Linux cannot keep is counted."""
    root = tmp_path / "t"
    capability = "\x01\x00\x00\x02\x00\x20\x00\x00" + "\x00" * 12
    done = lay_members(root, [
        Member(name="ping", data=b"x", mode=0o755, xattrs={"security.capability": capability, "user.a": "b\nc"}),
        Member(name="mac", xattrs={"com.apple.quarantine": "q"}),
        Member(name="null", kind=CHR, device=(1, 3), mode=0o666),
        Member(name="fifo", kind=FIFO, mode=0o600, uid=4),
    ])  # fmt: skip
    assert os.getxattr(root / "ping", "security.capability") == capability.encode()
    assert os.getxattr(root / "ping", "user.a") == b"b\nc"
    assert (root / "null").stat().st_rdev == os.makedev(1, 3)
    assert stat.S_ISFIFO((root / "fifo").stat().st_mode)
    assert (root / "fifo").stat().st_uid == 4
    assert done.dropped_attributes == 1


def names(directory: Path) -> list[bytes]:
    """What a directory holds, as bytes."""
    return sorted(os.fsencode(each.name) for each in directory.iterdir())


def is_whiteout(path: Path) -> bool:
    """Whether overlay would take it for a deletion."""
    found = path.lstat()
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def test_whiteouts(tmp_path: Path) -> None:
    """Deletions become 0/0 devices, opaque directories get overlay's attribute, aufs' records vanish."""
    root = tmp_path / "t"
    lay_members(root, [
        Member(name="d/.wh.gone"),
        Member(name="o/.wh..wh..opq"),
        Member(name="o/kept", data=b"k"),
        Member(name=".wh..wh.plnk/", kind=DIR),
    ])  # fmt: skip
    assert is_whiteout(root / "d/gone")
    assert os.getxattr(root / "o", "trusted.overlay.opaque") == b"y"
    assert (root / "o/kept").read_bytes() == b"k"
    assert names(root) == [b"d", b"o"]


@pytest.mark.parametrize("first", [True, False])
def test_a_whiteout_deletes_only_what_lies_below(tmp_path: Path, first: bool) -> None:
    """A name that the layer both deletes and makes is made anew, in either order; a directory becomes opaque."""
    root = tmp_path / "t"
    deletions = [Member(name=".wh.file"), Member(name=".wh.dir")]
    made = [Member(name="file", data=b"new"), Member(name="dir/x")]
    lay_members(root, deletions + made if first else made + deletions)
    assert (root / "file").read_bytes() == b"new"
    assert os.getxattr(root / "dir", "trusted.overlay.opaque") == b"y"


def test_plain_names_when_whiteouts_are_off(tmp_path: Path) -> None:
    """In a user's directory .wh. is a name like any other."""
    root = tmp_path / "t"
    lay_members(root, [Member(name=".wh.x", data=b"1"), Member(name=".wh..wh..opq", data=b"2")], whiteouts=False)
    assert names(root) == [b".wh..wh..opq", b".wh.x"]


def test_later_entries_replace_earlier_ones(tmp_path: Path) -> None:
    """File over directory, directory over file, symlink over file, directory over directory: the last one holds."""
    root = tmp_path / "t"
    lay_members(root, [
        Member(name="a/deep/x"), Member(name="a", data=b"file"),
        Member(name="b"), Member(name="b/", kind=DIR, mode=0o700), Member(name="b/x"),
        Member(name="c", data=b"1"), Member(name="c", kind=SYM, link="a"),
        Member(name="c", data=b"2"),
        Member(name="d/", kind=DIR, mode=0o700, uid=9), Member(name="d/y"), Member(name="d/", kind=DIR, mode=0o755),
    ])  # fmt: skip
    assert (root / "a").read_bytes() == b"file"
    assert (root / "b/x").is_file()
    assert not (root / "c").is_symlink()
    assert (root / "c").read_bytes() == b"2"
    top = (root / "d").stat()
    assert (stat.S_IMODE(top.st_mode), top.st_uid, (root / "d/y").is_file()) == (0o755, 0, True)


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    """A name is bytes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT, encoding="latin-1") as archive:
        archive.addfile(tarfile.TarInfo("x\xff"))
        archive.addfile(tarfile.TarInfo("long\xfe" * 40))
    root = tmp_path / "t"
    lay(root, out.getvalue())
    assert names(root) == [b"long\xfe" * 40, b"x\xff"]


@pytest.mark.parametrize(
    "form",
    [["--format=gnu"], ["--format=pax"], *(["--format=pax", f"--sparse-version={v}"] for v in ("0.0", "0.1", "1.0"))],
)
def test_sparse_files_of_gnu_tar(tmp_path: Path, form: list[str]) -> None:
    """Every way in which GNU tar writes holes is read, byte for byte, and the holes stay holes."""
    source = tmp_path / "source"
    source.mkdir()
    with (source / "sparse").open("wb") as file:
        for i in range(40):
            file.seek(i * 1_000_000)
            file.write(b"%d" % i * 500)
        file.truncate(50_000_000)
    (source / "after").write_bytes(b"after")
    archive = tmp_path / "a.tar"
    subprocess.run(["tar", "-C", source, "-S", *form, "-cf", archive, "sparse", "after"], check=True)
    assert archive.stat().st_size < 2_000_000
    root = tmp_path / "t"
    lay(root, archive.read_bytes())
    assert (root / "sparse").read_bytes() == (source / "sparse").read_bytes()
    assert (root / "sparse").stat().st_blocks * 512 < 2_000_000
    assert (root / "after").read_bytes() == b"after"


def test_gzip_of_several_members(tmp_path: Path) -> None:
    """Concatenated gzip members are one archive (pigz and bgzip write them)."""
    archive = layer_archive([Member(name="x", data=os.urandom(3_000_000))])
    half = len(archive) // 2
    root = tmp_path / "t"
    lay(root, gzip.compress(archive[:half]) + gzip.compress(archive[half:]) + b"\0" * 100)
    assert (root / "x").stat().st_size == 3_000_000


def test_laid_over_a_path_with_an_owner(tmp_path: Path) -> None:
    """A user's directory lies below the path given, with its own mode there, all of one owner."""
    root = tmp_path / "t"
    members = [Member(name="./", kind=DIR, mode=0o700, uid=501), Member(name="./x", mode=0o751, uid=501, gid=20)]
    lay_members(root, members, below=(b"opt", b"w"), owner=(10, 11), whiteouts=False)
    top, file = (root / "opt/w").stat(), (root / "opt/w/x").stat()
    assert (stat.S_IMODE(top.st_mode), top.st_uid, top.st_gid) == (0o700, 10, 11)
    assert (stat.S_IMODE(file.st_mode), file.st_uid, file.st_gid) == (0o751, 10, 11)
    assert (root / "opt").stat().st_uid == 0
    lay_members(tmp_path / "u", members, whiteouts=False)
    # Laid over /, the directory's own mode must not become that of the sandbox's root.
    assert stat.S_IMODE((tmp_path / "u").stat().st_mode) == 0o755
