"""Chunks put together into packs: the objects that a store holds of a layer's data. No I/O of its own."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from dsec.stores.index import MAX_BLOB, ChunkIndex, StoredChunk

__all__ = ["PACK_SIZE", "Packer", "Place", "known_places"]

PACK_SIZE = 32 << 20
"""A pack is closed before it grows beyond this: half of what is allowed, for three of them are in memory at once."""
_SALT = 16


class Place(NamedTuple):
    """Where a stored chunk lies."""

    blob: str
    length: int
    offset: int


class _Own(NamedTuple):
    """The same of a pack that has no name yet."""

    pack: int
    length: int
    offset: int


class Packed(msgspec.Struct):
    """What came of a layer's chunks, in bytes of what is stored."""

    new: int = 0
    reused: int = 0
    """In blobs of other layers, or twice in this one."""


class Packer:
    """Takes a layer's chunks in order and hands on full packs.

    A chunk that is ``known`` already, or was met before, is stored once. ``refused`` are names that no pack may get:
    blobs that are about to be removed; a pack of that very content gets some bytes more, and so another name.
    """

    def __init__(
        self,
        hand_on: Callable[[str, bytes], None],
        known: Mapping[bytes, Place],
        refused: frozenset[str] = frozenset(),
        *,
        pack_size: int = PACK_SIZE,
    ) -> None:
        self._hand_on = hand_on
        self._known = known
        self._refused = refused
        self._pack_size = min(pack_size, MAX_BLOB)
        self._places: list[tuple[bytes, Place | _Own | None]] = []
        self._met: dict[bytes, _Own] = {}
        self._names: list[str] = []
        self._salts: list[int] = []
        self._pack = bytearray()
        self.packed = Packed()

    def add(self, digest: bytes, stored: bytes) -> None:
        """The next chunk: its digest, and what ``pack_chunk`` made of it."""
        if not stored:
            self._places.append((digest, None))
        elif (place := self._known.get(digest)) is not None:
            self._places.append((digest, place))
            self.packed.reused += place.length
        elif (met := self._met.get(digest)) is not None:
            self._places.append((digest, met))
            self.packed.reused += met.length
        else:
            self._append(digest, stored)

    def needs(self, digest: bytes) -> bool:
        """Whether the bytes of a chunk with this digest are wanted at all."""
        return digest not in self._known and digest not in self._met

    def _append(self, digest: bytes, stored: bytes) -> None:
        if self._pack and len(self._pack) + len(stored) > self._pack_size:
            self._close()
        place = _Own(len(self._names), len(stored), len(self._pack))
        self._met[digest] = place
        self._places.append((digest, place))
        self._pack += stored
        self.packed.new += len(stored)

    def _close(self) -> None:
        content = bytes(self._pack)
        name = hashlib.sha256(content).hexdigest()
        salt = 0
        while name in self._refused:
            # In front, so that whoever reads to the end of the last chunk reads no byte in vain.
            content = hashlib.sha256(content).digest()[:_SALT] + content
            name = hashlib.sha256(content).hexdigest()
            salt += _SALT
        self._names.append(name)
        self._salts.append(salt)
        self._pack.clear()
        self._hand_on(name, content)

    def index(self, chunk_size: int) -> ChunkIndex:
        """The index of all chunks; hands on the last pack."""
        if self._pack:
            self._close()
        blobs: dict[str, int] = {}
        chunks = [self._stored(digest, place, blobs) for digest, place in self._places]
        return ChunkIndex(chunk_size, tuple(blobs), tuple(chunks))

    def _stored(self, digest: bytes, place: Place | _Own | None, blobs: dict[str, int]) -> StoredChunk:
        if place is None:
            return StoredChunk(digest, 0, 0, 0)
        if isinstance(place, _Own):
            place = Place(self._names[place.pack], place.length, place.offset + self._salts[place.pack])
        return StoredChunk(digest, blobs.setdefault(place.blob, len(blobs)), place.length, place.offset)


def known_places(index: ChunkIndex, refused: frozenset[str] = frozenset()) -> dict[bytes, Place]:
    """Where the chunks of a published layer lie, without those in blobs that are about to be removed.

    Also without those in blobs where two chunks overlap: such an index is damaged.
    """
    stored = sorted(
        {(chunk.blob, chunk.offset, chunk.length, chunk.digest) for chunk in index.chunks if chunk.length}
    )
    untrue = {
        blob
        for (blob, offset, length, _), (next_blob, next_offset, *_) in itertools.pairwise(stored)
        if blob == next_blob and next_offset < offset + length
    }
    return {
        digest: Place(index.blobs[blob], length, offset)
        for blob, offset, length, digest in stored
        if blob not in untrue and index.blobs[blob] not in refused
    }
