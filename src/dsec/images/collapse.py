"""Layers of an image made one, while nobody waits: sandboxes made meanwhile mount the parts, later ones the whole.

The whole shows what the parts show (``dsec.layering.merge``). The catalogue keeps which run of digests became which
layer, and of each image the digests that it came as. What dies on the way leaves the image as it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import structlog

from dsec.errors import DSecError, ImageNotFound, NotFound
from dsec.images.catalogue import Image
from dsec.images.collapse_plan import Part, runs
from dsec.images.holds import Hold
from dsec.images.workshop import Workshop
from dsec.layering.making import FromLayers

__all__ = ["Collapser"]

_log = structlog.get_logger("dsec.images")
_MIB = 1 << 20


class Collapser:
    """Collapses the images of one node, one at a time."""

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop
        self._config = workshop.config
        self._store = workshop.store
        self._catalogue = workshop.catalogue
        self._holds = workshop.holds
        self._one = asyncio.Lock()
        self._later: set[asyncio.Task[None]] = set()

    def soon(self, reference: str) -> None:
        """Collapse an image in the background, if there is anything to do; failing is logged, and the image stays."""
        image = self._catalogue.image(reference)
        if all(len(run) == 1 for run in self._runs(image)):
            return
        task = asyncio.create_task(self._logged(reference), name=f"collapse {reference}")
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def _logged(self, reference: str) -> None:
        try:
            await self.collapse(reference)
        except ImageNotFound:
            return  # removed meanwhile
        except (DSecError, OSError) as error:
            _log.warning("an image could not be collapsed", image=reference, error=str(error))

    async def settled(self) -> None:
        """Wait until nothing goes on in the background."""
        while self._later:
            await asyncio.wait(set(self._later))

    async def aclose(self) -> None:
        """Cancel what goes on in the background, and wait until its traces are gone."""
        tasks = list(self._later)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def collapse(self, reference: str) -> Image:
        """Make one layer of each run of an image's small layers, and let sandboxes use it from now on.

        The image afterwards; the same one when there is nothing to do, or when the reference means another image by
        then. Raises ImageNotFound, and what making a layer raises.
        """
        async with self._one:
            image = self._catalogue.image(reference)
            with self._holds.session() as hold:
                for digest in image.layers:
                    hold(digest)
                layers = [await self._one_of(run, hold) for run in self._runs(image)]
                self._catalogue.replace_layers(reference, image.layers, [each for run in layers for each in run])
            return self._catalogue.image(reference)

    def _runs(self, image: Image) -> list[tuple[str, ...]]:
        # An overlay takes a layer once; of two places the upper one decides what is seen.
        layers = list(dict.fromkeys(reversed(image.layers)))[::-1]
        parts = [
            Part(each, self._catalogue.layer_size(each) or 0, frozenset(self._catalogue.images_with(each)))
            for each in layers
        ]
        return runs(parts, most_bytes=self._config.collapse_mib * _MIB, most_layers=self._config.collapse_layers)

    async def _one_of(self, run: Sequence[str], hold: Hold) -> Sequence[str]:
        """The layer that stands for a run; the run itself where not all of its data is here."""
        if len(run) == 1:
            return run
        known = self._catalogue.collapsed(run)
        if known is not None and self._store.has(known):
            hold(known)
            return [known]
        paths = self._whole(run)
        if paths is None:
            return run
        source = FromLayers(layers=[str(each) for each in paths])
        digest, manifest = await self._workshop.make_layer(source, hold)
        self._catalogue.put_collapsed(run, digest, manifest.size)
        return [digest]

    def _whole(self, run: Sequence[str]) -> list[Path] | None:
        try:
            paths = [self._store.path(each) for each in run]
        except NotFound:
            return None
        return None if any((each / "filled").exists() for each in paths) else paths
