"""Whether a store really holds a layer: what is missing, cut short, or not what its digest says."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import NamedTuple

from dsec.errors import ImageCorrupt, NotFound, StoreUnreachable
from dsec.images.store import LayerManifest
from dsec.stores.chunks import unpack_chunk
from dsec.stores.contract import Store
from dsec.stores.fetch import fetch_index, fetch_manifest, fetch_metadata
from dsec.stores.index import MAX_BLOB, ChunkIndex
from dsec.stores.layout import blob_name
from dsec.stores.publish import OnBytes

__all__ = ["check_stored"]

_PIECE = 8 << 20


def check_stored(
    store: Store, digest: str, scratch: Path, *, deep: bool, stop: Event, progress: OnBytes
) -> list[str]:
    """What is wrong with a layer in a store, in words; empty when nothing is. Blocks.

    Reads all of it with ``deep``, else only what does not grow with its data. Raises NotFound for a layer that the
    store has not, whole.
    """
    try:
        manifest = fetch_manifest(store, digest)
        index = fetch_index(store, digest, manifest)
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            fetch_metadata(store, digest, manifest, Path(folder) / "metadata")
    except ImageCorrupt as error:
        return [error.message]
    wrong = _wrong_sizes(store, index)
    return wrong or (_wrong_blobs(store, index, manifest, stop, progress) if deep else [])


def _wrong_sizes(store: Store, index: ChunkIndex) -> list[str]:
    sizes = index.blob_sizes()
    with ThreadPoolExecutor(8) as pool:
        entries = list(pool.map(lambda name: store.stat(blob_name(name)), sizes))
    wrong = []
    for (name, size), entry in zip(sizes.items(), entries, strict=True):
        if entry is None:
            wrong.append(f"blob {name} is missing")
        elif entry.size < size:
            wrong.append(f"blob {name} is cut short: {entry.size} bytes of at least {size}")
    return wrong


def _wrong_blobs(
    store: Store, index: ChunkIndex, manifest: LayerManifest, stop: Event, progress: OnBytes
) -> list[str]:
    """Each blob is held against its own name, so one that several layers share is told once for all of them.

    Each chunk is then unpacked from where the index says that it is: the index itself has no digest.
    """
    wrong, places = [], _places(index, manifest)
    for number, name in enumerate(index.blobs):
        sha256, content = hashlib.sha256(), bytearray()
        for piece in _pieces(store, blob_name(name), stop):
            sha256.update(piece)
            content += piece[: MAX_BLOB - len(content)]
        if sha256.hexdigest() != name:
            wrong.append(f"blob {name} is not what its name says")
        elif lost := [at for place, at in places.get(name, {}).items() if not _is_at(place, content)]:
            wrong.append(f"blob {name} has not, where the index says, chunk {lost[0]} and {len(lost) - 1} more")
        progress(manifest.data.size * (number + 1) // len(index.blobs), manifest.data.size)
    return wrong


class _Place(NamedTuple):
    digest: bytes
    length: int
    offset: int
    raw_length: int


def _places(index: ChunkIndex, manifest: LayerManifest) -> dict[str, dict[_Place, int]]:
    """By blob, each place once, and the number of the first chunk that lies there."""
    found: dict[str, dict[_Place, int]] = {}
    for number, chunk in enumerate(index.chunks):
        if chunk.length:
            raw_length = min(index.chunk_size, manifest.data.size - number * index.chunk_size)
            place = _Place(chunk.digest, chunk.length, chunk.offset, raw_length)
            found.setdefault(index.blobs[chunk.blob], {}).setdefault(place, number)
    return found


def _is_at(place: _Place, content: bytearray) -> bool:
    try:
        unpack_chunk(bytes(content[place.offset : place.offset + place.length]), place.raw_length, place.digest)
    except ImageCorrupt:
        return False
    return True


def _pieces(store: Store, name: str, stop: Event) -> Iterator[bytes]:
    """Nothing of what is missing."""
    at = 0
    with contextlib.suppress(NotFound):
        while piece := store.read(name, at, _PIECE):
            if stop.is_set():
                raise StoreUnreachable("checking was stopped", phase="store")
            yield piece
            at += len(piece)
