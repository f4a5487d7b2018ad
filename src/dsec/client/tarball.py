"""A directory of the client's as a stream of tar, in constant memory."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from dsec.errors import InvalidArgument

__all__ = ["Upload", "file_pieces", "tar_pieces"]

_PIECE = 1 << 20


def tar_pieces(directory: Path, *, owners: bool = False) -> Iterator[bytes]:
    """The tar (PAX) of what is below ``directory``, in pieces of about 1 MiB; modes, times, links kept.

    Owners are root's, or with ``owners`` each file's own. Entries are sorted, so equal directories give equal bytes
    but for times. Sockets are left out. Raises InvalidArgument for what cannot be read or changes its length
    meanwhile.
    """
    if not directory.is_dir():
        raise InvalidArgument(f"{directory} is no directory")
    buffer = bytearray()
    with tarfile.open(fileobj=io.BytesIO(), mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for path, name in _walk(directory):
            try:
                entry = archive.gettarinfo(path, name)
            except OSError as error:
                raise InvalidArgument(f"cannot read {path}: {error.strerror}") from None
            if entry is None:
                continue
            if not owners:
                entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            buffer += entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
            if entry.isreg():
                for piece in _content(path, entry.size):
                    buffer += piece
                    if len(buffer) >= _PIECE:
                        yield bytes(buffer)
                        buffer.clear()
    buffer += bytes(2 * tarfile.BLOCKSIZE)
    yield bytes(buffer)


def _walk(directory: Path) -> Iterator[tuple[str, str]]:
    for parent, directories, files in os.walk(directory, onerror=_refuse):
        directories.sort()
        links = [name for name in directories if os.path.islink(os.path.join(parent, name))]  # noqa: PTH114, PTH118
        for name in sorted([*files, *directories]):
            path = os.path.join(parent, name)  # noqa: PTH118
            yield path, os.path.relpath(path, directory)
        directories[:] = [name for name in directories if name not in links]


def _refuse(error: OSError) -> None:
    raise InvalidArgument(f"cannot read {error.filename}: {error.strerror}")


def _content(path: str, size: int) -> Iterator[bytes]:
    left = size
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            while left:
                piece = file.read(min(_PIECE, left))
                if not piece:
                    raise InvalidArgument(f"{path} became shorter while it was read")
                left -= len(piece)
                yield piece
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror}") from None
    yield bytes(-size % tarfile.BLOCKSIZE)


def file_pieces(path: Path) -> Iterator[bytes]:
    """A file as it is, in pieces. Raises InvalidArgument."""
    try:
        with path.open("rb") as file:
            while piece := file.read(_PIECE):
                yield piece
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror}") from None


class Upload:
    """Pieces as the body of a request, each made in a thread so that reading files does not hold up the event loop.

    The HTTP library hides what goes wrong in a body; ``failure`` has it.
    """

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self.failure: InvalidArgument | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            try:
                piece = await asyncio.to_thread(next, self._pieces, None)
            except InvalidArgument as error:
                self.failure = error
                raise
            if piece is None:
                return
            yield piece
