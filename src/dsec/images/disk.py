"""A full disk as a typed error, wherever it is met."""

from __future__ import annotations

import contextlib
import errno
import sqlite3
from collections.abc import Iterator

from dsec.errors import CapacityError

__all__ = ["FULL", "disk_full", "full_disk_typed"]

FULL = (errno.ENOSPC, errno.EDQUOT)


def disk_full() -> CapacityError:
    """The error for a disk without space."""
    return CapacityError("the node's disk is full", phase="image", remedy="Free space where the node keeps its data")


@contextlib.contextmanager
def full_disk_typed() -> Iterator[None]:
    """Raise CapacityError for whatever says in the block that the disk is full; leave all other errors alone."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise disk_full() from error
        raise
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
            raise disk_full() from error
        raise
