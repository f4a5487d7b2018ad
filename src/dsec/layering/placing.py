"""Where the contents of files lie in a layer's data, so that equal files of other layers give equal chunks.

The data is a row of chunks of 256 KiB, the unit in which stores know and fetch it. A file is cut into pieces of that
size from its own beginning:

- a whole piece is a chunk of its own, whatever lies before it: a large file that two layers have is the same chunks;
- what is smaller (small files, the ends of large ones) shares chunks with its neighbours in the order of paths. Such
  a chunk ends where it is full, or, when five eighths full, after a piece whose own digest says so. So a change
  among small files changes the chunks around it, and further on chunks begin with the same files again;
- zeros are no bytes at all, and equal pieces of one layer are placed once.

Decision 0055 has the measurements.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, Self

__all__ = ["BLOCK", "CHUNK_SIZE", "HOLE", "Data", "DataWriter"]

CHUNK_SIZE = 256 << 10
"""Bytes of data that each digest of a layer covers, and of a piece of a file."""
BLOCK = 4096
HOLE = 0xFFFFFFFF
"""The place of a piece that is all zeros, as EROFS says it."""
_BLOCKS = CHUNK_SIZE // BLOCK
_LEAST_FILL = CHUNK_SIZE * 5 // 8
_ENDS = 12
"""Of so many blocks that come when a chunk is as full as that, one ends it."""
_ZEROS = bytes(CHUNK_SIZE)
_BACKLOG = 64


class Data(NamedTuple):
    """A layer's data as a whole."""

    sha256: str
    size: int
    chunks_sha256: str
    """Sha256 of the digests of its chunks, one after the other."""


class DataWriter:
    """Writes a layer's data to an empty file, piece by piece; a context manager.

    ``place`` gives for each piece a token; ``block_of`` says, after ``finish``, which block a token means.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._chunks = 0
        self._tokens: dict[bytes, int] = {}
        self._group = bytearray()
        self._groups: list[int] = []
        """Chunk of each closed group of small pieces."""
        self._digests = hashlib.sha256()
        self._whole = hashlib.sha256()
        self._size = 0
        self._pool = ThreadPoolExecutor(1)
        self._hashing: list[Future[None]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def place(self, piece: bytes | None) -> int:
        """Put a piece of a file (None: zeros) somewhere; equal ones lie in one place."""
        if piece is None or _is_zeros(piece):
            return HOLE
        digest = hashlib.sha256(piece).digest()
        token = self._tokens.get(digest)
        if token is None:
            token = self._whole_piece(piece, digest) if len(piece) == CHUNK_SIZE else self._small_piece(piece, digest)
            self._tokens[digest] = token
        return token

    def _whole_piece(self, piece: bytes, digest: bytes) -> int:
        self._write(piece, CHUNK_SIZE, digest)
        return (self._chunks - 1) * _BLOCKS

    def _small_piece(self, piece: bytes, digest: bytes) -> int:
        if len(self._group) + len(piece) > CHUNK_SIZE:
            self._close_group()
        # A group has no chunk yet: its number, below zero, stands for it.
        token = -1 - (len(self._groups) * _BLOCKS + len(self._group) // BLOCK)
        self._group += piece
        self._group += _ZEROS[: -len(piece) % BLOCK]
        if len(self._group) >= _LEAST_FILL and digest[0] * _ENDS < -(-len(piece) // BLOCK) * 256:
            self._close_group()
        return token

    def _close_group(self) -> None:
        if self._group:
            self._groups.append(self._chunks)
            content = bytes(self._group)
            self._group.clear()
            self._write(content, CHUNK_SIZE, None)

    def _write(self, content: bytes, length: int, digest: bytes | None) -> None:
        """The next chunk: ``content``, and zeros (a hole of the file) up to ``length``."""
        at = self._chunks * CHUNK_SIZE
        self._chunks += 1
        self._size = at + length
        while len(self._hashing) >= _BACKLOG:
            self._hashing.pop(0).result()
        self._hashing.append(self._pool.submit(self._hash, content, length - len(content), digest))
        view = memoryview(content)
        while view:
            written = os.pwrite(self._fd, view, at)
            view, at = view[written:], at + written

    def _hash(self, content: bytes, padding: int, digest: bytes | None) -> None:
        self._whole.update(content)
        self._whole.update(memoryview(_ZEROS)[:padding])
        if digest is None:
            chunk = hashlib.sha256(content)
            chunk.update(memoryview(_ZEROS)[:padding])
            digest = chunk.digest()
        self._digests.update(digest)

    def finish(self) -> Data:
        """Write what is left; nothing can be placed afterwards."""
        if self._group:
            self._groups.append(self._chunks)
            content = bytes(self._group)
            self._write(content, len(content), None)
        os.ftruncate(self._fd, self._size)
        for each in self._hashing:
            each.result()
        return Data(self._whole.hexdigest(), self._size, self._digests.hexdigest())

    def block_of(self, token: int) -> int:
        """The block of the data at which a placed piece begins; ``HOLE`` for zeros."""
        if token >= 0:
            return token
        group, inside = divmod(-1 - token, _BLOCKS)
        return self._groups[group] * _BLOCKS + inside


def _is_zeros(piece: bytes) -> bool:
    return piece[0] == 0 and piece[-1] == 0 and piece == _ZEROS[: len(piece)]
