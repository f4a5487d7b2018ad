"""The server behind ``slow_directory``: another directory's files, through the kernel's FUSE protocol."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

from dsec.testing import fuse_wire as wire
from dsec.testing.bucket_server import Line
from dsec.testing.fuse_wire import Op

__all__ = ["FuseServer"]

_ROOT = 1
_BUFFER = wire.MOST_WRITE + (64 << 10)
_MODE, _UID, _GID, _SIZE, _ATIME, _MTIME, _ATIME_NOW, _MTIME_NOW = 1, 2, 4, 8, 16, 32, 128, 256
_NOSUID_NODEV = 2 | 4
_NOT_ANSWERED = (Op.FORGET, Op.BATCH_FORGET, Op.INTERRUPT, Op.DESTROY)
_AT_ONCE = (Op.INIT, Op.RELEASE, Op.RELEASEDIR)


class FuseServer:
    """A mount; ``serve`` answers it, in as many threads as are wanted.

    Nodes are O_PATH descriptors and never let go: what is served is small, and so is the server's life.
    """

    def __init__(self, source: Path, point: Path, line: Line) -> None:
        self._line = line
        self._lock = threading.Lock()
        root = os.open(source, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._nodes = {_ROOT: root}
        self._known = {_key(os.fstat(root)): _ROOT}
        self._reads = self._read_bytes = 0
        self._fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._fuse},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
        libc = ctypes.CDLL(None, use_errno=True)
        arguments = (b"slow", os.fsencode(point), b"fuse.slow", _NOSUID_NODEV, options.encode())
        if libc.mount(*arguments):
            raise OSError(ctypes.get_errno(), f"mount of {point}")
        self._answers: dict[int, Callable[[int, memoryview], bytes | memoryview]] = {
            Op.INIT: self._init,
            Op.LOOKUP: lambda node, body: self._entry(node, _name(body)),
            Op.GETATTR: lambda node, _: wire.attr_out(os.fstat(self._nodes[node])),
            Op.SETATTR: self._setattr,
            Op.MKDIR: self._mkdir,
            Op.UNLINK: self._unlink,
            Op.RMDIR: self._rmdir,
            Op.RENAME: lambda node, body: self._rename(node, body, 8),
            Op.RENAME2: lambda node, body: self._rename(node, body, wire.RENAME2_IN.size),
            Op.LINK: self._link,
            Op.OPEN: self._open,
            Op.OPENDIR: self._open,
            Op.CREATE: self._create,
            Op.READ: self._read,
            Op.WRITE: self._write,
            Op.READDIR: self._readdir,
            Op.RELEASE: _close,
            Op.RELEASEDIR: _close,
            Op.FLUSH: lambda _, __: b"",
            Op.FSYNC: _flush,
            Op.FSYNCDIR: _flush,
            Op.STATFS: lambda node, _: wire.statfs_out(os.statvfs(self._path(node))),
        }

    def counts(self) -> dict[str, int]:
        """Reads that the kernel asked for, and their bytes."""
        return {"reads": self._reads, "read_bytes": self._read_bytes}

    def serve(self) -> None:
        """Answer until the mount is gone."""
        buffer = bytearray(_BUFFER)
        while True:
            try:
                length = os.readv(self._fuse, [buffer])
            except OSError as error:
                # ENOENT: whoever asked was killed meanwhile.
                if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                    continue
                return
            _, op, number, node, *_ = wire.HEAD.unpack_from(buffer)
            if op in _NOT_ANSWERED:
                continue
            if op not in _AT_ONCE:
                self._line.request()
            parts = self._answered(op, number, node, memoryview(buffer)[wire.HEAD.size : length])
            try:
                os.writev(self._fuse, parts)
            except OSError as error:
                if error.errno != errno.ENOENT:
                    return

    def _answered(self, op: int, number: int, node: int, body: memoryview) -> list[bytes | memoryview]:
        answer = self._answers.get(op)
        if answer is None:
            return wire.reply(number, error=errno.ENOSYS)
        try:
            return wire.reply(number, answer(node, body))
        except OSError as error:
            return wire.reply(number, error=error.errno or errno.EIO)

    def _init(self, _: int, body: memoryview) -> bytes:
        major, _minor, read_ahead, _flags = wire.INIT_IN.unpack_from(body)
        return wire.init_out(major, read_ahead)

    def _path(self, node: int) -> Path:
        return Path(f"/proc/self/fd/{self._nodes[node]}")

    def _entry(self, parent: int, name: bytes) -> bytes:
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._nodes[parent])
        known = os.fstat(fd)
        with self._lock:
            node = self._known.setdefault(_key(known), len(self._nodes) + 1)
            if node in self._nodes:
                os.close(fd)
            else:
                self._nodes[node] = fd
        return wire.entry_out(node, known)

    def _setattr(self, node: int, body: memoryview) -> bytes:
        valid, _, _, size, _, atime, mtime, _, atimensec, mtimensec, _, mode, _, uid, gid, _ = (
            wire.SETATTR_IN.unpack_from(body)
        )
        path, known = self._path(node), os.fstat(self._nodes[node])
        if valid & _MODE:
            path.chmod(stat.S_IMODE(mode))
        if valid & (_UID | _GID):
            os.chown(path, uid if valid & _UID else -1, gid if valid & _GID else -1)
        if valid & _SIZE:
            os.truncate(path, size)
        if valid & (_ATIME | _MTIME) and not valid & (_ATIME_NOW | _MTIME_NOW):
            times = (
                atime * 10**9 + atimensec if valid & _ATIME else known.st_atime_ns,
                mtime * 10**9 + mtimensec if valid & _MTIME else known.st_mtime_ns,
            )
            os.utime(path, ns=times)
        elif valid & (_ATIME_NOW | _MTIME_NOW):
            os.utime(path)
        return wire.attr_out(os.fstat(self._nodes[node]))

    def _mkdir(self, node: int, body: memoryview) -> bytes:
        mode, umask = wire.MKDIR_IN.unpack_from(body)
        name = _name(body[wire.MKDIR_IN.size :])
        os.mkdir(name, mode & ~umask, dir_fd=self._nodes[node])
        return self._entry(node, name)

    def _unlink(self, node: int, body: memoryview) -> bytes:
        os.unlink(_name(body), dir_fd=self._nodes[node])
        return b""

    def _rmdir(self, node: int, body: memoryview) -> bytes:
        os.rmdir(_name(body), dir_fd=self._nodes[node])
        return b""

    def _rename(self, node: int, body: memoryview, head: int) -> bytes:
        target = int.from_bytes(body[:8], "little")
        if head == wire.RENAME2_IN.size and wire.RENAME2_IN.unpack_from(body)[1]:
            raise OSError(errno.EINVAL, "flags of renames")
        old, new, _ = bytes(body[head:]).split(b"\0", 2)
        os.rename(old, new, src_dir_fd=self._nodes[node], dst_dir_fd=self._nodes[target])
        return b""

    def _link(self, node: int, body: memoryview) -> bytes:
        (old,) = wire.LINK_IN.unpack_from(body)
        name = _name(body[wire.LINK_IN.size :])
        os.link(self._path(old), name, dst_dir_fd=self._nodes[node], follow_symlinks=True)
        return self._entry(node, name)

    def _open(self, node: int, body: memoryview) -> bytes:
        flags, _ = wire.OPEN_IN.unpack_from(body)
        return wire.open_out(os.open(self._path(node), flags & ~(os.O_NOFOLLOW | os.O_CREAT | os.O_EXCL)))

    def _create(self, node: int, body: memoryview) -> bytes:
        flags, mode, umask, _ = wire.CREATE_IN.unpack_from(body)
        name = _name(body[wire.CREATE_IN.size :])
        fd = os.open(name, flags | os.O_CREAT | os.O_NOFOLLOW, mode & ~umask & 0o7777, dir_fd=self._nodes[node])
        return self._entry(node, name) + wire.open_out(fd)

    def _read(self, _node: int, body: memoryview) -> bytes:
        handle, offset, size, *_rest = wire.READ_IN.unpack_from(body)
        content = os.pread(handle, size, offset)
        with self._lock:
            self._reads += 1
            self._read_bytes += len(content)
        self._line.carry(len(content))
        return content

    def _write(self, _node: int, body: memoryview) -> bytes:
        handle, offset, size, *_rest = wire.WRITE_IN.unpack_from(body)
        self._line.carry(size)
        written = os.pwrite(handle, body[wire.WRITE_IN.size : wire.WRITE_IN.size + size], offset)
        return written.to_bytes(4, "little") + bytes(4)

    def _readdir(self, _node: int, body: memoryview) -> bytes:
        handle, offset, size, *_rest = wire.READ_IN.unpack_from(body)
        found = bytearray()
        with os.scandir(handle) as entries:
            for place, entry in enumerate(sorted(entries, key=lambda entry: entry.name)):
                kind = stat.S_IFDIR if entry.is_dir(follow_symlinks=False) else stat.S_IFREG
                raw = wire.dirent(entry.inode(), place + 1, kind >> 12, os.fsencode(entry.name))
                if place >= offset:
                    if len(found) + len(raw) > size:
                        break
                    found += raw
        return bytes(found)


def _key(known: os.stat_result) -> tuple[int, int]:
    return known.st_dev, known.st_ino


def _name(body: memoryview) -> bytes:
    return bytes(body).split(b"\0", 1)[0]


def _handle(body: memoryview) -> int:
    return int.from_bytes(body[:8], "little")


def _close(_: int, body: memoryview) -> bytes:
    os.close(_handle(body))
    return b""


def _flush(_: int, body: memoryview) -> bytes:
    os.fsync(_handle(body))
    return b""
