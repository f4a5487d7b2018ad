"""Byte streams of layers: decompression and exact reads, all bounded."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Iterator
from typing import IO, BinaryIO, Protocol, cast

import zstandard

from dsec.errors import ImageCorrupt

__all__ = [
    "Compression",
    "ExactReader",
    "archive_chunks",
    "compression_of",
    "gunzip",
    "hashed",
    "read_chunks",
    "unzstd",
]

CHUNK = 1 << 20
_SLICE = 32 << 10
"""Compressed bytes handed on at a time: what an inflater leaves of them is copied for each member that ends there."""
_WINDOW = 256 << 20

Compression = str
"""``plain``, ``gzip`` or ``zstd``."""


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...


def compression_of(head: bytes) -> Compression:
    """What the first four bytes say; a tar archive itself never starts with these magic numbers."""
    if head[:2] == b"\x1f\x8b":
        return "gzip"
    if head[:4] == b"\x28\xb5\x2f\xfd":
        return "zstd"
    return "plain"


def read_chunks(file: BinaryIO) -> Iterator[bytes]:
    """The file's bytes in pieces of 1 MiB."""
    while chunk := file.read(CHUNK):
        yield chunk


def hashed(chunks: Iterable[bytes], digest: _Hash) -> Iterator[bytes]:
    """The same chunks, each added to ``digest``."""
    for chunk in chunks:
        digest.update(chunk)
        yield chunk


def gunzip(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Decompress gzip data of one or more members, at most 1 MiB at a time; raises ImageCorrupt."""
    inflater = zlib.decompressobj(wbits=31)
    started = False
    for chunk in chunks:
        for at in range(0, len(chunk), _SLICE):
            data = chunk[at : at + _SLICE]
            while data:
                if not started and not data.strip(b"\0"):
                    break  # padding behind a member
                started = True
                try:
                    out = inflater.decompress(data, CHUNK)
                except zlib.error as error:
                    raise ImageCorrupt(f"a compressed layer is damaged: {error}") from None
                if out:
                    yield out
                data = inflater.unconsumed_tail
                if inflater.eof:
                    data = inflater.unused_data
                    inflater, started = zlib.decompressobj(wbits=31), False
    if started:
        raise ImageCorrupt("a compressed layer is cut short")


class _Chunks:
    """An iterator of chunks as something to read from."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._rest = b""

    def read(self, size: int = -1) -> bytes:
        if not self._rest:
            self._rest = next(self._chunks, b"")
        data, self._rest = self._rest[:size], self._rest[size:]
        return data


def unzstd(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Decompress zstd data of one or more frames, at most 1 MiB at a time and in at most 256 MiB of memory.

    Raises ImageCorrupt. Data that ends within a frame gives what is there: who reads on misses the end, or a digest.
    """
    decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
    try:
        # Without the sizes a source is asked for as much as its frames say.
        with decompressor.stream_reader(
            cast(IO[bytes], _Chunks(chunks)), read_size=_SLICE, read_across_frames=True
        ) as reader:
            while out := reader.read(CHUNK):
                yield out
    except zstandard.ZstdError as error:
        raise ImageCorrupt(f"a compressed layer is damaged: {error}") from None


class ExactReader:
    """Reads exact amounts from an iterator of chunks.

    ``limit`` bounds the bytes that may be taken in all; what goes beyond is ImageCorrupt.
    """

    def __init__(self, chunks: Iterator[bytes], limit: int) -> None:
        self._chunks = chunks
        self._buffer = b""
        self._at = 0
        self._left = self._limit = limit

    @property
    def position(self) -> int:
        """Bytes read and skipped so far."""
        return self._limit - self._left - (len(self._buffer) - self._at)

    def _fill(self) -> bool:
        chunk = next(self._chunks, None)
        if chunk is None:
            return False
        self._left -= len(chunk)
        if self._left < 0:
            raise ImageCorrupt("a layer unpacks to more than the node allows", remedy="Raise max_image_bytes")
        self._buffer, self._at = chunk, 0
        return True

    def read(self, size: int) -> bytes:
        """Exactly ``size`` bytes; raises ImageCorrupt when the stream ends before."""
        end = self._at + size
        if end <= len(self._buffer):
            data = self._buffer[self._at : end]
            self._at = end
            return data
        return b"".join(bytes(piece) for piece in self.pieces(size))

    def pieces(self, size: int) -> Iterator[memoryview]:
        """Exactly ``size`` bytes in pieces without copying; raises ImageCorrupt when the stream ends before."""
        while size:
            have = len(self._buffer) - self._at
            if not have:
                if not self._fill():
                    raise ImageCorrupt("a layer is cut short")
                continue
            take = min(have, size)
            piece = memoryview(self._buffer)[self._at : self._at + take]
            self._at += take
            size -= take
            yield piece

    def skip(self, size: int) -> None:
        """Pass over exactly ``size`` bytes."""
        for _ in self.pieces(size):
            pass

    def at_end(self) -> bool:
        """Whether nothing is left."""
        while self._at == len(self._buffer):
            if not self._fill():
                return True
        return False

    def drain(self) -> None:
        """Read on to the end, so that digests see every byte."""
        self._at = len(self._buffer)
        while self._fill():
            self._at = len(self._buffer)


def archive_chunks(file: BinaryIO) -> Iterator[bytes]:
    """A user's archive without its compression, plain or gzip; raises ImageCorrupt for another."""
    raw = read_chunks(file)
    head = next(raw, b"")
    kind = compression_of(head)
    if kind == "zstd":
        raise ImageCorrupt("the archive is compressed with zstd", remedy="Send it plain or with gzip")
    chunks = itertools.chain([head], raw)
    return gunzip(chunks) if kind == "gzip" else chunks
