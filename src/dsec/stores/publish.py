"""A layer of this node into a store: packs, chunk index, metadata, and last of all ``layer.json``.

Every step can be done twice and by two publishers at once; one that dies leaves what the next one finds and skips.
The rules that keep this safe against a clean-up at the same time are in ``collect`` and in decision 0041.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event

import msgspec
import zstandard

from dsec.errors import ImageCorrupt, NotFound, StoreError, StoreUnreachable
from dsec.images.store import CHUNK_SIZE, LayerManifest, canonical, digest_of
from dsec.stores.chunks import pack_chunk, unpack_chunk
from dsec.stores.contract import Store
from dsec.stores.index import ChunkIndex, check_index, decode_index, encode_index
from dsec.stores.layout import (
    DOOMED,
    LAYERS,
    blob_name,
    index_name,
    manifest_name,
    metadata_name,
)
from dsec.stores.packs import Packer, Place, known_places

__all__ = ["OnBytes", "Published", "publish"]

OnBytes = Callable[[int, int], None]
"""Called with the bytes of data that are done, and all of them; from a thread."""

_GROUP = 32
_UPLOADS = 2
_ROUNDS = 4
_MOST_NEIGHBOURS = 64
_MOST_INDEX = 8 << 20


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """What publishing did, in bytes."""

    digest: str
    size: int
    """Of the layer, metadata and data."""
    stored: int
    """What the store holds for it: metadata as compressed, and each of its chunks once."""
    sent: int
    """What had to be written for it now."""
    was_there: bool
    """Whether the whole layer was in the store already."""


def publish(
    store: Store,
    directory: Path,
    manifest: LayerManifest,
    *,
    stop: Event,
    progress: OnBytes,
    neighbours: Sequence[str] = (),
    mend: bool = False,
) -> Published:
    """Make the layer in ``directory`` one of the store's; blocks, for as long as its data takes.

    ``mend`` trusts nothing that the store holds of the layer and writes it anew: for one that was found damaged.
    ``neighbours`` are digests of layers whose chunks are looked at first for what need not be stored again. Raises
    StoreFull, StoreDenied, StoreUnreachable, ImageCorrupt (the layer itself is damaged on this node), StoreError.
    """
    return _Publication(store, directory, manifest, stop, progress, neighbours, mend).run()


class _Publication:
    def __init__(
        self,
        store: Store,
        directory: Path,
        manifest: LayerManifest,
        stop: Event,
        progress: OnBytes,
        neighbours: Sequence[str],
        mend: bool,
    ) -> None:
        self._store = store
        self._directory = directory
        self._manifest = manifest
        self._digest = digest_of(manifest)
        self._stop = stop
        self._progress = progress
        self._neighbours = neighbours
        self._mend = mend
        self._sent = 0
        self._missing: set[str] = set()
        """Blobs that other layers name and the store has not, or not as they say."""
        self._looked_at: set[str] = set()

    def run(self) -> Published:
        store, digest = self._store, self._digest
        store.delete(f"{DOOMED}/{LAYERS}/{digest}")
        was_there = not self._mend and store.stat(manifest_name(digest)) is not None
        for _ in range(_ROUNDS):
            index = self._pack() if self._mend else self._usable_index() or self._pack()
            if index is None:
                continue
            stored = self._put_metadata(rewrite=not was_there)
            self._put_manifest()
            # A clean-up that had this layer for a dead publisher's may have been at it until now.
            if self._is_whole(index):
                return self._report(index, stored, was_there)
            was_there = False
        raise StoreError(
            f"{store.title}: its objects vanish while layer {digest} is published",
            phase="store",
            remedy="See who removes them, then push again",
        )

    def _put_manifest(self) -> None:
        name, content = manifest_name(self._digest), canonical(self._manifest)
        if self._mend:
            self._store.put(name, content)
        else:
            self._store.swap(name, content, None)

    def _report(self, index: ChunkIndex, metadata: int, was_there: bool) -> Published:
        self._progress(self._manifest.data.size, self._manifest.data.size)
        places = {(chunk.blob, chunk.offset): chunk.length for chunk in index.chunks}
        return Published(
            digest=self._digest,
            size=self._manifest.size,
            stored=metadata + sum(places.values()),
            sent=self._sent,
            was_there=was_there and self._sent == 0,
        )

    def _is_whole(self, index: ChunkIndex) -> bool:
        names = (index_name(self._digest), metadata_name(self._digest), manifest_name(self._digest))
        return all(self._store.stat(name) is not None for name in names) and not self._absent(index)

    def _usable_index(self) -> ChunkIndex | None:
        """The index that is in the store, if it is this layer's and all that it names is there."""
        try:
            index = decode_index(self._store.read(index_name(self._digest)))
            check_index(index, self._manifest)
        except (NotFound, ImageCorrupt):
            return None
        return None if self._absent(index) else index

    def _absent(self, index: ChunkIndex) -> set[str]:
        """Blobs of an index that the store has not, or has cut short."""
        sizes = index.blob_sizes()
        with ThreadPoolExecutor(8) as pool:
            found = pool.map(lambda name: self._store.stat(blob_name(name)), sizes)
            return {
                name for name, entry in zip(sizes, found, strict=True) if entry is None or entry.size < sizes[name]
            }

    def _pack(self) -> ChunkIndex | None:
        """Store the chunks and their index; None when a blob that was counted on is not there: then once more."""
        doomed = self._doomed()
        known = {} if self._mend else self._known(doomed)
        with _Uploads(self._put_pack) as uploads:
            packer = Packer(uploads.add, known, doomed)
            self._read(packer, known)
            index = packer.index(CHUNK_SIZE)
        # From here to the index is a moment, and what is doomed now is removed a day later at the earliest.
        absent = self._absent(index)
        self._missing |= absent
        if absent or self._doomed() & set(index.blobs):
            return None
        return self._put_index(index)

    def _put_index(self, index: ChunkIndex) -> ChunkIndex | None:
        """An index that others may be reading is replaced only if it is of no use."""
        name = index_name(self._digest)
        there = self._store.stat(name)
        if not self._mend and there is not None and (usable := self._usable_index()) is not None:
            return usable
        raw = encode_index(index)
        if not self._store.swap(name, raw, None if there is None else there.mark):
            return None
        self._sent += len(raw)
        return index

    def _doomed(self) -> frozenset[str]:
        marks = self._store.list(f"{DOOMED}/blobs")
        return frozenset(mark.name.rpartition("/")[2] for mark in marks)

    def _known(self, doomed: frozenset[str]) -> dict[bytes, Place]:
        """Chunks that need not be stored: those of neighbours, then of the layers that came last."""
        entries = [each for each in self._store.list(LAYERS) if each.name.endswith("/chunks")]
        recent = sorted(entries, key=lambda each: each.modified, reverse=True)[:_MOST_NEIGHBOURS]
        first = {index_name(digest) for digest in self._neighbours}
        chosen = [each for each in entries if each.name in first] + [
            each for each in recent if each.name not in first
        ]
        known: dict[bytes, Place] = {}
        left = _MOST_INDEX
        for entry in chosen:
            left -= entry.size
            if left < 0:
                break
            try:
                index = decode_index(self._store.read(entry.name))
            except (NotFound, ImageCorrupt):
                continue
            known = known_places(index, doomed | self._missing) | known
        return known

    def _put_pack(self, name: str, content: bytes) -> None:
        there = self._store.stat(blob_name(name))
        if self._mend or there is None or there.size != len(content):
            self._store.put(blob_name(name), content)
            self._sent += len(content)

    def _look_at(self, known: dict[bytes, Place], digest: bytes, length: int) -> None:
        """Read the first chunk that is taken of each blob of another layer: its index may be damaged.

        All of them would be to fetch what need not be sent. One that is not there takes the others of its blob along.
        """
        blob, stored, offset = known[digest]
        if blob in self._looked_at:
            return
        self._looked_at.add(blob)
        try:
            unpack_chunk(self._store.read(blob_name(blob), offset, stored), length, digest)
        except (NotFound, ImageCorrupt):
            self._missing.add(blob)
            for each in [each for each, place in known.items() if place.blob == blob]:
                del known[each]

    def _read(self, packer: Packer, known: dict[bytes, Place]) -> None:
        """Every chunk of the data to the packer, in order; raises ImageCorrupt if they are not the layer's."""
        total, done, digests = self._manifest.data.size, 0, hashlib.sha256()
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            for group in _groups(self._directory / "data"):
                if self._stop.is_set():
                    raise StoreUnreachable("publishing was stopped", phase="store")
                hashes = list(pool.map(lambda chunk: hashlib.sha256(chunk).digest(), group))
                for digest, chunk in zip(hashes, group, strict=True):
                    if digest in known:
                        self._look_at(known, digest, len(chunk))
                wanted = {digest: chunk for digest, chunk in zip(hashes, group, strict=True) if packer.needs(digest)}
                packed = dict(zip(wanted, pool.map(pack_chunk, wanted.values()), strict=True))
                for digest, chunk in zip(hashes, group, strict=True):
                    digests.update(digest)
                    packer.add(digest, packed.get(digest, chunk))
                    done += len(chunk)
                self._progress(done, total)
        if done != total or digests.hexdigest() != self._manifest.chunks_sha256:
            raise ImageCorrupt(
                f"layer {self._digest} is damaged on this node", phase="store", remedy="Remove it and build it again"
            )

    def _put_metadata(self, *, rewrite: bool) -> int:
        """The metadata as one frame; returns the frame's size."""
        name = metadata_name(self._digest)
        there = self._store.stat(name)
        if there is not None and not rewrite:
            return there.size
        raw = (self._directory / "metadata").read_bytes()
        if hashlib.sha256(raw).hexdigest() != self._manifest.metadata.sha256:
            raise ImageCorrupt(
                f"layer {self._digest} is damaged on this node", phase="store", remedy="Remove it and build it again"
            )
        frame = zstandard.ZstdCompressor(level=3).compress(raw)
        self._store.put(name, frame)
        self._sent += len(frame)
        return len(frame)


def _groups(file: Path) -> Iterator[list[bytes]]:
    with file.open("rb", buffering=0) as data:
        while block := _full_read(data.fileno(), _GROUP * CHUNK_SIZE):
            yield [block[at : at + CHUNK_SIZE] for at in range(0, len(block), CHUNK_SIZE)]


def _full_read(fd: int, length: int) -> bytes:
    block = os.read(fd, length)
    while len(block) < length and (more := os.read(fd, length - len(block))):
        block += more
    return block


class _Uploads:
    """A few uploads at a time: whoever hands on one more waits for the oldest. The first failure is raised."""

    def __init__(self, put: Callable[[str, bytes], None]) -> None:
        self._put = put
        self._pool = ThreadPoolExecutor(_UPLOADS)
        self._under_way: list[Future[None]] = []

    def add(self, name: str, content: bytes) -> None:
        while len(self._under_way) >= _UPLOADS:
            self._under_way.pop(0).result()
        self._under_way.append(self._pool.submit(self._put, name, content))

    def __enter__(self) -> _Uploads:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._pool.shutdown(wait=True)
        if kind is None:
            for each in self._under_way:
                each.result()
