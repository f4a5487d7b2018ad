"""A tree as EROFS metadata: the on-disk form of Linux's ``fs/erofs/erofs_fs.h``, plain, data on a second device.

Everything follows from the tree: no time of day, no random number, no order of directories. Inodes lie in the order
of paths from the place after the superblock on, with their attributes, short directories and links behind them;
directories of more than a block follow.
"""

from __future__ import annotations

import stat
import struct
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

from dsec.errors import ImageCorrupt
from dsec.layering.names import shown
from dsec.layering.placing import BLOCK, CHUNK_SIZE, HOLE
from dsec.layering.trees import Attributes, Directory, Inode, Regular, Special, Symlink, is_whiteout

__all__ = ["check_attribute", "write_metadata"]

_MAGIC = 0xE0F5E1E2
_SUPER_AT = 1024
_SUPER = struct.Struct("<IIIBBHQQIIII16s16sIHHHBBIQB23x")
_DEVICE = struct.Struct("<64sII56x")
_INODE = struct.Struct("<HHHHQIIIIqII16x")
_CHUNK = struct.Struct("<HHI")
_DIRENT = struct.Struct("<QHBx")
_ATTRIBUTES_HEAD = 12
_ATTRIBUTE = struct.Struct("<BBH")

_HAS_MTIMES = 0x2
_CHUNKED_AND_DEVICES = 0x4 | 0x8
_EXTENDED = 1
_PLAIN, _INLINE, _CHUNKS = 0 << 1, 2 << 1, 4 << 1
_CHUNK_FORMAT = (CHUNK_SIZE // BLOCK).bit_length() - 1 | 0x20
_DATA_DEVICE = 1

# All layers have it: a random one would give equal trees different digests.
_UUID = bytes.fromhex("d5ec0000000040008000000000000000")
_FIRST_INODE = _SUPER_AT + _SUPER.size + _DEVICE.size
_SLOT = 32
_TYPES = {
    stat.S_IFREG: 1,
    stat.S_IFDIR: 2,
    stat.S_IFCHR: 3,
    stat.S_IFBLK: 4,
    stat.S_IFIFO: 5,
    stat.S_IFSOCK: 6,
    stat.S_IFLNK: 7,
}
_PREFIXES = ((b"user.", 1), (b"trusted.", 4), (b"security.", 6))
_ACLS = {b"system.posix_acl_access": 2, b"system.posix_acl_default": 3}
_OPAQUE = b"trusted.overlay.opaque"
_ORIGIN = b"trusted.overlay.origin"
_MOST_ATTRIBUTES = 0xFFFF * 4


class _Where(NamedTuple):
    layout: int
    block: int
    """First block of what lies apart."""


def check_attribute(name: bytes, value: bytes) -> bool:
    """Whether a layer can hold an extended attribute of this name; raises ImageCorrupt if it is too large."""
    for prefix, _ in _PREFIXES:
        if name.startswith(prefix):
            if not 0 < len(name) - len(prefix) <= 255 or len(value) > 0xFFFF:
                raise ImageCorrupt(f"a layer holds an impossible attribute {shown(name[:80])}")
            return True
    return name in _ACLS and len(value) <= 0xFFFF


def write_metadata(root: Directory, out: BinaryIO, block_of: Callable[[int], int], data_size: int) -> int:
    """Write a tree whose files are placed to ``out``; returns the bytes written.

    ``block_of`` says which block of the data a token of ``Regular.blocks`` means. Raises ImageCorrupt for a file that
    EROFS cannot hold (attributes of more than 256 KiB).
    """
    return _Metadata(root, out, block_of, data_size).write()


class _Metadata:
    def __init__(self, root: Directory, out: BinaryIO, block_of: Callable[[int], int], data_size: int) -> None:
        self._root = root
        self._out = out
        self._block_of = block_of
        self._data_blocks = -(-data_size // BLOCK)
        self._links: dict[Inode, int] = {}
        """Names of each file that has several."""
        self._inodes = 0
        self._apart: list[tuple[Directory | Symlink, Directory]] = []
        """What lies in blocks of its own, in their order, and its parent."""
        self._where: dict[Inode, _Where] = {}

    def write(self) -> int:
        end = self._settle()
        apart_at = -(-end // BLOCK)
        blocks = self._settle_apart(apart_at)
        self._out.write(bytes(_SUPER_AT) + self._super(blocks) + self._device())
        at = _FIRST_INODE
        for inode, parent in _names(self._root):
            start = inode.nid * _SLOT
            if start < at:
                continue  # another name of a file that is written
            body = self._inode(inode, parent)
            self._out.write(bytes(start - at))
            self._out.write(body)
            at = start + len(body)
        self._out.write(bytes(apart_at * BLOCK - at))
        for each, parent in self._apart:
            content = _content(each, parent)
            whole = len(content) - (len(content) % BLOCK if self._where[each].layout == _INLINE else 0)
            self._out.write(content[:whole] + bytes(-whole % BLOCK))
        return blocks * BLOCK

    def _settle(self) -> int:
        """Give every inode its place; returns where the last one ends."""
        at = _FIRST_INODE
        for inode, parent in _names(self._root):
            if inode.nid:
                self._links[inode] = self._links.get(inode, 1) + 1
                continue
            self._inodes += 1
            head = _INODE.size + _attributes_size(inode)
            behind = self._behind(inode, parent, head)
            # Neither an inode nor what is read together with it may lie in two blocks.
            together = _INODE.size if isinstance(inode, Regular) or not behind else head + behind
            at = -(-at // _SLOT) * _SLOT
            if at % BLOCK + together > BLOCK:
                at = -(-at // BLOCK) * BLOCK
            inode.nid = at // _SLOT
            at += head + behind
        return at

    def _behind(self, inode: Inode, parent: Directory, head: int) -> int:
        """Bytes that lie behind an inode and its attributes; notes what lies apart."""
        if isinstance(inode, Regular):
            return -head % _CHUNK.size + _CHUNK.size * len(inode.blocks) if inode.blocks else 0
        if not isinstance(inode, Directory | Symlink):
            return 0
        size = _content_size(inode)
        tail = size % BLOCK
        inline = 0 < tail <= BLOCK - head
        self._where[inode] = _Where(_INLINE if inline else _PLAIN, 0)
        if size > tail or not inline:
            self._apart.append((inode, parent))
        return tail if inline else 0

    def _settle_apart(self, block: int) -> int:
        for inode, _ in self._apart:
            layout, size = self._where[inode].layout, _content_size(inode)
            self._where[inode] = _Where(layout, block)
            block += size // BLOCK if layout == _INLINE else -(-size // BLOCK)
        return block

    def _super(self, blocks: int) -> bytes:
        return _SUPER.pack(
            _MAGIC, 0, _HAS_MTIMES, BLOCK.bit_length() - 1, 0, self._root.nid, self._inodes, 0, 0, blocks, 0, 0,
            _UUID, b"", _CHUNKED_AND_DEVICES, 0, 1, (_SUPER_AT + _SUPER.size) // _DEVICE.size, 0, 0, 0, 0, 0,
        )  # fmt: skip

    def _device(self) -> bytes:
        return _DEVICE.pack(b"", self._data_blocks, 0)

    def _inode(self, inode: Inode, parent: Directory) -> bytes:
        attributes = _attributes(inode)
        layout, size, value, behind, links = _PLAIN, 0, 0, b"", self._links.get(inode, 1)
        if isinstance(inode, Regular):
            size = inode.size
            if inode.blocks:
                layout, value = _CHUNKS, _CHUNK_FORMAT
                places = map(self._block_of, inode.blocks)
                table = b"".join(_CHUNK.pack(0, 0 if each == HOLE else _DATA_DEVICE, each) for each in places)
                behind = bytes(-(_INODE.size + len(attributes)) % _CHUNK.size) + table
        elif isinstance(inode, Directory | Symlink):
            content = _content(inode, parent)
            size = len(content)
            layout, value = self._where[inode]
            behind = content[size - size % BLOCK :] if layout == _INLINE else b""
            if isinstance(inode, Directory):
                links = 2 + sum(isinstance(each, Directory) for each in inode.children.values())
        elif isinstance(inode, Special):
            value = inode.rdev
        seconds, nanoseconds = divmod(inode.mtime_ns, 1_000_000_000)
        count = (len(attributes) - _ATTRIBUTES_HEAD) // 4 + 1 if attributes else 0
        head = _INODE.pack(
            layout | _EXTENDED, count, inode.mode, 0, size, value, inode.nid & 0xFFFFFFFF, inode.uid, inode.gid,
            seconds, nanoseconds, links,
        )  # fmt: skip
        return head + attributes + behind


def _names(root: Directory) -> Iterator[tuple[Inode, Directory]]:
    """Every name's file and the directory that it is in, in the order of paths; the root is in itself."""
    stack: list[tuple[Inode, Directory]] = [(root, root)]
    while stack:
        inode, parent = stack.pop()
        yield inode, parent
        if isinstance(inode, Directory):
            children = inode.children
            stack += [(children[name], inode) for name in sorted(children, reverse=True)]


# Directories and links


def _blocks_of_names(directory: Directory) -> Iterator[list[bytes]]:
    """The names of a directory, sorted, as its blocks have them."""
    names: list[bytes] = []
    used = 0
    for name in sorted([b".", b"..", *directory.children]):
        need = _DIRENT.size + len(name)
        if used + need > BLOCK:
            yield names
            names, used = [], 0
        names.append(name)
        used += need
    yield names


def _content_size(inode: Directory | Symlink) -> int:
    if isinstance(inode, Symlink):
        return len(inode.target)
    if not inode.children:
        return 2 * _DIRENT.size + 3
    *whole, last = _blocks_of_names(inode)
    return len(whole) * BLOCK + sum(_DIRENT.size + len(name) for name in last)


def _content(inode: Directory | Symlink, parent: Directory) -> bytes:
    if isinstance(inode, Symlink):
        return inode.target
    blocks: list[bytes] = []
    for names in _blocks_of_names(inode):
        if blocks:
            blocks[-1] += bytes(BLOCK - len(blocks[-1]))
        entries, offset = [], _DIRENT.size * len(names)
        for name in names:
            child = inode if name == b"." else parent if name == b".." else inode.children[name]
            entries.append(_DIRENT.pack(child.nid, offset, _TYPES[stat.S_IFMT(child.mode)]))
            offset += len(name)
        blocks.append(b"".join(entries) + b"".join(names))
    return b"".join(blocks)


# Extended attributes


def _entries(inode: Inode) -> Attributes:
    """All attributes of a file, with those that overlay reads."""
    if not isinstance(inode, Directory):
        return inode.attributes
    own = dict(inode.attributes)
    if inode.opaque:
        own[_OPAQUE] = b"y"
    if any(map(is_whiteout, inode.children.values())):
        # Overlay looks for whiteouts only in directories that it merges, or that say that they are copies. Without
        # this a whiteout is listed (as a name that leads to nothing) where no lower layer has the directory.
        own[_ORIGIN] = b""
    return own


def _attributes_size(inode: Inode) -> int:
    size = len(_attributes(inode))
    if size > _MOST_ATTRIBUTES:
        raise ImageCorrupt("a layer holds a file with more than 256 KiB of attributes")
    return size


def _attributes(inode: Inode) -> bytes:
    entries = _entries(inode)
    if not entries:
        return b""
    out = bytearray(_ATTRIBUTES_HEAD)
    for name in sorted(entries):
        number, suffix = _numbered(name)
        value = entries[name]
        out += _ATTRIBUTE.pack(len(suffix), number, len(value)) + suffix + value
        out += bytes(-len(out) % 4)
    return bytes(out)


def _numbered(name: bytes) -> tuple[int, bytes]:
    if name in _ACLS:
        return _ACLS[name], b""
    for prefix, number in _PREFIXES:
        if name.startswith(prefix):
            return number, name[len(prefix) :]
    raise ImageCorrupt(f"a layer holds an attribute {shown(name[:80])} that no layer can hold")
