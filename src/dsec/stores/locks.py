"""A lock in a directory that many machines have mounted: a hard link, which only one of them can make.

It is held for the milliseconds between a look and a rename. One that a dead process left is broken after ``STALE_S``,
told by the file system's own clock; whoever was stopped for that long in the middle finds that the lock is no longer
its own, unless it is stopped between that last look and its rename: nothing in a file system could tell it then.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path
from typing import Self

from dsec.errors import StoreUnreachable

__all__ = ["NO_LINKS", "STALE_S", "Lock"]

NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)
"""What file systems without hard links say."""
STALE_S = 30.0
_PATIENCE_S = 60.0
_AGAIN_S = 0.005


class Lock:
    """Held in a ``with`` block; blocks until it is. ``mine`` is a new file of the holder's own, beside ``place``.

    Where there are no hard links it is always had, and means nothing. Raises StoreUnreachable after a minute.
    """

    def __init__(self, mine: Path, place: Path) -> None:
        self._mine = mine
        self._place = place
        self._held = False

    def __enter__(self) -> Self:
        deadline = time.monotonic() + _PATIENCE_S
        while not self._taken():
            if time.monotonic() >= deadline:
                raise StoreUnreachable(
                    f"{self._place}: others hold it", phase="store", remedy="Ask again; or remove it, if nobody does"
                )
            time.sleep(_AGAIN_S)
        return self

    def __exit__(self, *_: object) -> None:
        if self._held and self.is_mine():
            self._place.unlink(missing_ok=True)

    def is_mine(self) -> bool:
        """Whether nobody has broken it meanwhile."""
        return not self._held or self._is_linked()

    def _is_linked(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return self._place.samefile(self._mine)
        return False

    def _taken(self) -> bool:
        try:
            self._place.hardlink_to(self._mine)
        except FileExistsError:
            # A network file system may have lost the answer to a link that it made, and asked again.
            self._held = self._is_linked()
            if not self._held:
                self._break()
            return self._held
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            return True
        self._held = True
        return True

    def _break(self) -> None:
        """Take away a lock that is too old; one that proves to be another by then is put back."""
        try:
            found = self._place.stat()
            os.utime(self._mine)
            # One from the future was there before the clock jumped back: it would be held until then.
            if abs(self._mine.stat().st_mtime - found.st_mtime) < STALE_S:
                return
            broken = self._mine.with_name(f"{self._mine.name}-broken")
            self._place.rename(broken)
            taken = broken.stat()
            if (taken.st_ino, taken.st_mtime_ns) != (found.st_ino, found.st_mtime_ns):
                with contextlib.suppress(FileExistsError):
                    self._place.hardlink_to(broken)
            broken.unlink()
        except FileNotFoundError:
            return
