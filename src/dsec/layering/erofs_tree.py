"""What is in a layer, read from its EROFS metadata without mounting it.

Only what dsec makes, and has made, is read: uncompressed inodes, file contents in one extra device. The metadata may
come from a store, so every offset and every count in it is treated as hostile.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dsec.errors import ImageCorrupt, Unsupported

__all__ = ["LayerTree", "Node"]

_MAGIC = 0xE0F5E1E2
_SUPER_AT = 1024
_SUPER = struct.Struct("<IIIBBHQQIIII")
_COMPACT = struct.Struct("<HHHHIIIIHHI")
_EXTENDED = struct.Struct("<HHHHQIIIIQII")
_DIRENT = struct.Struct("<QHBB")
_XATTR_HEAD = 12
_XATTR_ENTRY = struct.Struct("<BBH")
_PREFIXES = {
    1: b"user.",
    2: b"system.posix_acl_access",
    3: b"system.posix_acl_default",
    4: b"trusted.",
    6: b"security.",
}
_OPAQUE = b"trusted.overlay.opaque"
_HOLE = 0xFFFFFFFF
_PLAIN, _INLINE, _CHUNKS = 0, 2, 4
_INDEXES = 0x20
_MOST_DEPTH = 4096
_MOST_ENTRIES = 4_000_000
"""As many as an archive may have (``max_entries``)."""
_MOST_NAMED = 2 << 30
"""Bytes of all paths and links: whoever walks may keep them."""
_MOST_NAME = 255
_MOST_LINK = 1 << 16
_MOST_DIRECTORY = 1 << 30
_MOST_FILE = 1 << 42
_PIECE = 1 << 20


class Node(NamedTuple):
    """A file of a layer."""

    path: bytes
    """From the root, without a slash in front; empty for the root itself."""
    mode: int
    """Kind and permissions, as ``st_mode``."""
    uid: int
    gid: int
    size: int
    rdev: int
    """Of devices, as the kernel encodes it; 0 of a character device is a whiteout."""
    target: bytes
    """Of symbolic links."""
    opaque: bool
    """A directory that hides what lower layers have in it."""
    nid: int
    """Equal for hard links of one file."""
    mtime_ns: int = 0

    @property
    def is_directory(self) -> bool:
        """Whether it is one."""
        return stat.S_ISDIR(self.mode)

    @property
    def is_whiteout(self) -> bool:
        """Whether it stands for a file of a lower layer that is removed."""
        return stat.S_ISCHR(self.mode) and self.rdev == 0


class _Inode(NamedTuple):
    at: int
    layout: int
    xattr_bytes: int
    mode: int
    size: int
    value: int
    uid: int
    gid: int
    head_bytes: int
    mtime_ns: int


class LayerTree:
    """A layer's files; a context manager. Every method may raise ImageCorrupt."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._data = -1
        with (directory / "metadata").open("rb") as file:
            try:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError:
                raise _damaged("it is empty") from None
        self._read_super()

    def __enter__(self) -> LayerTree:
        return self

    def __exit__(self, *_: object) -> None:
        self._map.close()
        if self._data >= 0:
            os.close(self._data)

    def _bytes(self, at: int, length: int) -> bytes:
        if at < 0 or length < 0 or at + length > len(self._map):
            raise _damaged("it points outside itself")
        return self._map[at : at + length]

    def _unpack(self, form: struct.Struct, at: int) -> tuple[int, ...]:
        return form.unpack(self._bytes(at, form.size))

    def _read_super(self) -> None:
        magic, _, _, block_bits, _, root, _, built, built_ns, _, meta, shared = self._unpack(_SUPER, _SUPER_AT)
        if magic != _MAGIC:
            raise _damaged("it is no EROFS")
        if not 9 <= block_bits <= 16:
            raise _damaged("its blocks have an impossible size")
        self._block = 1 << block_bits
        self._root = root
        self._built_ns = _signed(built) * 1_000_000_000 + built_ns
        self._inodes_at = meta * self._block
        self._shared_at = shared * self._block

    def walk(self) -> Iterator[Node]:
        """Every file, the root first, each directory right before what is in it, by name.

        A directory has one name: metadata in which two names mean one, or a directory is in itself, would show
        exponentially many files. Hard links are any number of names of another file, so the names are counted too.
        """
        seen: set[int] = set()
        left, named = _MOST_ENTRIES, _MOST_NAMED
        todo = [iter([(b"", self._root)])]
        while todo:
            if (entry := next(todo[-1], None)) is None:
                todo.pop()
                continue
            path, nid = entry
            inode = self._inode(nid)
            node = self._node(path, nid, inode)
            left, named = left - 1, named - len(path) - len(node.target)
            if left < 0 or named < 0:
                raise _damaged("it has more files than any layer")
            yield node
            if stat.S_ISDIR(inode.mode):
                if nid in seen or len(todo) > _MOST_DEPTH:
                    raise _damaged("a directory is in itself, or in two others")
                seen.add(nid)
                todo.append(self._below(path, inode))

    def _below(self, path: bytes, directory: _Inode) -> Iterator[tuple[bytes, int]]:
        return ((_join(path, name), nid) for name, nid in self._entries(directory))

    def _inode(self, nid: int) -> _Inode:
        at = self._inodes_at + nid * 32
        form = int.from_bytes(self._bytes(at, 2), "little")
        if form & 1:
            _, icount, mode, _, size, value, _, uid, gid, seconds, part_ns, _ = self._unpack(_EXTENDED, at)
            head, mtime_ns = 64, _signed(seconds) * 1_000_000_000 + part_ns
        else:
            _, icount, mode, _, size, _, value, _, uid, gid, _ = self._unpack(_COMPACT, at)
            head, mtime_ns = 32, self._built_ns
        xattrs = _XATTR_HEAD + 4 * (icount - 1) if icount else 0
        return _Inode(at, form >> 1 & 7, xattrs, mode, size, value, uid, gid, head, mtime_ns)

    def _node(self, path: bytes, nid: int, inode: _Inode) -> Node:
        kind = stat.S_IFMT(inode.mode)
        if kind == stat.S_IFLNK and inode.size > _MOST_LINK:
            raise _damaged("a link is impossibly long")
        return Node(
            path,
            inode.mode,
            inode.uid,
            inode.gid,
            inode.size if kind in (stat.S_IFREG, stat.S_IFLNK) else 0,
            inode.value if kind in (stat.S_IFCHR, stat.S_IFBLK) else 0,
            self._flat(inode) if kind == stat.S_IFLNK else b"",
            kind == stat.S_IFDIR and self._attributes(inode).get(_OPAQUE) == b"y",
            nid,
            inode.mtime_ns,
        )

    def _flat(self, inode: _Inode) -> bytes:
        """The content of a link or small file, which lies in the metadata."""
        return b"".join(self._blocks(inode))

    def _blocks(self, inode: _Inode) -> Iterator[bytes]:
        """The content of what lies in the metadata, block by block."""
        if inode.size > _MOST_DIRECTORY:
            raise _damaged("a directory is impossibly large")
        if inode.layout not in (_PLAIN, _INLINE):
            raise Unsupported("the layer holds a directory or link that is not flat")
        tail = inode.size % self._block if inode.layout == _INLINE else 0
        start = inode.value * self._block
        for at in range(0, inode.size - tail, self._block):
            yield self._bytes(start + at, min(self._block, inode.size - at))
        if tail:
            yield self._bytes(inode.at + inode.head_bytes + inode.xattr_bytes, tail)

    def _entries(self, inode: _Inode) -> Iterator[tuple[bytes, int]]:
        for block in self._blocks(inode):
            if len(block) < _DIRENT.size:
                raise _damaged("a directory is cut short")
            first = _DIRENT.unpack_from(block)[1]
            if first % _DIRENT.size or not _DIRENT.size <= first <= len(block):
                raise _damaged("a directory is malformed")
            found = [_DIRENT.unpack_from(block, each) for each in range(0, first, _DIRENT.size)]
            ends = [offset for _, offset, _, _ in found[1:]] + [len(block)]
            for (nid, offset, _, _), end in zip(found, ends, strict=True):
                name = block[offset:end].split(b"\0", 1)[0]
                if not first <= offset <= end <= len(block) or not 0 < len(name) <= _MOST_NAME or b"/" in name:
                    raise _damaged("a name is malformed")
                if name not in (b".", b".."):
                    yield name, nid

    def attributes(self, nid: int) -> dict[bytes, bytes]:
        """Extended attributes by full name, overlay's among them."""
        return self._attributes(self._inode(nid))

    def _attributes(self, inode: _Inode) -> dict[bytes, bytes]:
        if not inode.xattr_bytes:
            return {}
        start = inode.at + inode.head_bytes
        raw = self._bytes(start, inode.xattr_bytes)
        at = _XATTR_HEAD + 4 * raw[4]
        if at > len(raw):
            raise _damaged("an attribute is malformed")
        places = [int.from_bytes(raw[each : each + 4], "little") for each in range(_XATTR_HEAD, at, 4)]
        found = dict(self._attribute(self._shared_at + 4 * place) for place in places)
        while at + _XATTR_ENTRY.size <= len(raw):
            name_length, _, value_length = _XATTR_ENTRY.unpack_from(raw, at)
            name, value = self._attribute(start + at)
            found[name] = value
            at += -(-(_XATTR_ENTRY.size + name_length + value_length) // 4) * 4
        return found

    def _attribute(self, at: int) -> tuple[bytes, bytes]:
        name_length, prefix, value_length = self._unpack(_XATTR_ENTRY, at)
        text = self._bytes(at + _XATTR_ENTRY.size, name_length + value_length)
        # One of a kind that is not known here keeps a name that nobody asks for.
        return _PREFIXES.get(prefix, b"%d:" % prefix) + text[:name_length], text[name_length:]

    def content(self, nid: int, piece: int = _PIECE) -> Iterator[bytes]:
        """A regular file's bytes, in pieces of that size; a file that lies in the metadata is one piece."""
        inode = self._inode(nid)
        if inode.layout in (_PLAIN, _INLINE):
            yield self._flat(inode)
            return
        if inode.layout != _CHUNKS or not inode.value & _INDEXES:
            raise Unsupported("the layer holds a file that is stored in another way")
        if inode.size > _MOST_FILE:
            raise _damaged("a file is impossibly large")
        chunk_bits = self._block.bit_length() - 1 + (inode.value & 0x1F)
        for at in range(0, inode.size, piece):
            yield b"".join(self._extents(inode, chunk_bits, at, min(at + piece, inode.size)))

    def _extents(self, inode: _Inode, chunk_bits: int, at: int, end: int) -> Iterator[bytes]:
        while at < end:
            number, inside = at >> chunk_bits, at & (1 << chunk_bits) - 1
            length = min((1 << chunk_bits) - inside, end - at)
            yield self._extent(inode, number, inside, length)
            at += length

    def _extent(self, inode: _Inode, number: int, inside: int, length: int) -> bytes:
        table = -(-(inode.at + inode.head_bytes + inode.xattr_bytes) // 8) * 8
        _, device, block = struct.unpack("<HHI", self._bytes(table + number * 8, 8))
        if block == _HOLE:
            return bytes(length)
        if device == 0:
            return self._bytes(block * self._block + inside, length)
        raw = os.pread(self._data_fd(), length, block * self._block + inside)
        if len(raw) != length:
            raise _damaged("a file lies beyond the end of the data")
        return raw

    def _data_fd(self) -> int:
        if self._data < 0:
            self._data = os.open(self._directory / "data", os.O_RDONLY | os.O_CLOEXEC)
        return self._data


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _join(path: bytes, name: bytes) -> bytes:
    return path + b"/" + name if path else name


def _damaged(why: str) -> ImageCorrupt:
    return ImageCorrupt(f"the metadata of a layer is damaged: {why}", remedy="dsec layer verify says which")
