"""A store that is a directory: on any distributed file system that nodes mount (3FS, CephFS, Lustre, JuiceFS, NFS).

Of the file system it asks only that a rename puts a whole file in place. Hard links, where there are any, make the
first of two writers known: a new object is a link, and who replaces or removes one on condition holds a lock that is
a link too (``locks``). Where there are none, the one that looked last wins.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from dsec.errors import DSecError, StoreDenied, StoreError, StoreFull, StoreUnreachable
from dsec.stores.contract import Entry, checked_name, missing
from dsec.stores.locks import NO_LINKS, Lock

__all__ = ["DirectoryStore"]

_TEMPORARY = "tmp"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
_MAY = "Let the node do this there (mounted to be written, owner, mode), then ask again: it goes on where it was"
_TRIES = 5
_REPLACED_S = 0.01

Move = Callable[[Path], object]


class DirectoryStore:
    """A Store below ``root``, which must exist: a mount that is missing is never filled in its place."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def title(self) -> str:
        """See ``Store``."""
        return self._root.as_uri()

    def stat(self, name: str) -> Entry | None:
        """See ``Store``."""
        with self._typed(name):
            try:
                return _entry(name, self._path(name).stat())
            except (FileNotFoundError, NotADirectoryError):
                self._check_root()
                return None

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """See ``Store``."""
        for left in reversed(range(_TRIES)):
            with self._typed(name), contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return self._read(name, offset, length)
            # On some file systems (SeaweedFS) a name is missing for a moment while a rename replaces it.
            if left:
                time.sleep(_REPLACED_S)
        self._check_root()
        raise missing(self.title, name)

    def _read(self, name: str, offset: int, length: int | None) -> bytes:
        with self._path(name).open("rb", buffering=0) as file:
            file.seek(offset)
            return _read(file.fileno(), length)

    def put(self, name: str, content: bytes) -> None:
        """See ``Store``."""
        with self._typed(name), self._written(content) as temporary:
            self._place(name, lambda target: temporary.rename(target))

    def swap(self, name: str, content: bytes, mark: str | None) -> bool:
        """See ``Store``. A new object is made by a hard link, of which only one can be the first."""
        with self._typed(name), self._written(content) as temporary:
            if mark is None:
                return self._create(name, temporary)
            with self._locked(name) as lock:
                if not self._is(name, mark) or not lock.is_mine():
                    return False
                self._place(name, lambda target: temporary.rename(target))
            return True

    def remove(self, name: str, mark: str) -> bool:
        """See ``Store``."""
        with self._typed(name), self._locked(name) as lock:
            if not self._is(name, mark) or not lock.is_mine():
                return False
            self._path(name).unlink()
            return True

    def _is(self, name: str, mark: str) -> bool:
        there = self.stat(name)
        return there is not None and there.mark == mark

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[Lock]:
        token = hashlib.sha256(name.encode()).hexdigest()[:32]
        with self._written(token.encode()) as mine, Lock(mine, mine.with_name(f"lock-{token}")) as lock:
            yield lock

    def _create(self, name: str, temporary: Path) -> bool:
        try:
            self._place(name, lambda target: target.hardlink_to(temporary))
        except FileExistsError:
            # Of a network file system it may be the first answer to a link that it made and was asked for again.
            return self._path(name).samefile(temporary)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            if self.stat(name) is not None:
                return False
            self._place(name, lambda target: temporary.rename(target))
        return True

    def list(self, folder: str) -> Iterator[Entry]:
        """See ``Store``."""
        found: list[Entry] = []
        with self._typed(folder):
            self._check_root()
            _walk(self._path(folder), folder, found)
        return iter(found)

    def delete(self, name: str) -> None:
        """See ``Store``. Folders that this leaves empty stay: somebody may be about to fill them."""
        with self._typed(name):
            try:
                self._path(name).unlink()
            except (FileNotFoundError, NotADirectoryError):
                self._check_root()

    def sweep(self, older_than_s: float) -> int:
        """See ``Store``. What is old is told by the file system's own clock, whatever this node's says."""
        swept = 0
        with self._typed(_TEMPORARY), self._written(b"") as probe:
            now = probe.stat().st_mtime
            for entry in list(os.scandir(probe.parent)):
                with contextlib.suppress(FileNotFoundError):
                    if entry.name != probe.name and now - entry.stat(follow_symlinks=False).st_mtime >= older_than_s:
                        Path(entry.path).unlink()
                        swept += 1
        return swept

    @contextlib.contextmanager
    def _written(self, content: bytes) -> Iterator[Path]:
        """A file of the same file system that holds this and is on disk; gone afterwards, unless it was renamed."""
        self._check_root()
        folder = self._root / _TEMPORARY
        folder.mkdir(mode=0o755, exist_ok=True)
        path = folder / secrets.token_hex(12)
        try:
            with path.open("xb", buffering=0) as file:
                view = memoryview(content)
                while view:
                    view = view[file.write(view) :]
                os.fsync(file.fileno())
            path.chmod(0o644)
            yield path
        finally:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def _place(self, name: str, move: Move) -> None:
        target = self._path(name)
        for left in reversed(range(_TRIES)):
            target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            try:
                move(target)
                break
            except FileNotFoundError:
                # Whoever tidies up by hand removed the empty folder in between.
                if not left:
                    raise
        _flush(target.parent)

    def _path(self, name: str) -> Path:
        return self._root / checked_name(name)

    def _check_root(self) -> None:
        if not self._root.is_dir():
            raise StoreUnreachable(
                f"the store's directory {self._root} is not there",
                phase="store",
                remedy="Mount the file system; make the directory if the store is new",
            )

    @contextlib.contextmanager
    def _typed(self, name: str) -> Iterator[None]:
        try:
            yield
        except DSecError:
            raise
        except OSError as error:
            raise self._error(error, name) from error

    def _error(self, error: OSError, name: str) -> StoreError:
        what = f"{self.title}: {name}: {error.strerror or error}"
        if error.errno in _FULL:
            return StoreFull(what, phase="store", object=name)
        if error.errno in _DENIED:
            return StoreDenied(what, phase="store", remedy=_MAY, object=name)
        return StoreUnreachable(what, phase="store", remedy="See whether the file system is mounted", object=name)


def _walk(path: Path, folder: str, found: list[Entry]) -> None:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(path) as entries:
        for entry in entries:
            name = f"{folder}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                _walk(path / entry.name, name, found)
            elif entry.is_file(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError):
                    found.append(_entry(name, entry.stat(follow_symlinks=False)))


def _entry(name: str, stat: os.stat_result) -> Entry:
    return Entry(name, stat.st_size, stat.st_mtime, f"{stat.st_ino}-{stat.st_mtime_ns}-{stat.st_size}")


def _read(fd: int, length: int | None) -> bytes:
    pieces: list[bytes] = []
    left = length
    while left is None or left > 0:
        piece = os.read(fd, 8 << 20 if left is None else min(left, 8 << 20))
        if not piece:
            break
        pieces.append(piece)
        left = None if left is None else left - len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _flush(folder: Path) -> None:
    # Some FUSE file systems know no flush of a directory: there the rename is as lasting as they make it.
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
