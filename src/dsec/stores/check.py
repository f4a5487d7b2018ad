"""Whether a store really holds a layer: what is missing, cut short, or not what its digest says."""

from __future__ import annotations

import hashlib
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

from dsec.errors import ImageCorrupt, NotFound, StoreUnreachable
from dsec.images.store import LayerManifest
from dsec.stores.contract import Store
from dsec.stores.fetch import fetch_index, fetch_manifest, fetch_metadata
from dsec.stores.index import ChunkIndex
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
    """Each blob is held against its own name, so one that several layers share is told once for all of them."""
    wrong, done = [], 0
    for number, name in enumerate(index.blobs):
        if stop.is_set():
            raise StoreUnreachable("checking was stopped", phase="store")
        sha256, at = hashlib.sha256(), 0
        try:
            while piece := store.read(blob_name(name), at, _PIECE):
                sha256.update(piece)
                at += len(piece)
        except NotFound:
            pass
        if sha256.hexdigest() != name:
            wrong.append(f"blob {name} is not what its name says")
        done = manifest.data.size * (number + 1) // len(index.blobs)
        progress(done, manifest.data.size)
    return wrong
