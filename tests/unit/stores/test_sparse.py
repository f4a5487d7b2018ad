"""A layer that comes without its data."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest
from tests.unit.stores.layers import CHUNK_SIZE, chunk, make_layer

from dsec.errors import Conflict, NotFound
from dsec.images.catalogue import Catalogue, LayerEnvironment
from dsec.images.holds import Holds
from dsec.images.node_layers import NodeLayers
from dsec.images.store import LayerManifest, LayerStore
from dsec.stores.fetch import fetch_index, fetch_sparse
from dsec.stores.index import decode_index
from dsec.stores.memory import MemoryStore
from dsec.stores.publish import publish

Layer = tuple[Path, LayerManifest, str]


@pytest.fixture
def published(tmp_path: Path) -> tuple[MemoryStore, Layer]:
    """A layer in a store."""
    layer = make_layer(tmp_path / "layer", chunk(1) + bytes(CHUNK_SIZE) + chunk(2) + b"end")
    store = MemoryStore()
    publish(store, layer[0], layer[1], stop=Event(), progress=lambda _, __: None)
    return store, layer


def test_metadata_and_index_come_and_data_is_a_hole(published: tuple[MemoryStore, Layer], tmp_path: Path) -> None:
    """The data has its full size and no block; the record is empty; the index is the store's."""
    store, (source, manifest, digest) = published
    target = tmp_path / "out"
    target.mkdir()
    (target / "data").write_bytes(b"left by a pull that was to be whole")
    assert fetch_sparse(store, digest, target) == manifest
    data = (target / "data").stat()
    assert (data.st_size, data.st_blocks) == (manifest.data.size, 0)
    assert (target / "filled").read_bytes() == b""
    assert (target / "metadata").read_bytes() == (source / "metadata").read_bytes()
    assert decode_index((target / "chunks").read_bytes()) == fetch_index(store, digest, manifest)


@pytest.mark.anyio
async def test_a_node_knows_that_it_is_not_whole(published: tuple[MemoryStore, Layer], tmp_path: Path) -> None:
    """It is there under its tag; what would read all of it is a Conflict until the record is gone."""
    store, (_, manifest, digest) = published
    own = LayerStore(tmp_path / "layers")
    layers = NodeLayers(tmp_path / "layers", own, Catalogue(tmp_path / "catalogue.db"), Holds())
    with layers.receiving(digest) as target:
        fetch_sparse(store, digest, target)
        await layers.adopt_sparse(target, manifest, "toolkit/x:1", LayerEnvironment())
    assert layers.has(digest)
    assert layers.find("toolkit/x:1").digest == digest
    assert not layers.is_whole(digest)
    with pytest.raises(Conflict):
        layers.check_whole(digest)
    (tmp_path / "layers" / digest / "filled").unlink()
    layers.check_whole(digest)
    with pytest.raises(NotFound):
        layers.check_whole("0" * 64)
