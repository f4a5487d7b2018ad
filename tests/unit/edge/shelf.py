"""A node with one store, for the edge's tests."""

from __future__ import annotations

import contextlib
from pathlib import Path
from threading import Event

from tests.unit.stores.layers import chunk, make_layer

from dsec.edge.app import Edge
from dsec.edge.layer_cache import LayerCache
from dsec.edge.node_stores import NodeStores
from dsec.images import Images
from dsec.images.catalogue import ImageConfig
from dsec.images.references import parse_layer
from dsec.stores.directory import DirectoryStore
from dsec.stores.layout import TagRecord
from dsec.stores.publish import publish
from dsec.stores.stored_images import ImageRecord, put_image
from dsec.stores.tags import put_tag
from dsec.testing.edge_world import Api, World, caller_headers

__all__ = ["Shelf", "put_stored_image", "quiet"]


def quiet(_: int, __: int) -> None:
    """Progress that nobody follows."""


class Shelf:
    """A node, its edge and its API, and the one store it has."""

    edge: Edge
    api: Api

    def __init__(self, world: World, folder: Path, edges: contextlib.AsyncExitStack) -> None:
        self.world = world
        self.store = DirectoryStore(folder / "shelf")
        self._folder = folder
        self._edges = edges

    async def start(self) -> None:
        """An edge, in place of the one before, which has crashed."""
        await self._edges.aclose()
        self.edge, self.api = await self._edges.enter_async_context(self.world.edge())

    @property
    def cache(self) -> LayerCache:
        """Of the edge."""
        return self.edge.layer_cache

    @property
    def images(self) -> Images:
        """Of the edge."""
        return self.edge.core.images

    @property
    def stores(self) -> NodeStores:
        """Of the edge."""
        return self.edge.stores

    def published(self, *tags: str, seed: int = 1) -> str:
        """Digest of a layer that was pushed under these tags."""
        directory, manifest, digest = make_layer(self._folder / f"layer{seed}", chunk(seed))
        publish(self.store, directory, manifest, stop=Event(), progress=quiet)
        for tag in tags:
            put_tag(self.store, parse_layer(tag), TagRecord(digest=digest, at=1.0, by="n"), move=True)
        return digest

    def claims(self) -> set[str]:
        """Digests that are claimed."""
        return {entry.name.split("/")[1] for entry in self.store.list("claims")}

    async def pull(self, reference: str) -> None:
        """Onto the node."""
        await self.stores.pull(reference, None, quiet, move=False)

    async def fetch_image(self, reference: str = "i:1") -> bytes:
        """The one that ``put_stored_image`` puts; what the edge says of it."""
        asked, alice = {"reference": reference}, caller_headers()
        async with self.api.session.post("http://edge/v1/images/fetch", json=asked, headers=alice) as answer:
            return await answer.read()


def put_stored_image(shelf: Shelf, *layers: str) -> None:
    """The image ``i:1`` of these layers, in the store."""
    record = ImageRecord(
        reference="docker.io/library/i:1", digest="sha256:" + "c" * 64, config=ImageConfig(), layers=layers,
        at=1.0, by="n",
    )  # fmt: skip
    put_image(shelf.store, record, move=False)
