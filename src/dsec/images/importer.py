"""From a source to an image of the catalogue: copy, make a layer of each archive, publish, record.

A layer is made once for each diffID, whichever images hold it and however many imports want it at the same moment.
Everything on the way lies in private directories that are gone at the end, whatever the end is.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from dsec.images import skopeo
from dsec.images.catalogue import Image
from dsec.images.copying import Copier
from dsec.images.holds import Hold
from dsec.images.oci import LayoutImage, LayoutLayer, blob_path, read_layout
from dsec.images.progress import Reporter
from dsec.images.pulls import Pull, Pulls
from dsec.images.references import ImageReference
from dsec.images.store import private_directory
from dsec.images.tally import Tally
from dsec.images.threads import in_thread
from dsec.images.together import together
from dsec.images.workshop import Workshop
from dsec.layering.making import FromArchive
from dsec.layering.tar_tree import TarOptions

__all__ = ["Importer", "SCRATCH_PREFIX"]

SCRATCH_PREFIX = "import-"


class Importer:
    """Imports images into one node's catalogue and store; ``on_image`` is called with each name that is imported."""

    def __init__(self, workshop: Workshop, pulls: Pulls, on_image: Callable[[str], None]) -> None:
        self._workshop = workshop
        self._config = workshop.config
        self._catalogue = workshop.catalogue
        self._holds = workshop.holds
        self._pulls = pulls
        self._on_image = on_image
        self._layer_locks: dict[str, asyncio.Lock] = {}
        self._copier = Copier(workshop.config, workshop.tools)
        self._slots = asyncio.Semaphore(self._config.parallel_layers)

    async def pull(self, source: ImageReference, reference: str, report: Reporter) -> Image:
        """Import from a registry under the name ``reference``. Errors: see ``Images.resolve``."""
        name = skopeo.mirrored(source, self._config.mirrors)
        pull = Pull(str(source), reference)
        with self._pulls.directory(pull) as scratch:
            return await self._by_skopeo(f"docker://{name}", reference, report, scratch, pull.id)

    async def archive(self, file: Path, selector: str | None, reference: str, report: Reporter) -> Image:
        """Import what ``docker save`` wrote."""
        source = f"docker-archive:{file}" + (f":{selector}" if selector else "")
        with private_directory(self._config.scratch_dir, SCRATCH_PREFIX) as scratch:
            return await self._by_skopeo(source, reference, report, scratch, None)

    async def layout(self, directory: Path, selector: str | None, reference: str, report: Reporter) -> Image:
        """Import from an OCI layout, which is read in place and never written."""
        image = await in_thread(lambda _: read_layout(directory, selector))
        return await self._take(directory, image, reference, report)

    async def _by_skopeo(
        self, source: str, reference: str, report: Reporter, scratch: Path, tool_id: str | None
    ) -> Image:
        with self._holds.session() as hold:
            layout = scratch / "layout"
            self._pretend_known_blobs(layout, hold)
            await self._copier.copy(source, layout, scratch, reference, report, tool_id)
            image = await in_thread(lambda _: read_layout(layout))
            if (same := self._same(reference, image)) is not None:
                return same
            if self._uncover(layout, image):
                await self._copier.copy(source, layout, scratch, reference, report, tool_id)
                image = await in_thread(lambda _: read_layout(layout))
            return await self._take(layout, image, reference, report)

    def _pretend_known_blobs(self, layout: Path, hold: Hold) -> None:
        # skopeo does not fetch a blob whose file is there already. Empty files of the right size stand for blobs
        # whose layers are in the catalogue, or were and are part of a layer that images have; their content is never
        # read.
        blobs = layout / "blobs" / "sha256"
        blobs.mkdir(parents=True, exist_ok=True)
        known = self._catalogue.blobs()
        sizes = {**self._catalogue.image_blobs(), **{blob: size for blob, (size, _) in known.items()}}
        for file in blobs.iterdir():
            if _is_stand_in(file) and f"sha256:{file.name}" not in sizes:
                file.unlink()  # stands for a layer that has been removed since
        for _, digest in known.values():
            hold(digest)
        for blob, size in sizes.items():
            fd = os.open(blobs / blob.removeprefix("sha256:"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.ftruncate(fd, size)
            finally:
                os.close(fd)

    def _same(self, reference: str, image: LayoutImage) -> Image | None:
        """The image, if it was imported before, however its layers were put together since."""
        same = self._catalogue.same_image(reference, image.digest)
        if same is not None:
            self._on_image(reference)
        return same

    def _uncover(self, layout: Path, image: LayoutImage) -> bool:
        """Take away what stands for blobs that the image needs and whose layers are gone; whether there was any."""
        known = self._catalogue.blobs()
        gone = [blob_path(layout, each.blob) for each in image.layers if each.blob not in known]
        covered = {path for path in gone if path.exists() and _is_stand_in(path)}
        for path in covered:
            path.unlink()
        return bool(covered)

    async def _take(self, layout: Path, image: LayoutImage, reference: str, report: Reporter) -> Image:
        """Make every layer that is missing, then record the image."""
        if (same := self._same(reference, image)) is not None:
            return same
        tally = Tally(reference, image, report)
        with self._holds.session() as hold:
            # How many are made at once is bounded for all imports together, in ``_layer``.
            digests = await together(
                [partial(self._layer, layout, each, tally, hold) for each in image.layers],
                at_once=max(1, len(image.layers)),
            )
            blobs = {each.blob: each.size for each in image.layers}
            made = self._catalogue.put_image(reference, image.digest, image.config, digests, blobs)
            self._on_image(reference)
            return made

    async def _layer(self, layout: Path, layer: LayoutLayer, tally: Tally, hold: Hold) -> str:
        lock = self._layer_locks.setdefault(layer.diff_id, asyncio.Lock())
        async with lock, self._slots:
            digest = self._catalogue.layer_of(layer.diff_id)
            if digest is None:
                digest = await self._make(layout, layer, tally, hold)
            else:
                hold(digest)
        tally.layer_done(layer)
        return digest

    async def _make(self, layout: Path, layer: LayoutLayer, tally: Tally, hold: Hold) -> str:
        source = FromArchive(
            file=str(blob_path(layout, layer.blob)),
            options=TarOptions(
                max_bytes=self._config.max_image_bytes, max_entries=self._config.max_entries, end_mark=False
            ),
            blob=layer.blob,
            diff_id=layer.diff_id,
        )
        built, manifest = await self._workshop.make_layer(
            source, hold, on_read=lambda done: tally.read(layer.blob, done)
        )
        digest = self._catalogue.put_layer(built, manifest.size, diff_id=layer.diff_id)
        hold(digest)
        self._catalogue.put_blob(layer.blob, layer.size, layer.diff_id)
        return digest


def _is_stand_in(file: Path) -> bool:
    found = file.stat()
    return found.st_size > 0 and not found.st_blocks
