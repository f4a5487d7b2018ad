"""A layer that comes without its data."""

from __future__ import annotations

import errno
from pathlib import Path
from threading import Event

import pytest
from tests.unit.stores.layers import CHUNK_SIZE, bytes_of, chunk, make_layer

from dsec.errors import CapacityError, Conflict, NotFound
from dsec.images.catalogue import Catalogue, LayerEnvironment
from dsec.images.holds import Holds
from dsec.images.node_layers import NodeLayers
from dsec.images.store import LayerManifest, LayerStore
from dsec.stores.fetch import fetch, fetch_index, fetch_sparse
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


@pytest.mark.anyio
@pytest.mark.parametrize("moved", [(), ("metadata",), ("metadata", "data")], ids=len)
async def test_an_interrupted_adoption_is_made_good(
    published: tuple[MemoryStore, Layer], tmp_path: Path, moved: tuple[str, ...]
) -> None:
    """A process that died while it put a fetched layer in place hinders no later pull, and no data comes twice."""
    store, (source, _, digest) = published
    layers = _node(tmp_path)
    half = tmp_path / "layers" / f".pull-{digest}" / "layer"
    half.mkdir(parents=True)
    (half / "layer.json").write_bytes(b"torn")
    for name in ("metadata", "data"):
        place = half if name in moved else half.parent
        (place / name).write_bytes((source / name).read_bytes())
    reads: list[str] = []
    store.before = lambda act, name: reads.append(name) if act == "read" else None
    with layers.receiving(digest) as target:
        manifest = fetch(store, digest, target, stop=Event(), progress=lambda _, __: None)
        await layers.adopt(target, manifest, "toolkit/x:1", LayerEnvironment())
    assert [name for name in reads if name.startswith("blobs/")] == []
    assert bytes_of(layers.path(digest)) == bytes_of(source)
    assert [each.name for each in (tmp_path / "layers").iterdir()] == [digest]


@pytest.mark.anyio
@pytest.mark.parametrize("sparse", [False, True], ids=["whole", "sparse"])
async def test_a_disk_that_is_full_while_a_layer_is_put_in_place(
    published: tuple[MemoryStore, Layer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sparse: bool
) -> None:
    """CapacityError, and the next pull succeeds."""
    store, (_, _, digest) = published
    layers = _node(tmp_path)

    async def pull() -> None:
        with layers.receiving(digest) as target:
            if sparse:
                manifest = fetch_sparse(store, digest, target)
                await layers.adopt_sparse(target, manifest, "toolkit/x:1", LayerEnvironment())
            else:
                manifest = fetch(store, digest, target, stop=Event(), progress=lambda _, __: None)
                await layers.adopt(target, manifest, "toolkit/x:1", LayerEnvironment())

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(CapacityError):
            await pull()
    await pull()
    assert layers.has(digest)


def _node(folder: Path) -> NodeLayers:
    own = folder / "layers"
    return NodeLayers(own, LayerStore(own), Catalogue(folder / "catalogue.db"), Holds())
