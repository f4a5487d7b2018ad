"""One layer's archive unpacked in a thread, its digests checked on the way."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

from dsec.errors import ImageCorrupt
from dsec.images.config import ImagesConfig
from dsec.images.oci import LayoutImage, LayoutLayer, open_blob
from dsec.images.progress import Progress, Reporter
from dsec.images.streams import compression_of, gunzip, hashed, read_chunks
from dsec.images.unpack import UnpackOptions, unpack

__all__ = ["Tally", "VerifiedUnpack"]


class Tally:
    """Counts what is unpacked over all layers of one import; also called from threads."""

    def __init__(self, reference: str, image: LayoutImage, report: Reporter) -> None:
        self._loop = asyncio.get_running_loop()
        self._reference = reference
        self._report = report
        self._total = sum(layer.size for layer in image.layers)
        self._layers = len(image.layers)
        self._done: dict[str, int] = {}
        self._complete = 0
        self._say()

    def add_from_thread(self, blob: str, size: int) -> None:
        self._loop.call_soon_threadsafe(self._add, blob, size)

    def _add(self, blob: str, size: int) -> None:
        self._done[blob] = self._done.get(blob, 0) + size
        self._say()

    def layer_done(self, layer: LayoutLayer) -> None:
        self._done[layer.blob] = layer.size
        self._complete += 1
        self._say()

    def _say(self) -> None:
        done = min(sum(self._done.values()), self._total)
        self._report(Progress(self._reference, "unpack", done, self._total, self._complete, self._layers))


class VerifiedUnpack:
    """Unpacks one layer in a thread and checks that blob and archive are what their digests say."""

    def __init__(
        self, layout: Path, layer: LayoutLayer, archive: Path | None, tree: Path, config: ImagesConfig, tally: Tally
    ) -> None:
        self._layout = layout
        self._layer = layer
        self._archive = archive
        self._tree = tree
        self._tally = tally
        self._options = UnpackOptions(
            max_bytes=config.max_image_bytes, max_entries=config.max_entries, end_mark=False
        )

    def unpack(self, stop: threading.Event) -> None:
        blob_hash, diff_hash = hashlib.sha256(), hashlib.sha256()
        with open_blob(self._layout, self._layer.blob) as file:
            raw = hashed(self._counted(read_chunks(file)), blob_hash)
            if self._archive is None:
                head = next(raw, b"")
                chunks = itertools.chain([head], raw)
                plain = gunzip(chunks) if compression_of(head) == "gzip" else chunks
                self._lay(plain, diff_hash, stop)
            else:
                with self._archive.open("rb") as archive:
                    self._lay(read_chunks(archive), diff_hash, stop)
            for _ in raw:
                pass
        self._check(self._layer.blob, blob_hash.hexdigest())
        self._check(self._layer.diff_id, diff_hash.hexdigest())

    def _counted(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            self._tally.add_from_thread(self._layer.blob, len(chunk))
            yield chunk

    def _lay(self, plain: Iterator[bytes], diff_hash: hashlib._Hash, stop: threading.Event) -> None:
        unpack(hashed(plain, diff_hash), str(self._tree), self._options, stop)

    def _check(self, expected: str, found: str) -> None:
        if expected != f"sha256:{found}":
            raise ImageCorrupt(f"a layer is not what its digest {expected} says", remedy="Fetch or save it again")
