"""Opening files below a directory that somebody hostile has filled: ``openat2``, over no link, never out of it."""

from __future__ import annotations

import ctypes
import os

__all__ = ["open_beneath"]

_OPENAT2 = 437
_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x01, 0x02, 0x04, 0x08
_libc = ctypes.CDLL(None, use_errno=True)


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def open_beneath(root: int, path: bytes, flags: int) -> int:
    """A descriptor of what lies at ``path`` (empty: the directory itself) below the directory ``root``.

    No part of the path may be a link, another mount or lead out. Never waits for whoever holds the other end of a
    FIFO. Raises OSError.
    """
    how = _How(flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, 0, 0)
    how.resolve = _BENEATH | _NO_SYMLINKS | _NO_MAGICLINKS | _NO_XDEV
    fd = _libc.syscall(
        ctypes.c_long(_OPENAT2), ctypes.c_int(root), ctypes.c_char_p(path or b"."), ctypes.byref(how),
        ctypes.c_size_t(ctypes.sizeof(how)),
    )  # fmt: skip
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), os.fsdecode(path))
    return int(fd)
