"""Whole images through a store: published layer by layer, fetched likewise, and their routes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from dsec.api.images import ImageFetchRequest, ImageProgress, ImagePushed, ImagePushRequest, StoredImage
from dsec.edge.core import Core
from dsec.edge.layer_cache import LayerCache
from dsec.edge.node_stores import NodeStores, OnStoreBytes
from dsec.edge.progressing import Tell, progressing
from dsec.edge.router import Route
from dsec.edge.web import answered, body_as, json_answer
from dsec.edge.wire_layers import image_info
from dsec.errors import ImageCorrupt, ImageNotFound
from dsec.images import Image, parse_image_name
from dsec.images.threads import in_thread
from dsec.images.together import together
from dsec.stores.contract import Store
from dsec.stores.stored_images import ImageRecord, check_image, list_images, put_image, read_image

__all__ = ["stored_image_routes"]

_AT_ONCE = 4
"""Layers of an image that are fetched beside each other; each is fetched over several connections."""


class StoredImages:
    """Push and fetch of images."""

    def __init__(self, core: Core, stores: NodeStores, cache: LayerCache) -> None:
        self._core = core
        self._images = core.images
        self._stores = stores
        self._cache = cache

    async def push(
        self, reference: str, store_name: str | None, progress: OnStoreBytes, *, move: bool
    ) -> ImagePushed:
        """Publish an image: each layer that the store has not, then what they make together.

        Raises ImageNotFound, Conflict, and what publishing a layer raises. Cut off, it goes on where it was.
        """
        image = self._images.get(reference)
        name, store = self._stores.open(store_name)
        record = ImageRecord(
            reference=image.reference, digest=image.digest, config=image.config, layers=image.layers,
            at=self._core.clock(), by=self._core.config.node,
        )  # fmt: skip
        await in_thread(lambda _: _may(store, record, move=move))
        size = stored = sent = done = 0
        with self._images.holding(image.layers):
            await self._cache.ensure(image.layers)
            for digest in dict.fromkeys(image.layers):
                one = await self._stores.published(store, digest, [], _part(progress, done, image.bytes), mend=False)
                self._images.copies.note(digest, name)
                size, stored, sent = size + one.size, stored + one.stored, sent + one.sent
                done += one.size
            await in_thread(lambda _: put_image(store, record, move=move))
        return ImagePushed(
            reference=image.reference, digest=image.digest, store=name,
            size_bytes=size, stored_bytes=stored, sent_bytes=sent, registry_bytes=self._as_blobs(image),
        )  # fmt: skip

    def _as_blobs(self, image: Image) -> int | None:
        sizes = [self._images.layers.blob_size(each) for each in dict.fromkeys(image.parts or image.layers)]
        known = [each for each in sizes if each is not None]
        return sum(known) if len(known) == len(sizes) else None

    async def fetch(self, reference: str, store_name: str | None, progress: OnStoreBytes) -> Image:
        """Bring an image's layers onto this node, those that it has not, and let the reference mean it.

        Raises ImageNotFound, ImageCorrupt, StoreDenied, StoreUnreachable, CapacityError.
        """
        name, store = self._stores.open(store_name)
        wanted = str(parse_image_name(reference))
        record = await in_thread(lambda _: read_image(store, wanted))
        done: dict[str, int] = {}

        async def bring(digest: str) -> None:
            def told(own: int, _: int) -> None:
                done[digest] = own
                progress(sum(done.values()), 0)

            await self._stores.bring(digest, name, told)
            told(self._images.layers.size(digest), 0)

        # Held, they need no names. What a fetch that breaks off has brought is here for the next, until a clean-up.
        with self._images.holding(record.layers):
            await together([partial(bring, each) for each in dict.fromkeys(record.layers)], at_once=_AT_ONCE)
            return self._images.layers.compose_image(wanted, record.digest, record.config, record.layers)

    async def list(self, store_name: str) -> list[StoredImage]:
        """The images of a store, by name."""
        _, store = self._stores.open(store_name)
        found = await in_thread(lambda _: list_images(store))
        return [
            StoredImage(
                reference=each.reference, digest=each.digest, layers=list(each.layers), at=each.at, by=each.by
            )
            for each in sorted(found, key=lambda each: each.reference)
        ]


def _may(store: Store, record: ImageRecord, *, move: bool) -> None:
    """Whoever may not have the name learns it before gigabytes are sent."""
    try:
        there = read_image(store, record.reference)
    except ImageNotFound:
        return
    except ImageCorrupt:
        if not move:
            raise
        return
    check_image(store, there, record, move=move)


def _part(progress: OnStoreBytes, before: int, total: int) -> OnStoreBytes:
    """Progress of one layer as progress of them all; ``total`` 0 while it is not known."""
    return lambda done, size: progress(before + done, total)


def stored_image_routes(core: Core, stores: NodeStores, cache: LayerCache) -> list[Route]:
    """Their routes; the fixed paths come before those with references."""
    own = StoredImages(core, stores, cache)

    async def push(request: Request) -> Response:
        asked = await body_as(request, ImagePushRequest)

        async def work(tell: Tell) -> dict[str, Any]:
            progress = _moments(tell, "push", asked.reference)
            return {"pushed": await own.push(asked.reference, asked.store, progress, move=asked.move)}

        return progressing(work)

    async def fetch(request: Request) -> Response:
        asked = await body_as(request, ImageFetchRequest)

        async def work(tell: Tell) -> dict[str, Any]:
            progress = _moments(tell, "pull", asked.reference)
            return {"image": image_info(await own.fetch(asked.reference, asked.store, progress))}

        return progressing(work)

    async def stored(request: Request) -> Response:
        return json_answer({"images": await own.list(request.path_params["name"])})

    return [
        Route("POST", "/v1/images/push", answered(push)),
        Route("POST", "/v1/images/fetch", answered(fetch)),
        Route("GET", "/v1/stores/{name}/images", answered(stored)),
    ]


def _moments(tell: Tell, phase: str, reference: str) -> Callable[[int, int], None]:
    def progress(done: int, total: int) -> None:
        tell(ImageProgress(phase=phase, done=done, total=total, detail=reference))

    return progress
