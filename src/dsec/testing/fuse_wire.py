"""The kernel's FUSE protocol as far as ``slow_directory`` speaks it (``linux/fuse.h``, version 7.31). Pure."""

from __future__ import annotations

import os
import struct
from enum import IntEnum

__all__ = [
    "CREATE_IN",
    "HEAD",
    "INIT_IN",
    "LINK_IN",
    "MKDIR_IN",
    "MOST_WRITE",
    "OPEN_IN",
    "READ_IN",
    "RENAME2_IN",
    "SETATTR_IN",
    "WRITE_IN",
    "Op",
    "attr_out",
    "dirent",
    "entry_out",
    "init_out",
    "open_out",
    "reply",
    "statfs_out",
]

MOST_WRITE = 1 << 20
"""Bytes of one read or write: 256 pages, the most that the kernel sends."""
HEAD = struct.Struct("<IIQQIIIHH")
"""Length, operation, number of the request, node, user, group, process."""
INIT_IN = struct.Struct("<IIII")
OPEN_IN = struct.Struct("<II")
CREATE_IN = struct.Struct("<IIII")
READ_IN = struct.Struct("<QQIIQII")
WRITE_IN = READ_IN
MKDIR_IN = struct.Struct("<II")
RENAME2_IN = struct.Struct("<QII")
LINK_IN = struct.Struct("<Q")
SETATTR_IN = struct.Struct("<IIQQQQQQIIIIIIII")
_REPLY = struct.Struct("<IiQ")
_ATTR = struct.Struct("<QQQQQQIIIIIIIIII")
_ENTRY = struct.Struct("<QQQQII")
_ATTR_HEAD = struct.Struct("<QII")
_INIT_OUT = struct.Struct("<IIIIHHIIHHI7I")
_STATFS = struct.Struct("<QQQQQIIII6I")
_DIRENT = struct.Struct("<QQII")
_ASYNC_READ, _BIG_WRITES, _PARALLEL_DIROPS, _MAX_PAGES = 1, 1 << 5, 1 << 18, 1 << 22
_FRESH_S = 1
_NANO = 1_000_000_000


class Op(IntEnum):
    """Operations."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    CREATE = 35
    INTERRUPT = 36
    DESTROY = 38
    BATCH_FORGET = 42
    RENAME2 = 45


def reply(number: int, body: bytes | memoryview = b"", error: int = 0) -> list[bytes | memoryview]:
    """The parts of an answer, for writev."""
    return [_REPLY.pack(_REPLY.size + len(body), -error, number), body]


def init_out(major: int, read_ahead: int) -> bytes:
    """What this server can: large reads and writes, many at once."""
    flags = _ASYNC_READ | _BIG_WRITES | _PARALLEL_DIROPS | _MAX_PAGES
    pages = MOST_WRITE // 4096
    return _INIT_OUT.pack(major, 31, read_ahead, flags, 64, 48, MOST_WRITE, 1, pages, 0, 0, *([0] * 7))


def entry_out(node: int, known: os.stat_result) -> bytes:
    """A name that was found."""
    return _ENTRY.pack(node, 0, _FRESH_S, _FRESH_S, 0, 0) + _attr(known)


def attr_out(known: os.stat_result) -> bytes:
    """What is known of a node."""
    return _ATTR_HEAD.pack(_FRESH_S, 0, 0) + _attr(known)


def _attr(known: os.stat_result) -> bytes:
    times = (known.st_atime_ns, known.st_mtime_ns, known.st_ctime_ns)
    return _ATTR.pack(
        known.st_ino, known.st_size, known.st_blocks,
        *(each // _NANO for each in times), *(each % _NANO for each in times),
        known.st_mode, known.st_nlink, known.st_uid, known.st_gid, 0, 4096, 0,
    )  # fmt: skip


def open_out(handle: int) -> bytes:
    """A file or directory that was opened."""
    return struct.pack("<QII", handle, 0, 0)


def statfs_out(known: os.statvfs_result) -> bytes:
    """What is known of the file system."""
    return _STATFS.pack(
        known.f_blocks, known.f_bfree, known.f_bavail, known.f_files, known.f_ffree,
        known.f_bsize, known.f_namemax, known.f_frsize, 0, *([0] * 6),
    )  # fmt: skip


def dirent(inode: int, following: int, kind: int, name: bytes) -> bytes:
    """One name of a directory; ``following`` is where the next one begins."""
    raw = _DIRENT.pack(inode, following, len(name), kind) + name
    return raw + bytes(-len(raw) % 8)
