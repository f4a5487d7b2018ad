"""The bytes of one open file, chunk by chunk."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator

from dsec.errors import DSecError
from dsec.layering.placing import CHUNK_SIZE

__all__ = ["pieces_of"]


def pieces_of(fd: int, size: int, changed: Callable[[], DSecError]) -> Iterator[bytes | None]:
    """The chunks of a regular file of ``size`` bytes; None for one that is all hole.

    Raises what ``changed`` gives when the file has become shorter.
    """
    data = 0
    for at in range(0, size, CHUNK_SIZE):
        length = min(CHUNK_SIZE, size - at)
        if data <= at and size > CHUNK_SIZE:
            data = _next_data(fd, at, size)
        yield None if data >= at + length else _read(fd, at, length, changed)


def _next_data(fd: int, at: int, end: int) -> int:
    try:
        return os.lseek(fd, at, os.SEEK_DATA)
    except OSError as error:
        return end if error.errno == errno.ENXIO else at


def _read(fd: int, at: int, length: int, changed: Callable[[], DSecError]) -> bytes:
    data = os.pread(fd, length, at)
    while len(data) < length:
        more = os.pread(fd, length - len(data), at + len(data))
        if not more:
            raise changed()
        data += more
    return data
