"""A file or a tree of this machine as a tar archive: pieces in constant memory, holes as holes, links as links."""

from __future__ import annotations

import errno
import os
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field

from dsec.errors import InvalidArgument, file_error

__all__ = ["Counts", "pack"]

BLOCK = 512
_PIECE = 1 << 20
_GATHERED = 192 * 1024
_MOST_LINKED = 65_536
_MOST_PARTS = 65_536
_MOST_TOLD = 100


@dataclass
class Counts:
    """What has gone through so far. ``skipped``: what no archive holds, or may not, the first hundred by name."""

    entries: int = 0
    bytes: int = 0
    """Of file content, holes included."""
    skipped_count: int = 0
    skipped: list[str] = field(default_factory=list)

    def skip(self, path: str) -> None:
        """One more that was left out."""
        self.skipped_count += 1
        if len(self.skipped) < _MOST_TOLD:
            self.skipped.append(path)


def pack(path: str, counts: Counts, *, follow: bool) -> Iterator[bytes]:
    """The archive of ``path``, which is ``.`` in it. Raises FileError for what cannot be read or becomes shorter."""
    packing = _Packing(counts)
    pending: list[bytes] = []
    size = 0
    for piece in packing.all(path, follow=follow):
        if len(piece) >= _GATHERED and not pending:
            yield piece
            continue
        pending.append(piece)
        size += len(piece)
        if size >= _GATHERED:
            yield b"".join(pending)
            pending, size = [], 0
    yield b"".join([*pending, bytes(2 * BLOCK)])


class _Packing:
    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._linked: dict[tuple[int, int], str] = {}

    def all(self, path: str, *, follow: bool) -> Iterator[bytes]:
        try:
            top = os.stat(path) if follow else os.lstat(path)  # noqa: PTH116
        except OSError as error:
            raise file_error(error.errno or errno.EIO, path) from None
        if not (stat.S_ISDIR(top.st_mode) or stat.S_ISREG(top.st_mode) or stat.S_ISLNK(top.st_mode)):
            raise InvalidArgument(f"{path} is neither file, directory nor link")
        yield from self._entry(path, ".", top)
        stack = [self._listed(path)] if stat.S_ISDIR(top.st_mode) else []
        names = ["."]
        while stack:
            entry = next(stack[-1], None)
            if entry is None:
                stack.pop()
                names.pop()
                continue
            name = f"{names[-1]}/{entry.name}"
            try:
                found = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise file_error(error.errno or errno.EIO, entry.path) from None
            yield from self._entry(entry.path, name, found)
            if stat.S_ISDIR(found.st_mode):
                stack.append(self._listed(entry.path))
                names.append(name)

    @staticmethod
    def _listed(path: str) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(path) as entries:
                yield from entries
        except OSError as error:
            raise file_error(error.errno or errno.EIO, path) from None

    def _entry(self, path: str, name: str, found: os.stat_result) -> Iterator[bytes]:
        info = tarfile.TarInfo(name)
        info.mode, info.mtime = stat.S_IMODE(found.st_mode), int(found.st_mtime)
        info.uid, info.gid = found.st_uid, found.st_gid
        if stat.S_ISDIR(found.st_mode):
            info.type = tarfile.DIRTYPE
        elif stat.S_ISLNK(found.st_mode):
            info.type = tarfile.SYMTYPE
            try:
                info.linkname = os.readlink(path)  # noqa: PTH115
            except OSError as error:
                raise file_error(error.errno or errno.EIO, path) from None
        elif stat.S_ISREG(found.st_mode):
            yield from self._file(path, info)
            return
        else:
            self._counts.skip(path)
            return
        self._counts.entries += 1
        yield _header(info)

    def _file(self, path: str, info: tarfile.TarInfo) -> Iterator[bytes]:
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
        except OSError as error:
            raise file_error(error.errno or errno.EIO, path) from None
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode):
                self._counts.skip(path)
                return
            self._counts.entries += 1
            identity = (found.st_dev, found.st_ino)
            if found.st_nlink > 1 and identity in self._linked:
                info.type, info.linkname = tarfile.LNKTYPE, self._linked[identity]
                yield _header(info)
                return
            if found.st_nlink > 1 and len(self._linked) < _MOST_LINKED:
                self._linked[identity] = info.name
            yield from self._content(file, path, info, found)
        except OSError as error:
            raise file_error(error.errno or errno.EIO, path) from None
        finally:
            os.close(file)

    def _content(self, file: int, path: str, info: tarfile.TarInfo, found: os.stat_result) -> Iterator[bytes]:
        size = found.st_size
        parts, before = [(0, size)], b""
        if getattr(found, "st_blocks", size) * 512 < size and hasattr(os, "SEEK_DATA"):
            parts = _data_parts(file, size)
        info.size = size
        if parts != [(0, size)]:
            before = _map(parts)
            info.pax_headers = {
                "GNU.sparse.major": "1",
                "GNU.sparse.minor": "0",
                "GNU.sparse.name": info.name,
                "GNU.sparse.realsize": str(size),
            }
            info.size = len(before) + sum(length for _, length in parts)
        yield _header(info) + before
        for offset, length in parts:
            yield from _part(file, path, offset, length)
        self._counts.bytes += size
        yield bytes(-info.size % BLOCK)


def _header(info: tarfile.TarInfo) -> bytes:
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _part(file: int, path: str, offset: int, length: int) -> Iterator[bytes]:
    os.lseek(file, offset, os.SEEK_SET)
    while length:
        piece = os.read(file, min(_PIECE, length))
        if not piece:
            raise file_error(errno.ESTALE, path)
        length -= len(piece)
        yield piece


def _data_parts(file: int, size: int) -> list[tuple[int, int]]:
    """Where a file has data; beyond a number of parts the last one goes to the end."""
    parts: list[tuple[int, int]] = []
    at = 0
    while at < size:
        try:
            start = os.lseek(file, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                break
            if error.errno == errno.EINVAL:
                return [(0, size)]
            raise
        end = size if len(parts) + 2 >= _MOST_PARTS else min(os.lseek(file, start, os.SEEK_HOLE), size)
        if start >= size:
            break
        parts.append((start, end - start))
        at = end
    return parts if parts == [(0, size)] else [*parts, (size, 0)]


def _map(parts: list[tuple[int, int]]) -> bytes:
    numbers = [len(parts), *(number for part in parts for number in part)]
    text = "".join(f"{number}\n" for number in numbers).encode()
    return text + bytes(-len(text) % BLOCK)
