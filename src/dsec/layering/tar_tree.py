"""An archive as a tree of a layer, without unpacking it: for archives that may be hostile.

No name of an archive ever reaches a file system of this machine. OCI whiteouts become what overlay reads. Owners stay
numeric; modes, set-ID bits, times, extended attributes, hard links, holes and device nodes are kept.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

import msgspec

from dsec.errors import ImageCorrupt
from dsec.layering import tar
from dsec.layering.encode import check_attribute
from dsec.layering.names import Parts, shown, split_name
from dsec.layering.placing import CHUNK_SIZE
from dsec.layering.streams import ExactReader
from dsec.layering.trees import NO_ATTRIBUTES, Attributes, Directory, Inode, Regular, Special, Symlink, whiteout

__all__ = ["ArchiveContents", "TarOptions", "TarTree", "read_tree"]

_WHITEOUT = b".wh."
_OPAQUE = b".wh..wh..opq"
_MAX_ID = (1 << 32) - 2
_MAX_TIME_NS = (1 << 33) * 1_000_000_000
_MOST_HELD = 1 << 30
"""Bytes of names, links, attributes and sparse maps of one archive, which are kept in memory."""
_USUAL_MODES: dict[Parts, int] = {(b"tmp",): 0o1777, (b"var", b"tmp"): 0o1777, (b"root",): 0o700}
_KINDS = {tar.CHAR: stat.S_IFCHR, tar.BLOCK_DEVICE: stat.S_IFBLK, tar.FIFO: stat.S_IFIFO}
_ACLS = (b"system.posix_acl_access", b"system.posix_acl_default")


class TarOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How an archive is laid down, and what it may cost."""

    max_bytes: int
    """Bound of the archive's size, and of the sum of file sizes, holes included."""
    max_entries: int = 4_000_000
    below: tuple[str, ...] = ()
    """Directory of the layer that the archive is laid into, made if missing. The archive's own root entry
    (``./``) gives its mode, but never that of the layer's root."""
    owner: tuple[int, int] | None = None
    """Owner of everything (uid, gid); None keeps the archive's."""
    whiteouts: bool = True
    """Whether ``.wh.`` names are whiteouts (an OCI layer) or plain files (a directory of a user's)."""
    newer_than_ns: int | None = None
    """Times from then on (of files that the archive's own making touched) become ``newer_becomes_ns``."""
    newer_becomes_ns: int = 0
    end_mark: bool = True
    """Whether an archive without closing blocks is cut short; else a digest must say that nothing is missing."""


def read_tree(reader: ExactReader, options: TarOptions) -> Directory:
    """Read an uncompressed archive to its end; each file's ``source`` is where the archive has it.

    Raises ImageCorrupt (malformed, cut short, leaves the root, over the bounds).
    """
    tree = TarTree(options)
    for entry in tar.entries(reader, end_mark=options.end_mark):
        at = reader.position
        reader.skip(entry.stored)
        tree.add(entry, at)
    reader.drain()
    return tree.finish()


class TarTree:
    """Takes an archive's entries in order, and makes the tree that unpacking them would make."""

    def __init__(self, options: TarOptions) -> None:
        self._options = options
        self._below: Parts = tuple(each.encode() for each in options.below)
        self._root = Directory()
        self._entries = self._bytes = self._held = 0
        self._recent: tuple[Parts, Directory] = ((), self._root)
        self._whiteouts: set[Parts] = set()
        self._opaque: set[Parts] = set()
        self.dropped_attributes = 0
        """Attributes that Linux cannot keep (such as those of macOS)."""
        self._directory(self._below)

    def add(self, entry: tar.Entry, at: int) -> None:
        """The next entry, whose data begins at ``at``."""
        self._count(entry)
        parts = self._below + split_name(entry.name)
        if self._options.whiteouts and parts and parts[-1].startswith(_WHITEOUT):
            self._add_whiteout(parts)
        elif entry.kind == tar.DIRECTORY:
            self._add_directory(parts, entry)
        elif len(parts) <= len(self._below):
            raise ImageCorrupt("a layer's root is not a directory")
        elif entry.kind == tar.HARDLINK:
            self._add_hard_link(parts, entry)
        else:
            self._put(parts, self._file(entry, at))

    def _count(self, entry: tar.Entry) -> None:
        options = self._options
        newest = options.newer_than_ns
        # Archives hold whole seconds.
        if newest is not None and entry.mtime_ns >= newest // 1_000_000_000 * 1_000_000_000:
            entry.mtime_ns = options.newer_becomes_ns
        entry.mtime_ns = max(-_MAX_TIME_NS, min(entry.mtime_ns, _MAX_TIME_NS))
        self._count_one()
        self._bytes += entry.size
        self._held += len(entry.name) + len(entry.link) + 32 * len(entry.sparse or ())
        self._held += sum(len(name) + len(value) for name, value in entry.xattrs.items())
        if self._bytes > options.max_bytes:
            raise ImageCorrupt("a layer unpacks to more than the node allows", remedy="Raise max_image_bytes")
        if self._held > _MOST_HELD:
            raise ImageCorrupt("a layer holds more than 1 GiB of names and attributes")
        if options.owner is not None:
            entry.uid, entry.gid = options.owner
        elif not (0 <= entry.uid <= _MAX_ID and 0 <= entry.gid <= _MAX_ID):
            raise ImageCorrupt(f"a layer holds an impossible owner: {entry.uid}:{entry.gid}")

    def _count_one(self) -> None:
        self._entries += 1
        if self._entries > self._options.max_entries:
            raise ImageCorrupt("a layer holds more files than the node allows", remedy="Raise max_entries")

    # Directories

    def _directory(self, parts: Parts, *, create: bool = True) -> Directory:
        if self._recent[0] == parts:
            return self._recent[1]
        found = self._root
        for depth, name in enumerate(parts, 1):
            child = found.children.get(name)
            if child is None:
                if not create:
                    where = shown(b"/".join(parts[:depth]))
                    raise ImageCorrupt(f"a layer refers to {where}, which it does not hold")
                # One name of an archive may make hundreds of these.
                self._count_one()
                # The topmost layer's mode is what a sandbox sees.
                child = Directory(stat.S_IFDIR | _USUAL_MODES.get(parts[:depth], 0o755))
                found.children[name] = child
            elif not isinstance(child, Directory):
                where = shown(b"/".join(parts[:depth]))
                raise ImageCorrupt(f"a layer holds names below {where}, which is no directory")
            found = child
        self._recent = (parts, found)
        return found

    def _find(self, parts: Parts) -> Inode | None:
        return self._directory(parts[:-1]).children.get(parts[-1]) if parts else self._root

    def _put(self, parts: Parts, inode: Inode) -> None:
        children = self._directory(parts[:-1]).children
        if isinstance(children.get(parts[-1]), Directory):
            self._recent = ((), self._root)
        children[parts[-1]] = inode

    def _add_directory(self, parts: Parts, entry: tar.Entry) -> None:
        if not parts and not self._options.whiteouts:
            return
        found = self._find(parts)
        if not isinstance(found, Directory):
            found = Directory()
            self._put(parts, found)
        # An earlier entry of the same name may have said otherwise.
        found.mode = stat.S_IFDIR | entry.mode
        found.uid, found.gid, found.mtime_ns = entry.uid, entry.gid, entry.mtime_ns
        own = self._attributes(entry)
        found.attributes = found.attributes | own if own else found.attributes

    # Everything else

    def _file(self, entry: tar.Entry, at: int) -> Inode:
        owner = entry.uid, entry.gid, entry.mtime_ns
        attributes = self._attributes(entry)
        if entry.kind == tar.REGULAR:
            source: object = at if entry.sparse is None else (at, tuple(entry.sparse))
            return Regular(stat.S_IFREG | entry.mode, *owner, attributes, size=entry.size, source=source)
        if entry.kind == tar.SYMLINK:
            if not 0 < len(entry.link) < 4096 or b"\0" in entry.link:
                raise ImageCorrupt(f"a layer holds an impossible symbolic link: {shown(entry.link[:80])}")
            return Symlink(entry.link, *owner, attributes)
        major, minor = entry.major & 0xFFF, entry.minor & 0xFFFFF
        rdev = 0 if entry.kind == tar.FIFO else minor & 0xFF | major << 8 | (minor & ~0xFF) << 12
        return Special(_KINDS[entry.kind] | entry.mode, *owner, attributes, rdev=rdev)

    def _add_hard_link(self, parts: Parts, entry: tar.Entry) -> None:
        source = self._below + split_name(entry.link)
        if source == parts:
            return
        if len(source) <= len(self._below):
            raise ImageCorrupt("a layer holds a hard link to its root")
        found = self._directory(source[:-1], create=False).children.get(source[-1])
        if found is None or isinstance(found, Directory):
            raise ImageCorrupt(f"a layer holds a hard link to {shown(entry.link)}, which is no file of this layer")
        self._put(parts, found)

    def _attributes(self, entry: tar.Entry) -> Attributes:
        if not entry.xattrs:
            return NO_ATTRIBUTES
        kept: Attributes = {}
        for name, value in entry.xattrs.items():
            if name.startswith(b"trusted.overlay."):
                raise ImageCorrupt("a layer holds overlay attributes of its own")
            if _fits(entry.kind, name) and check_attribute(name, value):
                if name in _ACLS and not _is_acl(value):
                    raise ImageCorrupt(f"a layer holds an impossible attribute {shown(name)}")
                kept[name] = value
            else:
                self.dropped_attributes += 1
        return kept

    def _add_whiteout(self, parts: Parts) -> None:
        name = parts[-1]
        if name == _OPAQUE:
            self._opaque.add(parts[:-1])
        elif name.startswith(b".wh..wh."):
            return  # aufs kept its own records under such names; they delete nothing
        elif name[4:] in (b"", b".", b".."):
            raise ImageCorrupt(f"a layer holds a whiteout of nothing: {shown(name)}")
        else:
            self._whiteouts.add((*parts[:-1], name[4:]))

    def finish(self) -> Directory:
        """The tree. A whiteout speaks of the layers below only: what the archive holds under that name stays."""
        for parts in sorted(self._whiteouts):
            found = self._find(parts)
            if found is None:
                self._put(parts, whiteout())
            elif isinstance(found, Directory):
                found.opaque = True
        for parts in sorted(self._opaque):
            self._directory(parts).opaque = True
        return self._root


def _fits(kind: bytes, name: bytes) -> bool:
    """Whether Linux allows an attribute of that name on a file of that kind."""
    if name.startswith(b"user."):
        return kind in (tar.REGULAR, tar.DIRECTORY)
    if name == _ACLS[1]:
        return kind == tar.DIRECTORY
    return name != _ACLS[0] or kind != tar.SYMLINK


def _is_acl(value: bytes) -> bool:
    return len(value) >= 4 and (len(value) - 4) % 8 == 0 and value[:4] == b"\2\0\0\0"


class ArchiveContents:
    """The files of an archive that lies uncompressed in a file."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def pieces(self, path: bytes, file: Regular) -> Iterator[bytes | None]:
        """See ``Contents``."""
        source = file.source
        if isinstance(source, int):
            for at in range(0, file.size, CHUNK_SIZE):
                yield self._read(source + at, min(CHUNK_SIZE, file.size - at), path)
        elif isinstance(source, tuple):
            yield from self._sparse(file.size, source[0], source[1], path)

    def _sparse(
        self, size: int, stored_at: int, extents: tuple[tuple[int, int], ...], path: bytes
    ) -> Iterator[bytes | None]:
        """``extents`` are in order and do not overlap; they may be many, so each is looked at once."""
        number, passed = 0, 0
        for at in range(0, size, CHUNK_SIZE):
            end = min(at + CHUNK_SIZE, size)
            piece: bytearray | None = None
            while number < len(extents) and extents[number][0] < end:
                offset, length = extents[number]
                first, last = max(offset, at), min(offset + length, end)
                if first < last:
                    piece = bytearray(end - at) if piece is None else piece
                    piece[first - at : last - at] = self._read(
                        stored_at + passed + first - offset, last - first, path
                    )
                if offset + length > end:
                    break
                passed += length
                number += 1
            yield None if piece is None else bytes(piece)

    def _read(self, at: int, length: int, path: bytes) -> bytes:
        data = os.pread(self._fd, length, at)
        while len(data) < length:
            more = os.pread(self._fd, length - len(data), at + len(data))
            if not more:
                raise ImageCorrupt(f"the archive ends within {shown(path)}")
            data += more
        return data
