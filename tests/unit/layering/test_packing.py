"""A snapshot as a layer: whiteouts, opaque directories, links, owners and attributes kept, hostile trees refused."""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.unit.layering.laid import Laid, from_directory

from dsec.errors import Unsupported
from dsec.layering.erofs_tree import LayerTree
from dsec.layering.packing.attributes import inside, settled
from dsec.layering.packing.beneath import open_beneath
from dsec.layering.packing.job import Packed, PackJob
from dsec.layering.packing.packing import pack
from dsec.layering.packing.residue import DEFAULT_RULES, Rule

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="whiteouts and overlay's marks need root")

RANGE = 0x4000_0000 + 7 * 0x1_0000
OPAQUE = "trusted.overlay.opaque"


class Upper:
    """A directory as an overlay leaves one, packed on demand."""

    def __init__(self, where: Path) -> None:
        self.root = where / "upper"
        self.root.mkdir()
        self._out = where
        self._number = 0

    def file(self, path: str, content: bytes = b"x", mode: int = 0o644) -> Path:
        """A file, its parents too."""
        made = self.root / path
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_bytes(content)
        made.chmod(mode)
        return made

    def whiteout(self, path: str) -> None:
        """What stands for a removed file."""
        made = self.root / path
        made.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(made, stat.S_IFCHR, 0)

    def opaque(self, path: str) -> None:
        """A directory that hides what is below it."""
        made = self.root / path
        made.mkdir(parents=True, exist_ok=True)
        os.setxattr(made, OPAQUE, b"y")

    def pack(
        self, rules: Sequence[Rule] = (), keep: Sequence[str] = (), below: Sequence[Path] = (),
        *, max_entries: int = 100_000, max_bytes: int = 1 << 30,
    ) -> tuple[Laid, Packed]:  # fmt: skip
        """The layer, and what was told of it."""
        self._number += 1
        out = self._out / f"out-{self._number}"
        out.mkdir()
        job = PackJob(
            rules=tuple(rules), keep=tuple(keep), below=tuple(map(str, below)), max_entries=max_entries,
            max_bytes=max_bytes,
        )  # fmt: skip
        fd = os.open(self.root, os.O_PATH | os.O_DIRECTORY)
        try:
            packed = pack(job, fd, out)
        finally:
            os.close(fd)
        return Laid(out, packed.made), packed


@pytest.fixture
def upper(tmp_path: Path) -> Upper:
    """An empty one."""
    return Upper(tmp_path)


def test_what_was_written_is_in_it(upper: Upper) -> None:
    """Modes with set-ID bits, times, links, holes, FIFOs and names that are no text; hard links are one file."""
    tool = upper.file("usr/bin/tool", b"#!/bin/sh\n", 0o4755)
    os.utime(tool, ns=(0, 1_700_000_000_123_456_789))
    os.link(tool, upper.root / "usr/bin/again")
    (upper.root / "link").symlink_to("/etc/shadow")
    os.mkfifo(upper.root / "pipe")
    with (upper.root / "sparse").open("wb") as file:
        file.truncate(5 << 20)
        file.seek(4 << 20)
        file.write(b"end")
    (upper.root / os.fsdecode(b"n\xff\n")).write_bytes(b"odd")
    laid, packed = upper.pack()
    assert laid.names == sorted([
        b"link", b"n\xff\n", b"pipe", b"sparse", b"usr", b"usr/bin", b"usr/bin/again", b"usr/bin/tool",
    ])  # fmt: skip
    assert stat.S_IMODE(laid[b"usr/bin/tool"].mode) == 0o4755
    assert laid[b"usr/bin/tool"].nid == laid[b"usr/bin/again"].nid
    assert laid[b"usr/bin/tool"].mtime_ns == 1_700_000_000_123_456_789
    assert laid[b"link"].target == b"/etc/shadow" and stat.S_ISFIFO(laid[b"pipe"].mode)
    assert laid.contents[b"sparse"] == bytes(4 << 20) + b"end" + bytes((1 << 20) - 3)
    assert (packed.report.entries, packed.report.removed_files) == (9, 0)
    again, _ = upper.pack()
    assert again.made == laid.made


def test_removals_stay_whatever_the_rules_say(upper: Upper) -> None:
    """A whiteout or an opaque directory in what is residue still hides the lower layers' files."""
    upper.whiteout("gone")
    upper.whiteout("var/cache/apt/gone")
    upper.file("var/cache/apt/archive.deb", bytes(5000))
    upper.opaque("var/lib/apt/lists")
    upper.file("var/lib/apt/lists/list")
    laid, packed = upper.pack(DEFAULT_RULES)
    assert laid[b"gone"].is_whiteout and laid[b"var/cache/apt/gone"].is_whiteout
    assert laid[b"var/lib/apt/lists"].opaque
    assert b"var/cache/apt/archive.deb" not in laid.files and b"var/lib/apt/lists/list" not in laid.files
    assert packed.report.whiteouts == 2 and packed.report.removed_files == 2
    assert [(each.path, each.rule) for each in packed.report.removed] == [
        ("/var/cache/apt", "package cache"), ("/var/lib/apt/lists", "package cache"),
    ]  # fmt: skip


def test_residue_goes_with_its_directories_and_is_told(upper: Upper) -> None:
    """Directories without anything that stays go too; what is kept stays with its parents; terminals are safe."""
    upper.file("root/.cache/pip/a/b/wheel", bytes(10_000))
    upper.file("root/.cache/pip/c", bytes(10_000))
    upper.file("root/.cache/uv/mine/kept", b"kept")
    upper.file("root/.netrc", b"secret")
    upper.file("tmp/x\x1b[2J", b"t")
    laid, packed = upper.pack(DEFAULT_RULES, ["/root/.cache/uv/mine/"])
    assert laid.names == [
        b"root", b"root/.cache", b"root/.cache/uv", b"root/.cache/uv/mine", b"root/.cache/uv/mine/kept", b"tmp",
    ]  # fmt: skip
    told = {each.path: (each.rule, each.bytes > 0) for each in packed.report.removed}
    assert told["/root/.cache/pip"] == ("package cache", True) and told["/root/.netrc"] == ("credentials", True)
    assert "/tmp/x\\x1b[2J" in told
    assert packed.report.removed_files == 4 and packed.report.removed_bytes >= 20_000
    assert packed.report.entries == len(laid.files)


def test_owners_are_those_inside_the_sandbox(upper: Upper) -> None:
    """Also where the disk shows the node's range, in access lists and file capabilities as well."""
    for name, owner in (("plain", (33, 1000)), ("ranged", (RANGE + 33, RANGE))):
        os.chown(upper.file(name), *owner)
    laid, _ = upper.pack()
    assert (laid[b"plain"].uid, laid[b"plain"].gid) == (33, 1000)
    assert (laid[b"ranged"].uid, laid[b"ranged"].gid) == (33, 0)
    assert [inside(each) for each in (0, 65_535, RANGE, RANGE + 5)] == [0, 65_535, 0, 5]
    acl = b"\2\0\0\0" + struct.pack("<HHIHHI", 1, 7, 0xFFFF_FFFF, 2, 6, RANGE + 9)
    for_root = struct.pack("<IIIIII", 0x0300_0001, 7, 7, 7, 7, RANGE)
    inner = struct.pack("<IIIIII", 0x0300_0000, 7, 7, 7, 7, RANGE + 5)
    powers = b"security.capability"
    found = settled(b"f", {b"system.posix_acl_access": acl, powers: for_root}, is_directory=False).attributes
    assert found[b"system.posix_acl_access"][-4:] == struct.pack("<I", 9)
    assert found[powers] == struct.pack("<IIIII", 0x0200_0001, 7, 7, 7, 7)
    assert settled(b"f", {powers: inner}, is_directory=False).attributes[powers] == inner[:20] + struct.pack("<I", 5)


def test_attributes_in_order(upper: Upper) -> None:
    """The user's own stay, overlay's own notes go, what no layer means anything by is counted."""
    made = upper.file("file")
    os.setxattr(made, "user.x", b"y")
    os.setxattr(made, "trusted.overlay.origin", b"whatever")
    laid, _ = upper.pack()
    assert laid.attributes[b"file"] == {b"user.x": b"y"}
    own = settled(b"f", {b"security.selinux": b"l", b"btrfs.compression": b"z"}, is_directory=False)
    assert (own.dropped, own.attributes) == (2, {})
    for mark in (b"trusted.overlay.redirect", b"trusted.overlay.metacopy", b"trusted.overlay.opaque"):
        with pytest.raises(Unsupported):
            settled(b"f", {mark: b"x"}, is_directory=True)


def test_over_a_workspace_it_shows_what_the_sandbox_showed(upper: Upper, tmp_path: Path) -> None:
    """Files of the layer below come along, unless they were removed, replaced or hidden."""
    lower = tmp_path / "lower"
    for name in ("kept/a", "kept/b", "hidden/a", "gone"):
        (lower / name).parent.mkdir(parents=True, exist_ok=True)
        (lower / name).write_bytes(b"lower " + name.encode())
    below = from_directory(tmp_path / "below", lower).directory
    upper.file("kept/b", b"upper")
    upper.whiteout("gone")
    upper.opaque("hidden")
    upper.file("hidden/b", b"new")
    laid, _ = upper.pack(below=[below])
    assert laid.contents == {b"kept/a": b"lower kept/a", b"kept/b": b"upper", b"hidden/b": b"new"}
    assert laid[b"gone"].is_whiteout and laid[b"hidden"].opaque
    with LayerTree(below) as tree:
        assert sum(1 for _ in tree.walk()) == 7


def test_too_much_is_refused(upper: Upper) -> None:
    """Entries, residue among them, bytes with holes, depth and attributes have bounds."""
    upper.file("a")
    upper.file("tmp/b")
    with pytest.raises(Unsupported, match="more files"):
        upper.pack(DEFAULT_RULES, max_entries=2)
    os.truncate(upper.root / "a", 2 << 30)
    with pytest.raises(Unsupported, match="more bytes"):
        upper.pack()
    os.truncate(upper.root / "a", 0)
    fd = os.open(upper.root, os.O_RDONLY)
    for _ in range(450):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    with pytest.raises(Unsupported, match="too deep"):
        upper.pack()


def test_nothing_is_followed(tmp_path: Path) -> None:
    """No link, at the end or on the way, and no way up leads out; a FIFO makes nobody wait."""
    (tmp_path / "root").mkdir()
    (tmp_path / "secret").write_bytes(b"s")
    (tmp_path / "root/way").symlink_to("/etc")
    (tmp_path / "root/link").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "root/pipe")
    fd = os.open(tmp_path / "root", os.O_PATH | os.O_DIRECTORY)
    try:
        for path in (b"link", b"way/passwd", b"../secret", b"/etc/passwd", b"pipe/.."):
            with pytest.raises(OSError):
                os.close(open_beneath(fd, path, os.O_RDONLY))
        os.close(open_beneath(fd, b"pipe", os.O_RDONLY))
    finally:
        os.close(fd)
