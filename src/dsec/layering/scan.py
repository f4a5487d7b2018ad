"""A directory of this machine as a tree of a layer."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

from dsec.errors import ImageCorrupt, Unsupported
from dsec.layering.encode import check_attribute
from dsec.layering.names import shown
from dsec.layering.reading import pieces_of
from dsec.layering.trees import NO_ATTRIBUTES, Attributes, Directory, Inode, Regular, Special, Symlink, whiteout

__all__ = ["DirectoryContents", "scan"]

_OVERLAY = b"trusted.overlay."
_OPAQUE = _OVERLAY + b"opaque"
_OF_THE_UPPER = frozenset(_OVERLAY + each for each in (b"origin", b"impure", b"nlink", b"uuid", b"upper"))
"""What overlay notes in the layer that it writes; means nothing anywhere else."""
_NO_ATTRIBUTES = (errno.EOPNOTSUPP, errno.ENODATA)
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def scan(root: bytes, *, max_entries: int) -> Directory:
    """The tree of a directory, which nobody writes to meanwhile.

    Overlay's mark of opaque directories and its whiteouts (character devices 0/0) are kept as such. Raises
    ImageCorrupt (more entries than allowed), Unsupported (a file whose content lies in another layer), OSError.
    """
    return _Scan(max_entries).run(root)


class _Scan:
    def __init__(self, max_entries: int) -> None:
        self._left = max_entries
        self._linked: dict[tuple[int, int], Inode] = {}

    def run(self, root: bytes) -> Directory:
        top = self._file(root, os.lstat(root))
        if not isinstance(top, Directory):
            raise ImageCorrupt("a layer's root is not a directory")
        todo = [(root, top)]
        while todo:
            path, directory = todo.pop()
            with os.scandir(path) as entries:
                for entry in entries:
                    self._left -= 1
                    if self._left < 0:
                        raise ImageCorrupt(
                            "a layer holds more files than the node allows", remedy="Raise max_entries"
                        )
                    child = self._file(entry.path, entry.stat(follow_symlinks=False))
                    directory.children[entry.name] = child
                    if isinstance(child, Directory):
                        todo.append((entry.path, child))
        return top

    def _file(self, path: bytes, found: os.stat_result) -> Inode:
        several = found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode)
        if several:
            known = self._linked.get((found.st_dev, found.st_ino))
            if known is not None:
                return known
        inode = _inode(path, found)
        if several:
            self._linked[found.st_dev, found.st_ino] = inode
        return inode


def _inode(path: bytes, found: os.stat_result) -> Inode:
    mode, mtime_ns = found.st_mode, found.st_mtime_ns
    if stat.S_ISCHR(mode) and found.st_rdev == 0:
        return whiteout()
    attributes = _attributes(path)
    opaque = attributes.pop(_OPAQUE, None) if attributes else None
    owner = found.st_uid, found.st_gid
    if stat.S_ISDIR(mode):
        return Directory(mode, *owner, mtime_ns, attributes, opaque=opaque == b"y")
    if stat.S_ISREG(mode):
        return Regular(mode, *owner, mtime_ns, attributes, size=found.st_size)
    if stat.S_ISLNK(mode):
        return Symlink(os.readlink(path), *owner, mtime_ns, attributes)  # noqa: PTH115 - paths are bytes
    rdev = _encoded(found.st_rdev) if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) else 0
    return Special(mode, *owner, mtime_ns, attributes, rdev=rdev)


def _encoded(device: int) -> int:
    """A device number as the kernel keeps it on disks."""
    major, minor = os.major(device), os.minor(device)
    return minor & 0xFF | major << 8 | (minor & ~0xFF) << 12


def _attributes(path: bytes) -> Attributes:
    try:
        names = os.listxattr(path, follow_symlinks=False)
    except OSError as error:
        if error.errno in _NO_ATTRIBUTES:
            return NO_ATTRIBUTES
        raise
    if not names:
        return NO_ATTRIBUTES
    found: Attributes = {}
    for each in names:
        name = os.fsencode(each)
        if name in _OF_THE_UPPER:
            continue
        value = os.getxattr(path, name, follow_symlinks=False)
        if name.startswith(_OVERLAY) and name != _OPAQUE:
            raise Unsupported(f"{shown(path)} has {shown(name)}: its content lies in another layer")
        if check_attribute(name, value):
            found[name] = value
    return found or NO_ATTRIBUTES


class DirectoryContents:
    """The files of a scanned directory."""

    def __init__(self, root: bytes) -> None:
        self._root = root

    def pieces(self, path: bytes, file: Regular) -> Iterator[bytes | None]:
        """See ``Contents``."""
        fd = os.open(self._root + b"/" + path, _READ)
        try:
            if os.fstat(fd).st_size != file.size:
                raise _changed(path)
            yield from pieces_of(fd, file.size, lambda: _changed(path))
        finally:
            os.close(fd)


def _changed(path: bytes) -> ImageCorrupt:
    return ImageCorrupt(f"{shown(path)} changes while a layer is made of it")
