"""A layer of a store onto this node, whole: every chunk checked, and what is there already not fetched again.

What a fetch that was cut off has left needs no record of its own: a chunk is there if its bytes have its digest.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import NamedTuple

import zstandard

from dsec.errors import ImageCorrupt, NotFound, StoreUnreachable
from dsec.images.disk import full_disk_typed
from dsec.images.store import CHUNK_SIZE, LayerManifest
from dsec.stores.chunks import unpack_chunk
from dsec.stores.collect import claim, release
from dsec.stores.contract import Store
from dsec.stores.index import ChunkIndex, StoredChunk, check_index, decode_index, encode_index
from dsec.stores.layout import blob_name, decode_manifest, index_name, manifest_name, metadata_name
from dsec.stores.publish import OnBytes

__all__ = ["fetch", "fetch_claimed", "fetch_index", "fetch_manifest", "fetch_metadata", "fetch_sparse"]

_MOST_RANGE = 8 << 20
_READERS = 8
_PIECE = 8 << 20
_TRIES = 3
_AGAIN = "Mend it from a node that has the layer: dsec layer push REF --mend"


class _Run(NamedTuple):
    """Chunks that one read brings: neighbours in the data and in their blob."""

    first: int
    """Number of the first of them."""
    chunks: Sequence[StoredChunk]


def fetch_manifest(store: Store, digest: str) -> LayerManifest:
    """What ``layer.json`` says; raises NotFound if the store has no such layer, whole, and ImageCorrupt."""
    return decode_manifest(store.read(manifest_name(digest)), digest)


def fetch_index(store: Store, digest: str, manifest: LayerManifest) -> ChunkIndex:
    """The layer's chunk index, checked; raises ImageCorrupt, also where it is missing though the layer is there."""
    with _present(digest):
        index = decode_index(store.read(index_name(digest)))
    check_index(index, manifest)
    return index


def fetch_metadata(store: Store, digest: str, manifest: LayerManifest, target: Path) -> None:
    """Write the layer's metadata, checked, to a file. Never more of it than the manifest says."""
    decompressor = zstandard.ZstdDecompressor().decompressobj()
    left, sha256, at = manifest.metadata.size, hashlib.sha256(), 0
    with _present(digest), full_disk_typed(), target.open("wb") as file:
        while piece := store.read(metadata_name(digest), at, _PIECE):
            at += len(piece)
            for raw in _decompressed(decompressor, piece, left):
                left -= len(raw)
                sha256.update(raw)
                file.write(raw)
    if left or sha256.hexdigest() != manifest.metadata.sha256:
        raise ImageCorrupt(
            f"the metadata of layer {digest} is not what its digest says", phase="store", remedy=_AGAIN
        )


def _decompressed(decompressor: zstandard.ZstdDecompressionObj, piece: bytes, most: int) -> Iterator[bytes]:
    # In slices, so that a frame of a few bytes cannot become gigabytes before somebody counts them.
    for at in range(0, len(piece), 4096):
        try:
            raw = decompressor.decompress(piece[at : at + 4096])
        except zstandard.ZstdError as error:
            raise ImageCorrupt(f"metadata cannot be decompressed: {error}", phase="store", remedy=_AGAIN) from None
        most -= len(raw)
        if most < 0:
            raise ImageCorrupt("metadata is larger than its layer says", phase="store", remedy=_AGAIN)
        if raw:
            yield raw


def fetch(store: Store, digest: str, target: Path, *, stop: Event, progress: OnBytes) -> LayerManifest:
    """Fill the directory ``target`` with the layer's ``metadata`` and ``data``; blocks. Goes on with what is there.

    Raises NotFound, ImageCorrupt, StoreDenied, StoreUnreachable, CapacityError (this node's disk is full).
    """
    manifest = fetch_manifest(store, digest)
    index = fetch_index(store, digest, manifest)
    fetch_metadata(store, digest, manifest, target / "metadata")
    with full_disk_typed(), (target / "data").open("ab") as file:
        file.truncate(manifest.data.size)
    fd = os.open(target / "data", os.O_RDWR | os.O_CLOEXEC)
    try:
        _Fetch(store, fd, manifest, index, stop, progress).run()
    finally:
        os.close(fd)
    return manifest


def fetch_sparse(store: Store, digest: str, target: Path) -> LayerManifest:
    """Fill the directory ``target`` with a layer whose data is still in the store; blocks.

    ``data`` is one hole of the full size, ``chunks`` says where it comes from, and the empty ``filled`` that nothing
    of it is there. Raises NotFound, ImageCorrupt, StoreDenied, StoreUnreachable, CapacityError (the disk is full).
    """
    manifest = fetch_manifest(store, digest)
    index = fetch_index(store, digest, manifest)
    fetch_metadata(store, digest, manifest, target / "metadata")
    with full_disk_typed():
        (target / "chunks").write_bytes(encode_index(index))
        for name, size in (("data", manifest.data.size), ("filled", 0)):
            with (target / name).open("wb") as file:
                file.truncate(size)
    return manifest


def fetch_claimed(store: Store, digest: str, target: Path, claimant: str) -> LayerManifest:
    """``fetch_sparse`` of a layer that the store keeps from now on for ``claimant``; errors as there."""
    try:
        for _ in range(_TRIES):
            claim(store, digest, claimant)
            manifest = fetch_sparse(store, digest, target)
            # A clean-up that looked for claims before there was this one may have been removing it until now.
            if all(store.stat(name) is not None for name in (manifest_name(digest), index_name(digest))):
                return manifest
    except NotFound:
        release(store, digest, claimant)
        raise
    raise StoreUnreachable(
        f"{store.title}: layer {digest} vanishes while it is pulled", phase="store", remedy="Push it, then pull again"
    )


class _Fetch:
    def __init__(
        self, store: Store, fd: int, manifest: LayerManifest, index: ChunkIndex, stop: Event, progress: OnBytes
    ) -> None:
        self._store = store
        self._fd = fd
        self._size = manifest.data.size
        self._index = index
        self._stop = stop
        self._progress = progress

    def run(self) -> None:
        done = 0
        with full_disk_typed(), ThreadPoolExecutor(_READERS) as pool:
            try:
                for brought in pool.map(self._bring, _runs(self._index)):
                    done += brought
                    self._progress(done, self._size)
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise

    def _bring(self, run: _Run) -> int:
        if self._stop.is_set():
            raise StoreUnreachable("fetching was stopped", phase="store")
        lengths = [self._length(run.first + place) for place in range(len(run.chunks))]
        missing = [place for place, chunk in enumerate(run.chunks) if not self._has(run.first + place, chunk)]
        if missing:
            self._read(run, missing[0], missing[-1] + 1)
        return sum(lengths)

    def _length(self, number: int) -> int:
        return min(CHUNK_SIZE, self._size - number * CHUNK_SIZE)

    def _has(self, number: int, chunk: StoredChunk) -> bool:
        raw = os.pread(self._fd, self._length(number), number * CHUNK_SIZE)
        # A hole is zeros, and hashing them is the price of asking nothing of the file system.
        if chunk.length and not raw.strip(b"\0"):
            return False
        return hashlib.sha256(raw).digest() == chunk.digest

    def _read(self, run: _Run, begin: int, end: int) -> None:
        chunks = run.chunks[begin:end]
        for left in reversed(range(_TRIES)):
            try:
                for place, raw in enumerate(self._checked(run.first + begin, chunks)):
                    _write(self._fd, raw, (run.first + begin + place) * CHUNK_SIZE)
                return
            except ImageCorrupt:
                # What the network or a cache damaged is right the second time; what lies damaged is not.
                if not left:
                    raise

    def _checked(self, first: int, chunks: Sequence[StoredChunk]) -> Iterator[bytes]:
        stored = [chunk for chunk in chunks if chunk.length]
        if not stored:
            yield from (bytes(self._length(first + place)) for place in range(len(chunks)))
            return
        name, start = self._index.blobs[stored[0].blob], stored[0].offset
        length = stored[-1].offset + stored[-1].length - start
        with _present(name):
            block = memoryview(self._store.read(blob_name(name), start, length))
        if len(block) != length:
            raise ImageCorrupt(f"blob {name} of the store is cut short", phase="store", remedy=_AGAIN, blob=name)
        for place, chunk in enumerate(chunks):
            piece = bytes(block[chunk.offset - start :][: chunk.length]) if chunk.length else b""
            try:
                yield unpack_chunk(piece, self._length(first + place), chunk.digest)
            except ImageCorrupt as error:
                raise ImageCorrupt(
                    f"blob {name} of the store: {error.message}", phase="store", remedy=_AGAIN, blob=name
                ) from None


def _runs(index: ChunkIndex) -> Iterator[_Run]:
    """The chunks in order, joined as far as one read of the store can bring them; zeros join anything."""
    first, chunks = 0, list[StoredChunk]()
    blob, start, end = -1, 0, 0
    for number, chunk in enumerate(index.chunks):
        joins = not chunk.length or blob < 0 or (chunk.blob == blob and chunk.offset == end)
        if chunks and (not joins or end - start + chunk.length > _MOST_RANGE or len(chunks) >= 128):
            yield _Run(first, chunks)
            first, chunks, blob = number, [], -1
        if chunk.length:
            if blob < 0:
                blob, start = chunk.blob, chunk.offset
            end = chunk.offset + chunk.length
        chunks.append(chunk)
    if chunks:
        yield _Run(first, chunks)


def _write(fd: int, raw: bytes, offset: int) -> None:
    view = memoryview(raw)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


@contextlib.contextmanager
def _present(what: str) -> Iterator[None]:
    """What a whole layer names and the store has not makes a damaged layer, not an unknown name."""
    try:
        yield
    except NotFound as error:
        raise ImageCorrupt(
            f"an object of {what} is missing from the store: {error.message}",
            phase="store", remedy=_AGAIN, object=error.details.get("object"),
        ) from None  # fmt: skip
