"""Files of a layer as objects. Pure: what is in a file is known only to whoever made the object (``Contents``)."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from typing import Protocol

__all__ = [
    "NO_ATTRIBUTES",
    "Attributes",
    "Contents",
    "Directory",
    "Inode",
    "Regular",
    "Special",
    "Symlink",
    "is_whiteout",
    "walk",
    "whiteout",
]

Attributes = dict[bytes, bytes]
NO_ATTRIBUTES: Attributes = {}
"""Shared by all files without extended attributes; never written to."""


class Inode:
    """A file of any kind; hard links are one object under several names."""

    __slots__ = ("attributes", "gid", "mode", "mtime_ns", "nid", "uid")

    def __init__(self, mode: int, uid: int, gid: int, mtime_ns: int, attributes: Attributes = NO_ATTRIBUTES) -> None:
        self.mode = mode
        """Kind and permissions, as ``st_mode``."""
        self.uid = uid
        self.gid = gid
        self.mtime_ns = mtime_ns
        """Since 1970; negative before."""
        self.attributes = attributes
        """Extended attributes by full name, without those of overlay."""
        self.nid = 0
        """Where the layer has it, once that is settled."""


class Directory(Inode):
    """A directory and what is in it."""

    __slots__ = ("children", "opaque")

    def __init__(
        self,
        mode: int = stat.S_IFDIR | 0o755,
        uid: int = 0,
        gid: int = 0,
        mtime_ns: int = 0,
        attributes: Attributes = NO_ATTRIBUTES,
        *,
        opaque: bool = False,
    ) -> None:
        super().__init__(mode, uid, gid, mtime_ns, attributes)
        self.children: dict[bytes, Inode] = {}
        self.opaque = opaque
        """Whether it hides what lower layers have in it."""


class Regular(Inode):
    """A regular file."""

    __slots__ = ("blocks", "size", "source")

    def __init__(
        self,
        mode: int,
        uid: int,
        gid: int,
        mtime_ns: int,
        attributes: Attributes = NO_ATTRIBUTES,
        *,
        size: int = 0,
        source: object = None,
    ) -> None:
        super().__init__(mode, uid, gid, mtime_ns, attributes)
        self.size = size
        self.source = source
        """Means something to the tree's ``Contents`` only."""
        self.blocks: tuple[int, ...] | None = None
        """Where the layer's data has each of its pieces, once they are placed."""


class Symlink(Inode):
    """A symbolic link."""

    __slots__ = ("target",)

    def __init__(
        self, target: bytes, uid: int, gid: int, mtime_ns: int, attributes: Attributes = NO_ATTRIBUTES
    ) -> None:
        super().__init__(stat.S_IFLNK | 0o777, uid, gid, mtime_ns, attributes)
        self.target = target


class Special(Inode):
    """A device, FIFO or socket."""

    __slots__ = ("rdev",)

    def __init__(
        self, mode: int, uid: int, gid: int, mtime_ns: int, attributes: Attributes = NO_ATTRIBUTES, *, rdev: int = 0
    ) -> None:
        super().__init__(mode, uid, gid, mtime_ns, attributes)
        self.rdev = rdev
        """Of devices, as the kernel encodes it in 32 bits."""


class Contents(Protocol):
    """Reads the regular files of one tree."""

    def pieces(self, path: bytes, file: Regular) -> Iterator[bytes | None]:
        """The file's bytes in order, in pieces of ``CHUNK_SIZE`` but the last; None for one known to be all zeros."""
        ...


def whiteout() -> Special:
    """What stands for a removed file of a lower layer."""
    return Special(stat.S_IFCHR, 0, 0, 0)


def is_whiteout(inode: Inode) -> bool:
    """Whether a file is one."""
    return isinstance(inode, Special) and inode.rdev == 0 and stat.S_ISCHR(inode.mode)


def walk(root: Directory) -> Iterator[tuple[bytes, Inode]]:
    """Every file with its path, the root (empty path) first, each directory before what is in it, by name."""
    stack: list[tuple[bytes, Inode]] = [(b"", root)]
    while stack:
        path, inode = stack.pop()
        yield path, inode
        if isinstance(inode, Directory):
            prefix = path + b"/" if path else b""
            children = inode.children
            stack += [(prefix + name, children[name]) for name in sorted(children, reverse=True)]
