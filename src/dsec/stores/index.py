"""The chunk index of a layer: where each chunk of its data lies in a store. Pure.

    magic "DSCHNK01", u32 chunk_size, u32 blob_count, u64 chunk_count     (little endian, no padding)
    blob_count × 32 bytes: the blob's sha256, which is its name
    chunk_count × 48 bytes: sha256 of the raw chunk, u32 blob, u32 stored_length, u64 offset in the blob

``stored_length`` equal to the raw chunk's means stored as it is, a smaller one means one zstd frame, 0 means that all
of the chunk is zeros and nothing is stored. ``crates/fetcher`` reads the same; ``tests/golden/chunk_index.json``
holds both to it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

import msgspec

from dsec.errors import ImageCorrupt
from dsec.images.store import CHUNK_SIZE, LayerManifest

__all__ = ["MAX_BLOB", "ChunkIndex", "StoredChunk", "check_index", "decode_index", "encode_index", "zero_digest"]

MAGIC = b"DSCHNK01"
MAX_BLOB = 64 << 20
"""Bytes of the largest blob that holds chunks."""
_HEAD = struct.Struct("<8sIIQ")
_CHUNK = struct.Struct("<32sIIQ")
_DIGEST = 32


class StoredChunk(NamedTuple):
    """One chunk: what it is, and where."""

    digest: bytes
    """Sha256 of the raw chunk, 32 bytes."""
    blob: int
    """Place in the index's list of blobs; 0 when nothing is stored."""
    length: int
    """Bytes stored."""
    offset: int
    """Where in the blob."""


class ChunkIndex(msgspec.Struct, frozen=True):
    """An index as a whole."""

    chunk_size: int
    blobs: tuple[str, ...]
    """Names, 64 lower-case hex digits each, all different."""
    chunks: tuple[StoredChunk, ...]
    """In the order of the data; all of ``chunk_size`` but the last, which may be shorter."""

    def blob_sizes(self) -> dict[str, int]:
        """Blob → the bytes that it must at least have."""
        ends = dict.fromkeys(self.blobs, 0)
        for chunk in self.chunks:
            if chunk.length:
                name = self.blobs[chunk.blob]
                ends[name] = max(ends[name], chunk.offset + chunk.length)
        return ends


def encode_index(index: ChunkIndex) -> bytes:
    """The bytes of a well-formed index."""
    return b"".join(_pieces(index))


def _pieces(index: ChunkIndex) -> Iterator[bytes]:
    yield _HEAD.pack(MAGIC, index.chunk_size, len(index.blobs), len(index.chunks))
    yield from map(bytes.fromhex, index.blobs)
    for chunk in index.chunks:
        yield _CHUNK.pack(*chunk)


def decode_index(raw: bytes) -> ChunkIndex:
    """Read an index that anybody may have written; raises ImageCorrupt unless it is well-formed.

    Afterwards every place lies within a blob of at most ``MAX_BLOB`` bytes. Whether it is a layer's index is what
    ``check_index`` says.
    """
    if len(raw) < _HEAD.size:
        raise _damaged("it is shorter than its head")
    magic, chunk_size, blob_count, chunk_count = _HEAD.unpack_from(raw)
    if magic != MAGIC:
        raise _damaged("its first bytes are not those of an index")
    if chunk_size == 0:
        raise _damaged("its chunks have no size")
    chunks_at = _HEAD.size + blob_count * _DIGEST
    if len(raw) != chunks_at + chunk_count * _CHUNK.size:
        raise _damaged("its length is not what its head says")
    blobs = tuple(raw[at : at + _DIGEST].hex() for at in range(_HEAD.size, chunks_at, _DIGEST))
    if len(set(blobs)) != len(blobs):
        raise _damaged("it names a blob twice")
    chunks = tuple(map(StoredChunk._make, _CHUNK.iter_unpack(raw[chunks_at:])))
    _check_places(chunks, chunk_size, blob_count)
    return ChunkIndex(chunk_size, blobs, chunks)


def _check_places(chunks: Iterable[StoredChunk], chunk_size: int, blob_count: int) -> None:
    for _, blob, length, offset in chunks:
        if length == 0:
            if blob or offset:
                raise _damaged("a chunk of zeros has a place")
        elif blob >= blob_count:
            raise _damaged("a chunk lies in a blob that is not named")
        elif length > chunk_size:
            raise _damaged("a chunk is stored longer than it is")
        elif offset + length > MAX_BLOB:
            raise _damaged("a chunk lies beyond the end of the largest blob")


def check_index(index: ChunkIndex, manifest: LayerManifest) -> None:
    """Whether an index is that of a layer; raises ImageCorrupt.

    Then each chunk that matches its digest is a chunk of the layer, and all of them are all of its data.
    """
    size = manifest.data.size
    if index.chunk_size != manifest.chunk_size or index.chunk_size != CHUNK_SIZE:
        raise _damaged("its chunks are not of the layer's size")
    if len(index.chunks) != -(-size // CHUNK_SIZE):
        raise _damaged("it has not as many chunks as the layer")
    digests = hashlib.sha256()
    for chunk in index.chunks:
        digests.update(chunk.digest)
    if digests.hexdigest() != manifest.chunks_sha256:
        raise _damaged("its chunks are not those of the layer")
    for number, chunk in enumerate(index.chunks):
        length = min(CHUNK_SIZE, size - number * CHUNK_SIZE)
        if chunk.length > length:
            raise _damaged("its last chunk is stored longer than it is")
        if chunk.length == 0 and chunk.digest != zero_digest(length):
            raise _damaged("a chunk without bytes is not zeros")


@lru_cache(maxsize=64)
def zero_digest(length: int) -> bytes:
    """Sha256 of that many zeros."""
    return hashlib.sha256(bytes(length)).digest()


def _damaged(why: str) -> ImageCorrupt:
    return ImageCorrupt(f"the chunk index is damaged: {why}", phase="store", remedy="Push the layer again")
