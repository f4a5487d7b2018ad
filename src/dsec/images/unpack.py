"""Unpacking a layer's archive into a private directory, for archives that may be hostile.

Nothing outside the directory is read or written, whatever the archive holds (see ``contained``). OCI whiteouts become
what overlay reads: ``.wh.NAME`` a 0/0 character device, ``.wh..wh..opq`` the attribute ``trusted.overlay.opaque``.
Owners stay numeric; modes, setuid bits, times, extended attributes, hard links, holes and device nodes are kept.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Iterator

import msgspec

from dsec.errors import ImageCorrupt, NodeError
from dsec.images import tar
from dsec.images.contained import ContainedTree, Parts, shown, split_name
from dsec.images.disk import FULL, disk_full
from dsec.images.streams import ExactReader
from dsec.images.tar_fields import time_in_range

__all__ = ["Stopped", "UnpackOptions", "Unpacked", "unpack"]

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_WHITEOUT = b".wh."
_OPAQUE = b".wh..wh..opq"
_KEPT_ATTRIBUTES = (b"user.", b"trusted.", b"security.", b"system.posix_acl_")
_MAX_ID = (1 << 32) - 2
_EPOCH = (0, 0)
_DEVICE_KINDS = {tar.CHAR: stat.S_IFCHR, tar.BLOCK_DEVICE: stat.S_IFBLK, tar.FIFO: stat.S_IFIFO}


class Stopped(Exception):
    """The caller asked this unpacking to stop."""


class UnpackOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How an archive is laid down, and what it may cost."""

    max_bytes: int
    """Bound of the archive's size, and of the sum of file sizes, holes included."""
    max_entries: int = 4_000_000
    below: Parts = ()
    """Directory of the tree that the archive is laid into; made if missing. The archive's own root entry (``./``)
    gives its mode, but never that of the tree's root."""
    owner: tuple[int, int] | None = None
    """Owner of everything (uid, gid); None keeps the archive's."""
    whiteouts: bool = True
    """Whether ``.wh.`` names are whiteouts (an OCI layer) or plain files (a directory of a user's)."""
    newer_than_ns: int | None = None
    """Times from then on (of files that the archive's own making touched) become ``newer_becomes_ns``."""
    newer_becomes_ns: int = 0
    end_mark: bool = True
    """Whether an archive without closing blocks is cut short."""


class Unpacked(msgspec.Struct, frozen=True):
    """What an archive held."""

    entries: int
    bytes: int
    """Sum of file sizes, holes included."""
    dropped_attributes: int
    """Extended attributes that Linux cannot keep (such as those of macOS)."""


def unpack(chunks: Iterator[bytes], root: str, options: UnpackOptions, stop: threading.Event) -> Unpacked:
    """Unpack an uncompressed archive below the empty directory ``root``; blocks, so run it in a thread.

    Raises ImageCorrupt (malformed, cut short, leaves the root, over the bounds), CapacityError (disk full),
    NodeError, or Stopped soon after ``stop`` is set.
    """
    reader = ExactReader(chunks, options.max_bytes + options.max_entries * 3 * tar.BLOCK)
    try:
        with ContainedTree(root) as tree:
            extractor = _Extractor(tree, options)
            for entry in tar.entries(reader, end_mark=options.end_mark):
                if stop.is_set():
                    raise Stopped
                extractor.add(entry, reader)
            reader.drain()
            return extractor.finish()
    except OSError as error:
        raise _typed(error) from error


def _typed(error: OSError) -> Exception:
    if error.errno in FULL:
        return disk_full()
    if error.errno in (errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EROFS):
        return NodeError(f"unpacking a layer failed: {error}", phase="image")
    return ImageCorrupt(f"a layer holds what a file system cannot: {error}", phase="image")


class _Extractor:
    def __init__(self, tree: ContainedTree, options: UnpackOptions) -> None:
        self._tree = tree
        self._options = options
        self._entries = self._bytes = self._dropped = 0
        self._directory_times: dict[Parts, int] = {}
        self._whiteouts: set[Parts] = set()
        self._opaque: set[Parts] = set()
        os.fchmod(tree.root_fd, 0o755)
        tree.directory(options.below)

    def add(self, entry: tar.Entry, reader: ExactReader) -> None:
        self._count(entry)
        parts = self._options.below + split_name(entry.name)
        if self._options.whiteouts and parts and parts[-1].startswith(_WHITEOUT):
            self._add_whiteout(parts)
            reader.skip(entry.stored)
        elif entry.kind == tar.DIRECTORY:
            self._add_directory(parts, entry)
        elif len(parts) <= len(self._options.below):
            raise ImageCorrupt("a layer's root is not a directory")
        elif entry.kind == tar.REGULAR:
            self._add_file(parts, entry, reader)
        else:
            self._add_other(parts, entry)

    def _count(self, entry: tar.Entry) -> None:
        entry.mtime_ns = time_in_range(entry.mtime_ns)
        newest = self._options.newer_than_ns
        # Archives hold whole seconds.
        if newest is not None and entry.mtime_ns >= newest // 1_000_000_000 * 1_000_000_000:
            entry.mtime_ns = self._options.newer_becomes_ns
        self._entries += 1
        self._bytes += entry.size
        if self._bytes > self._options.max_bytes:
            raise ImageCorrupt("a layer unpacks to more than the node allows", remedy="Raise max_image_bytes")
        if self._entries > self._options.max_entries:
            raise ImageCorrupt("a layer holds more files than the node allows", remedy="Raise max_entries")
        if self._options.owner is not None:
            entry.uid, entry.gid = self._options.owner
        elif not (0 <= entry.uid <= _MAX_ID and 0 <= entry.gid <= _MAX_ID):
            raise ImageCorrupt(f"a layer holds an impossible owner: {entry.uid}:{entry.gid}")

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

    def _add_directory(self, parts: Parts, entry: tar.Entry) -> None:
        if not parts and not self._options.whiteouts:
            return
        mode = self._tree.mode_of(parts)
        if mode is not None and not stat.S_ISDIR(mode):
            self._tree.remove(parts)
        fd = self._tree.directory(parts)
        self._tree.implicit.discard(parts)
        # Always set: an earlier entry of the same name may have said otherwise.
        os.fchown(fd, entry.uid, entry.gid)
        os.fchmod(fd, entry.mode)
        self._set_attributes(fd, entry)
        self._directory_times[parts] = entry.mtime_ns

    def _add_file(self, parts: Parts, entry: tar.Entry, reader: ExactReader) -> None:
        parent = self._tree.directory(parts[:-1])
        try:
            fd = os.open(parts[-1], _CREATE, 0o600, dir_fd=parent)
        except FileExistsError:
            self._tree.remove(parts)
            fd = os.open(parts[-1], _CREATE, 0o600, dir_fd=self._tree.directory(parts[:-1]))
        try:
            if entry.sparse is None:
                for piece in reader.pieces(entry.stored):
                    _write(fd, piece)
            else:
                _write_sparse(fd, entry, reader)
            if entry.uid or entry.gid:
                os.fchown(fd, entry.uid, entry.gid)
            os.fchmod(fd, entry.mode)
            if entry.xattrs:
                self._set_attributes(fd, entry)
            os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))
        finally:
            os.close(fd)

    def _add_other(self, parts: Parts, entry: tar.Entry) -> None:
        if entry.kind == tar.HARDLINK:
            self._add_hard_link(parts, entry)
            return
        if self._tree.mode_of(parts) is not None:
            self._tree.remove(parts)
        parent, name = self._tree.directory(parts[:-1]), parts[-1]
        if entry.kind == tar.SYMLINK:
            if not entry.link:
                raise ImageCorrupt("a layer holds a symbolic link to nothing")
            os.symlink(entry.link, name, dir_fd=parent)
        else:
            device = os.makedev(entry.major & 0xFFFFF, entry.minor & 0xFFFFF)
            os.mknod(name, _DEVICE_KINDS[entry.kind] | 0o600, device, dir_fd=parent)
        os.chown(name, entry.uid, entry.gid, dir_fd=parent, follow_symlinks=False)
        if entry.kind != tar.SYMLINK:
            # Just made and not a symlink, in a tree that nobody else writes.
            os.chmod(name, entry.mode, dir_fd=parent)
        if entry.xattrs:
            self._set_attributes(f"/proc/self/fd/{parent}/".encode() + name, entry)
        os.utime(name, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=parent, follow_symlinks=False)

    def _add_hard_link(self, parts: Parts, entry: tar.Entry) -> None:
        source = self._options.below + split_name(entry.link)
        if source == parts:
            return
        if len(source) <= len(self._options.below):
            raise ImageCorrupt("a layer holds a hard link to its root")
        mode = self._tree.mode_of(source)
        if mode is None or stat.S_ISDIR(mode):
            raise ImageCorrupt(f"a layer holds a hard link to {shown(entry.link)}, which is no file of this layer")
        if self._tree.mode_of(parts) is not None:
            self._tree.remove(parts)
        os.link(
            source[-1],
            parts[-1],
            src_dir_fd=self._tree.directory(source[:-1], create=False),
            dst_dir_fd=self._tree.directory(parts[:-1]),
            follow_symlinks=False,
        )

    def _set_attributes(self, target: int | bytes, entry: tar.Entry) -> None:
        for name, value in entry.xattrs.items():
            if name.startswith(b"trusted.overlay."):
                raise ImageCorrupt("a layer holds overlay attributes of its own")
            if not name.startswith(_KEPT_ATTRIBUTES):
                self._dropped += 1
                continue
            try:
                os.setxattr(target, name, value, follow_symlinks=isinstance(target, int))
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EPERM):
                    raise ImageCorrupt(f"a layer holds an impossible attribute {shown(name)}: {error}") from None
                self._dropped += 1

    def finish(self) -> Unpacked:
        for parts in sorted(self._whiteouts):
            self._finish_whiteout(parts)
        for parts in sorted(self._opaque):
            os.setxattr(self._tree.directory(parts), "trusted.overlay.opaque", b"y")
        for parts in self._tree.implicit:
            self._directory_times.setdefault(parts, 0)
        self._directory_times.setdefault((), 0)
        # Last of all: whatever is made in a directory changes its time.
        for parts, time_ns in self._directory_times.items():
            os.utime(self._tree.directory(parts), ns=(time_ns, time_ns))
        return Unpacked(self._entries, self._bytes, self._dropped)

    def _finish_whiteout(self, parts: Parts) -> None:
        # A whiteout speaks of the layers below only: what this layer holds under that name stays.
        mode = self._tree.mode_of(parts)
        if mode is None:
            os.mknod(parts[-1], stat.S_IFCHR, os.makedev(0, 0), dir_fd=self._tree.directory(parts[:-1]))
            os.utime(parts[-1], ns=_EPOCH, dir_fd=self._tree.directory(parts[:-1]), follow_symlinks=False)
        elif stat.S_ISDIR(mode):
            self._opaque.add(parts)


def _write(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _write_sparse(fd: int, entry: tar.Entry, reader: ExactReader) -> None:
    os.ftruncate(fd, entry.size)
    for offset, length in entry.sparse or ():
        os.lseek(fd, offset, os.SEEK_SET)
        for piece in reader.pieces(length):
            _write(fd, piece)
