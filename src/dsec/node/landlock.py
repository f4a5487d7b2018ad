"""Where a process may write, by Landlock: in nothing but what is named, for good, whoever it is.

Reading is not looked at, and what is open already stays as it is. Beyond files: no program is executed, no process
outside is signalled or traced, no abstract socket outside is called.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path

__all__ = ["OLDEST_VERSION", "confine_writes", "landlock_version"]

OLDEST_VERSION = 3
"""Before it, files could be cut short all the same."""

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_EXECUTE, _WRITE_FILE, _REMOVE_DIR, _REMOVE_FILE = 1 << 0, 1 << 1, 1 << 4, 1 << 5
_MAKE_DIR, _MAKE_REG, _REFER, _TRUNCATE = 1 << 7, 1 << 8, 1 << 13, 1 << 14
_MAKE_OTHERS = 0b1_1110_0100_0000  # devices, sockets, FIFOs, links
_IOCTL_DEV = 1 << 15
_IN_A_FILE = _WRITE_FILE | _TRUNCATE
_BELOW_A_DIRECTORY = _IN_A_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _REFER
_BY_VERSION = ((1, _EXECUTE | _BELOW_A_DIRECTORY & ~(_REFER | _TRUNCATE) | _MAKE_OTHERS), (2, _REFER), (3, _TRUNCATE))
_SCOPED = 0b11
"""Abstract sockets and signals, of version 6."""
_VERSION_FLAG = 1
_BENEATH = 1
_libc = ctypes.CDLL(None, use_errno=True)


def landlock_version() -> int:
    """What this kernel has of it; 0: nothing."""
    return max(0, int(_libc.syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint(_VERSION_FLAG))))


def confine_writes(directories: Iterable[Path], files: Iterable[Path]) -> bool:
    """Write below these directories and in these files alone, from now on; False where the kernel has no Landlock.

    What does not exist is left out. The process has given up new privileges, and has one thread. Raises OSError.
    """
    version = landlock_version()
    if version < OLDEST_VERSION:
        return False
    handled = 0
    for since, rights in _BY_VERSION:
        handled |= rights if version >= since else 0
    if version >= 5:
        handled |= _IOCTL_DEV
    said = struct.pack("=QQQ", handled, 0, _SCOPED)[: 24 if version >= 6 else 8]
    rules = _call(_CREATE, said, ctypes.c_size_t(len(said)), ctypes.c_uint(0))
    try:
        for paths, rights in ((directories, _BELOW_A_DIRECTORY), (files, _IN_A_FILE)):
            for path in paths:
                with contextlib.suppress(FileNotFoundError):
                    _allow(rules, path, rights)
        _call(_RESTRICT, ctypes.c_int(rules), ctypes.c_uint(0))
    finally:
        os.close(rules)
    return True


def _allow(rules: int, path: Path, rights: int) -> None:
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        _call(_ADD, ctypes.c_int(rules), ctypes.c_int(_BENEATH), struct.pack("=Qi", rights, place), ctypes.c_uint(0))
    finally:
        os.close(place)


def _call(number: int, *arguments: object) -> int:
    done = int(_libc.syscall(number, *arguments))
    if done < 0:
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno), f"landlock, call {number}")
    return done
