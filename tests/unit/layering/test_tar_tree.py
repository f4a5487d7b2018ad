"""What an archive holds is in the layer: owners, modes, times, links, attributes, whiteouts, holes, odd names."""

from __future__ import annotations

import gzip
import io
import os
import stat
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.unit.layering.laid import Laid, from_archive

from dsec.images.samples import Member, layer_archive

DIR, SYM, LNK, CHR, FIFO = tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE


def lay(root: Path, members: Sequence[Member], **options: object) -> Laid:
    """A layer of an archive of these members."""
    return from_archive(root, layer_archive(members), **options)


def owned(laid: Laid, path: bytes) -> tuple[int, int, int]:
    """Permissions and owner."""
    return stat.S_IMODE(laid[path].mode), laid[path].uid, laid[path].gid


def test_owner_mode_and_time_are_kept(tmp_path: Path) -> None:
    """Numeric owners (of any size), set-ID bits and times to the nanosecond, before 1970 too, come through."""
    laid = lay(tmp_path / "t", [
        Member(name="d/", kind=DIR, mode=0o2750, uid=5, gid=6, mtime=1.25),
        Member(name="d/su", data=b"x", mode=0o4755, uid=1000, gid=33, mtime=1_600_000_000.5),
        Member(name="d/link", kind=SYM, link="/etc/passwd", uid=7, gid=8, mtime=2),
        Member(name="d/old", data=b"", mtime=-5.5),
        Member(name="d/far", uid=70_000, gid=4_000_000_000, mtime=1 << 40),
    ])  # fmt: skip
    assert (*owned(laid, b"d"), laid[b"d"].mtime_ns) == (0o2750, 5, 6, 1_250_000_000)
    assert (*owned(laid, b"d/su"), laid[b"d/su"].mtime_ns) == (0o4755, 1000, 33, 1_600_000_000_500_000_000)
    link = laid[b"d/link"]
    assert (link.uid, link.gid, link.mtime_ns, link.target) == (7, 8, 2 * 10**9, b"/etc/passwd")
    assert laid[b"d/old"].mtime_ns == -5_500_000_000
    # Later than 2242 is 2242: not every file system that a file is copied to could keep it.
    assert (*owned(laid, b"d/far")[1:], laid[b"d/far"].mtime_ns) == (70_000, 4_000_000_000, (1 << 33) * 10**9)


def test_parents_without_an_entry_are_made(tmp_path: Path) -> None:
    """Missing parents belong to root, have a fixed time, and the mode that everybody expects of them."""
    laid = lay(tmp_path / "t", [Member(name="a/b/c", uid=1), Member(name="tmp/x"), Member(name="root/x")])
    assert (*owned(laid, b"a/b"), laid[b"a/b"].mtime_ns) == (0o755, 0, 0, 0)
    assert [owned(laid, each)[0] for each in (b"tmp", b"root", b"")] == [0o1777, 0o700, 0o755]


def test_hard_links_share_an_inode(tmp_path: Path) -> None:
    """Two names of one file stay one file, whichever directory they are in."""
    laid = lay(tmp_path / "t", [
        Member(name="a/x", data=b"one"),
        Member(name="b/y", kind=LNK, link="a/x"),
        Member(name="b/z", kind=LNK, link="/a/x"),
    ])  # fmt: skip
    assert laid[b"a/x"].nid == laid[b"b/y"].nid == laid[b"b/z"].nid


def test_attributes_and_nodes(tmp_path: Path) -> None:
    """File capabilities, user attributes and ACLs are kept, devices and FIFOs too; not what Linux cannot have."""
    capability = "\x01\x00\x00\x02\x00\x20\x00\x00" + "\x00" * 12
    acl = "\2\0\0\0" + "\1\0\6\0\x7f\x7f\x7f\x7f"
    laid = lay(tmp_path / "t", [
        Member(name="ping", data=b"x", mode=0o755, xattrs={"security.capability": capability, "user.a": "b\nc"}),
        Member(name="mac", xattrs={"com.apple.quarantine": "q"}),
        Member(name="d/", kind=DIR, xattrs={"system.posix_acl_default": acl, "trusted.mine": "t"}),
        Member(name="link", kind=SYM, link="x", xattrs={"user.no": "links have none"}),
        Member(name="null", kind=CHR, device=(1, 3), mode=0o666),
        Member(name="far", kind=CHR, device=(300, 70_000)),
        Member(name="fifo", kind=FIFO, mode=0o600, uid=4),
    ])  # fmt: skip
    assert laid.attributes[b"ping"] == {b"security.capability": capability.encode(), b"user.a": b"b\nc"}
    assert laid.attributes[b"mac"] == laid.attributes[b"link"] == {}
    assert laid.attributes[b"d"] == {b"system.posix_acl_default": acl.encode(), b"trusted.mine": b"t"}
    assert (laid[b"null"].rdev, laid[b"far"].rdev) == (1 << 8 | 3, 300 << 8 | 70_000 & 0xFF | (70_000 & ~0xFF) << 12)
    assert stat.S_ISFIFO(laid[b"fifo"].mode)
    assert laid[b"fifo"].uid == 4


def test_whiteouts(tmp_path: Path) -> None:
    """Deletions become 0/0 devices, opaque directories get overlay's attribute, aufs' records vanish."""
    laid = lay(tmp_path / "t", [
        Member(name="d/.wh.gone"),
        Member(name="o/.wh..wh..opq"),
        Member(name="o/kept", data=b"k"),
        Member(name=".wh..wh.plnk/", kind=DIR),
    ])  # fmt: skip
    assert laid[b"d/gone"].is_whiteout
    assert laid.attributes[b"o"] == {b"trusted.overlay.opaque": b"y"}
    assert laid.contents[b"o/kept"] == b"k"
    assert laid.names == [b"d", b"d/gone", b"o", b"o/kept"]


@pytest.mark.parametrize("first", [True, False])
def test_a_whiteout_deletes_only_what_lies_below(tmp_path: Path, first: bool) -> None:
    """A name that the layer both deletes and makes is made anew, in either order; a directory becomes opaque."""
    deletions = [Member(name=".wh.file"), Member(name=".wh.dir")]
    made = [Member(name="file", data=b"new"), Member(name="dir/x")]
    laid = lay(tmp_path / "t", deletions + made if first else made + deletions)
    assert laid.contents[b"file"] == b"new"
    assert laid[b"dir"].opaque


def test_plain_names_when_whiteouts_are_off(tmp_path: Path) -> None:
    """In a user's directory .wh. is a name like any other."""
    members = [Member(name=".wh.x", data=b"1"), Member(name=".wh..wh..opq", data=b"2")]
    assert lay(tmp_path / "t", members, whiteouts=False).names == [b".wh..wh..opq", b".wh.x"]


def test_later_entries_replace_earlier_ones(tmp_path: Path) -> None:
    """File over directory, directory over file, symlink over file, directory over directory: the last one holds."""
    laid = lay(tmp_path / "t", [
        Member(name="a/deep/x"), Member(name="a", data=b"file"),
        Member(name="b"), Member(name="b/", kind=DIR, mode=0o700), Member(name="b/x"),
        Member(name="c", data=b"1"), Member(name="c", kind=SYM, link="a"),
        Member(name="c", data=b"2"),
        Member(name="d/", kind=DIR, mode=0o700, uid=9), Member(name="d/y"), Member(name="d/", kind=DIR, mode=0o755),
        Member(name="e", data=b"shared"), Member(name="f", kind=LNK, link="e"), Member(name="e", data=b"new"),
    ])  # fmt: skip
    assert laid.names == [b"a", b"b", b"b/x", b"c", b"d", b"d/y", b"e", b"f"]
    assert [laid.contents[each] for each in (b"a", b"c", b"e", b"f")] == [b"file", b"2", b"new", b"shared"]
    assert owned(laid, b"d") == (0o755, 0, 0)


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    """A name is bytes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT, encoding="latin-1") as archive:
        archive.addfile(tarfile.TarInfo("x\xff"))
        archive.addfile(tarfile.TarInfo("long\xfe" * 40))
    assert from_archive(tmp_path / "t", out.getvalue()).names == [b"long\xfe" * 40, b"x\xff"]


@pytest.mark.parametrize(
    "form",
    [["--format=gnu"], ["--format=pax"], *(["--format=pax", f"--sparse-version={v}"] for v in ("0.0", "0.1", "1.0"))],
)
def test_sparse_files_of_gnu_tar(tmp_path: Path, form: list[str]) -> None:
    """Every way in which GNU tar writes holes is read, byte for byte, and the holes take no room."""
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
    laid = from_archive(tmp_path / "t", archive.read_bytes())
    assert laid.contents[b"sparse"] == (source / "sparse").read_bytes()
    assert laid.made.data_size < 25_000_000
    assert laid.contents[b"after"] == b"after"


def test_gzip_of_several_members(tmp_path: Path) -> None:
    """Concatenated gzip members are one archive (pigz and bgzip write them)."""
    archive = layer_archive([Member(name="x", data=os.urandom(3_000_000))])
    half = len(archive) // 2
    stream = gzip.compress(archive[:half]) + gzip.compress(archive[half:]) + b"\0" * 100
    assert from_archive(tmp_path / "t", stream)[b"x"].size == 3_000_000


def test_laid_over_a_path_with_an_owner(tmp_path: Path) -> None:
    """A user's directory lies below the path given, with its own mode there, all of one owner."""
    members = [Member(name="./", kind=DIR, mode=0o700, uid=501), Member(name="./x", mode=0o751, uid=501, gid=20)]
    laid = lay(tmp_path / "t", members, below=("opt", "w"), owner=(10, 11), whiteouts=False)
    assert (owned(laid, b"opt/w"), owned(laid, b"opt/w/x")) == ((0o700, 10, 11), (0o751, 10, 11))
    assert laid[b"opt"].uid == 0
    # Laid over /, the directory's own mode must not become that of the sandbox's root.
    assert owned(lay(tmp_path / "u", members, whiteouts=False), b"")[0] == 0o755
