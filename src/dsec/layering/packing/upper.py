"""The tree of what a sandbox has written, from a snapshot of it: nothing of it is trusted, and nobody writes to it.

Every directory is opened below the snapshot's root without following anything; files are opened only when their bytes
are read. Whiteouts and opaque directories stay whatever the rules say: they remove what a lower layer has.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

from dsec.errors import Unsupported
from dsec.layering.names import Parts, shown
from dsec.layering.packing.attributes import inside, settled
from dsec.layering.packing.beneath import open_beneath
from dsec.layering.packing.report import MOST_LISTED, Report, Residual
from dsec.layering.packing.residue import STAYS, Rules
from dsec.layering.reading import pieces_of
from dsec.layering.trees import Contents, Directory, Inode, Regular, Special, Symlink, whiteout

__all__ = ["Bounds", "UpperContents", "scan_upper"]

_MAX_PATH = 3800
_MAX_DEPTH = 400
_MAX_TIME_NS = (1 << 33) * 1_000_000_000
_MOST_HELD = 1 << 30
_NONE = (errno.EOPNOTSUPP, errno.ENODATA)


class Bounds(NamedTuple):
    """What a layer may hold at most."""

    max_entries: int
    max_bytes: int
    """Of all files, holes included."""


class _Place(NamedTuple):
    """A directory that is still to be read."""

    path: bytes
    parts: Parts
    directory: Directory
    fate: int
    top: bytes
    """Of residue: the path by which it goes."""


def scan_upper(root: int, rules: Rules, bounds: Bounds) -> tuple[Directory, Report]:
    """The tree below a directory, without its residue. Raises Unsupported (what no layer can hold), OSError."""
    return _Scan(root, rules, bounds).run()


class _Scan:
    def __init__(self, root: int, rules: Rules, bounds: Bounds) -> None:
        self._root = root
        self._rules = rules
        self._bounds = bounds
        self._linked: dict[int, Inode] = {}
        self._seen = self._held = 0
        self._going: list[tuple[Directory, bytes, Directory]] = []
        self._removed: dict[bytes, list[int]] = {}
        self._report = Report(removed=[])

    def run(self) -> tuple[Directory, Report]:
        whole = self._inode(self._root, b".", os.fstat(self._root), b"")
        if not isinstance(whole, Directory):
            raise Unsupported("what the sandbox has written is no directory", phase="pack")
        # Of a root overlay reads no mark.
        whole.opaque = False
        self._report.entries = 1
        todo = [_Place(b"", (), whole, STAYS, b"")]
        while todo:
            place = todo.pop()
            fd = open_beneath(self._root, place.path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                for name in self._names(fd):
                    self._entry(fd, place, name, todo)
            finally:
                os.close(fd)
        self._finish()
        return whole, self._report

    def _names(self, fd: int) -> list[bytes]:
        with os.scandir(fd) as entries:
            names = [os.fsencode(each.name) for each in entries]
        # Residue is counted too: names must not fill the builder's memory.
        self._seen += len(names)
        self._held += sum(map(len, names))
        if self._seen > self._bounds.max_entries:
            raise Unsupported("the sandbox has written more files than a layer may hold", phase="pack")
        # In order, so that what is listed is the same each time.
        return sorted(names)

    def _entry(self, fd: int, place: _Place, name: bytes, todo: list[_Place]) -> None:
        path, parts = place.path + b"/" + name if place.path else name, (*place.parts, name)
        if len(path) > _MAX_PATH or len(parts) > _MAX_DEPTH:
            raise Unsupported(f"a path is too long or too deep for a layer: {shown(path[:80])}…", phase="pack")
        found = os.stat(name, dir_fd=fd, follow_symlinks=False)
        is_directory = stat.S_ISDIR(found.st_mode)
        is_whiteout = stat.S_ISCHR(found.st_mode) and found.st_rdev == 0
        fate = self._rules.fate(place.fate, parts, is_directory=is_directory)
        top = place.top if place.fate >= 0 else path
        if fate >= 0 and not is_directory and not is_whiteout:
            self._goes(top, fate, found)
            return
        inode = self._file(fd, name, found, path)
        place.directory.children[name] = inode
        self._report.whiteouts += is_whiteout
        self._count(found)
        if isinstance(inode, Directory):
            todo.append(_Place(path, parts, inode, fate, top))
            if fate >= 0:
                self._going.append((place.directory, name, inode))
                self._removed.setdefault(top, [fate, 0])

    def _goes(self, top: bytes, rule: int, found: os.stat_result) -> None:
        took = found.st_blocks * 512 if found.st_nlink == 1 else 0
        self._removed.setdefault(top, [rule, 0])[1] += took
        self._report.removed_files += 1
        self._report.removed_bytes += took

    def _count(self, found: os.stat_result) -> None:
        self._report.entries += 1
        self._report.bytes += found.st_size if stat.S_ISREG(found.st_mode) else 0
        if self._report.bytes > self._bounds.max_bytes:
            raise Unsupported(
                "the sandbox has written more bytes than a layer may hold, holes included", phase="pack"
            )

    def _finish(self) -> None:
        """Directories that go are empty by now, but for those that hide something or in which something stays."""
        for parent, name, directory in reversed(self._going):
            if not directory.children and not directory.opaque:
                del parent.children[name]
                self._report.entries -= 1
        listed = sorted(self._removed.items())[:MOST_LISTED]
        self._report.removed = [Residual(_text(path), self._rules.name(rule), took) for path, (rule, took) in listed]

    def _file(self, fd: int, name: bytes, found: os.stat_result, path: bytes) -> Inode:
        if found.st_nlink == 1 or stat.S_ISDIR(found.st_mode):
            return self._inode(fd, name, found, path)
        known = self._linked.get(found.st_ino)
        if known is None:
            known = self._linked[found.st_ino] = self._inode(fd, name, found, path)
        return known

    def _inode(self, fd: int, name: bytes, found: os.stat_result, path: bytes) -> Inode:
        mode = found.st_mode
        if stat.S_ISCHR(mode) and found.st_rdev == 0:
            return whiteout()
        own = settled(path, self._attributes(fd, name, path), is_directory=stat.S_ISDIR(mode))
        self._report.dropped_attributes += own.dropped
        time_ns = max(-_MAX_TIME_NS, min(found.st_mtime_ns, _MAX_TIME_NS))
        owner = inside(found.st_uid), inside(found.st_gid), time_ns
        if stat.S_ISDIR(mode):
            return Directory(mode, *owner, own.attributes, opaque=own.opaque)
        if stat.S_ISREG(mode):
            return Regular(mode, *owner, own.attributes, size=found.st_size)
        if stat.S_ISLNK(mode):
            return Symlink(os.readlink(name, dir_fd=fd), *owner, own.attributes)
        rdev = _encoded(found.st_rdev) if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) else 0
        return Special(mode, *owner, own.attributes, rdev=rdev)

    def _attributes(self, fd: int, name: bytes, path: bytes) -> dict[bytes, bytes]:
        # The last name is not followed; what is before it is a descriptor of ours.
        at = b"/proc/self/fd/%d/%s" % (fd, name)
        try:
            names = [os.fsencode(each) for each in os.listxattr(at, follow_symlinks=False)]
        except OSError as error:
            if error.errno in _NONE:
                return {}
            raise
        found = {each: os.getxattr(at, each, follow_symlinks=False) for each in names}
        self._held += sum(len(key) + len(value) for key, value in found.items())
        if self._held > _MOST_HELD:
            raise Unsupported(f"names and attributes of more than 1 GiB, at {shown(path)}", phase="pack")
        return found


def _encoded(device: int) -> int:
    """A device number as the kernel keeps it on disks."""
    major, minor = os.major(device), os.minor(device)
    return minor & 0xFF | major << 8 | (minor & ~0xFF) << 12


def _text(path: bytes) -> str:
    """A path from the root, without anything that a terminal would obey."""
    text = path.decode(errors="backslashreplace")
    return "/" + "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


class UpperContents(Contents):
    """The files of a scanned snapshot."""

    def __init__(self, root: int) -> None:
        self._root = root

    def pieces(self, path: bytes, file: Regular) -> Iterator[bytes | None]:
        """See ``Contents``."""
        fd = open_beneath(self._root, path, os.O_RDONLY)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or found.st_size != file.size:
                raise _changed(path)
            yield from pieces_of(fd, file.size, lambda: _changed(path))
        finally:
            os.close(fd)


def _changed(path: bytes) -> Unsupported:
    return Unsupported(f"{shown(path)} changes while a layer is made of it", phase="pack")
