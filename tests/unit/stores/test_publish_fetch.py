"""A layer goes into a store and comes out of it, whatever happens on the way."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.stores.layers import CHUNK_SIZE, bytes_of, chunk, make_layer

from dsec.errors import ImageCorrupt, NotFound, StoreDenied, StoreFull, StoreUnreachable
from dsec.images.store import LayerManifest
from dsec.stores.check import check_stored
from dsec.stores.fetch import fetch, fetch_index
from dsec.stores.index import ChunkIndex, StoredChunk, encode_index
from dsec.stores.layout import index_name, manifest_name, metadata_name
from dsec.stores.memory import MemoryStore
from dsec.stores.packs import Packer
from dsec.stores.publish import Published, publish


def _quiet(_: int, __: int) -> None:
    return None


def _publish(store: MemoryStore, layer: tuple[Path, LayerManifest, str], *, mend: bool = False) -> Published:
    return publish(store, layer[0], layer[1], stop=Event(), progress=_quiet, mend=mend)


def _fetch(store: MemoryStore, digest: str, target: Path) -> tuple[bytes, bytes]:
    target.mkdir(exist_ok=True)
    fetch(store, digest, target, stop=Event(), progress=_quiet)
    return bytes_of(target)


def _index(store: MemoryStore, layer: tuple[Path, LayerManifest, str]) -> ChunkIndex:
    return fetch_index(store, layer[2], layer[1])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        bytes(CHUNK_SIZE),
        bytes(3 * CHUNK_SIZE + 5),
        chunk(1),
        chunk(1) + b"short",
        chunk(1) + bytes(CHUNK_SIZE) + chunk(1) + b"text " * 100_000 + chunk(2) + bytes(7),
    ],
    ids=["empty", "one byte", "zeros", "zeros and a bit", "one chunk", "a short last", "everything"],
)
def test_what_was_published_is_fetched(tmp_path: Path, data: bytes) -> None:
    """The same bytes come back, and the store finds nothing wrong with them."""
    layer = make_layer(tmp_path / "layer", data)
    store = MemoryStore()
    report = _publish(store, layer)
    assert (report.digest, report.size) == (layer[2], layer[1].size)
    assert _fetch(store, layer[2], tmp_path / "out") == bytes_of(layer[0])
    assert check_stored(store, layer[2], tmp_path, deep=True, stop=Event(), progress=_quiet) == []


def test_zeros_and_repetition_cost_nothing(tmp_path: Path) -> None:
    """Holes are not stored, equal chunks once, and text is compressed; the report says how much that is."""
    text = b"the same words again and again, " * 8192
    layer = make_layer(tmp_path / "layer", bytes(8 * CHUNK_SIZE) + chunk(1) * 4 + text * 4)
    store = MemoryStore()
    report = _publish(store, layer)
    blobs = sum(len(content) for name, content in store.objects.items() if name.startswith("blobs/"))
    assert blobs < CHUNK_SIZE + 2_000
    assert report.stored == blobs + len(store.objects[metadata_name(layer[2])])


def test_the_next_version_stores_what_is_new(tmp_path: Path) -> None:
    """Of a layer that shares chunks with one in the store only the others are sent."""
    store = MemoryStore()
    one = make_layer(tmp_path / "one", b"".join(chunk(i) for i in range(20)))
    two = make_layer(tmp_path / "two", b"".join(chunk(i) for i in range(1, 21)))
    _publish(store, one)
    assert _publish(store, two).sent < 2 * CHUNK_SIZE
    assert set(_index(store, one).blobs) & set(_index(store, two).blobs)
    assert _fetch(store, two[2], tmp_path / "out") == bytes_of(two[0])


def test_a_neighbour_whose_blob_is_lost_is_not_relied_on(tmp_path: Path) -> None:
    """Chunks that another layer names in a blob that is missing, or cut short, are stored anew."""
    for damage in ("missing", "cut short"):
        store = MemoryStore()
        one = make_layer(tmp_path / f"one {damage}", chunk(1) + chunk(2))
        two = make_layer(tmp_path / f"two {damage}", chunk(2) + chunk(1))
        _publish(store, one)
        blob = next(each for each in store.objects if each.startswith("blobs/"))
        if damage == "missing":
            store.delete(blob)
        else:
            store.put(blob, store.objects[blob][:-1])
        _publish(store, two)
        assert _fetch(store, two[2], tmp_path / f"out {damage}") == bytes_of(two[0])


def test_publishing_again_sends_nothing(tmp_path: Path) -> None:
    """A layer that is there is not read, let alone sent."""
    store = MemoryStore()
    layer = make_layer(tmp_path / "layer", chunk(1))
    assert not _publish(store, layer).was_there
    (layer[0] / "data").unlink()
    again = _publish(store, layer)
    assert (again.was_there, again.sent) == (True, 0)


def test_manifest_is_written_last(tmp_path: Path) -> None:
    """At whatever write publishing dies, no reader sees the layer before all of it is there."""
    layer = make_layer(tmp_path / "layer", b"".join(chunk(i) for i in range(3)))
    complete = MemoryStore()
    writes: list[str] = []
    complete.before = lambda act, name: writes.append(name) if act in ("put", "swap") else None
    _publish(complete, layer)
    assert writes[-2] == writes[-1] == manifest_name(layer[2])
    for death in range(len(writes)):
        store = MemoryStore()
        store.before = _dies(death)
        with pytest.raises(StoreUnreachable):
            _publish(store, layer)
        store.before = _nothing
        with pytest.raises(NotFound):
            _fetch(store, layer[2], tmp_path / f"early{death}")
        _publish(store, layer)
        assert _fetch(store, layer[2], tmp_path / f"out{death}") == bytes_of(layer[0])


def _nothing(_: str, __: str) -> None:
    return None


def _dies(after: int, error: Callable[[str], Exception] = StoreUnreachable) -> Callable[[str, str], None]:
    left = after

    def before(act: str, name: str) -> None:
        nonlocal left
        if act in ("put", "swap"):
            if left == 0:
                raise error(f"no {act} of {name}")
            left -= 1

    return before


@pytest.mark.parametrize("error", [StoreFull, StoreDenied, StoreUnreachable])
def test_publishing_goes_on_where_it_was_cut_off(tmp_path: Path, error: type[Exception]) -> None:
    """The store fills up, or the permission is lost, in the middle: a typed error, then only the rest is sent."""
    layer = make_layer(tmp_path / "layer", b"".join(chunk(i) for i in range(160)))
    store = MemoryStore()
    store.before = _dies(1, error)
    with pytest.raises(error):
        _publish(store, layer)
    store.before = _nothing
    there = sum(map(len, store.objects.values()))
    assert there > 0
    assert _publish(store, layer).sent <= layer[1].size - there + 20_000
    assert _fetch(store, layer[2], tmp_path / "out") == bytes_of(layer[0])


def test_many_publishers_of_one_layer(tmp_path: Path) -> None:
    """Eight at once publish it, and there is one whole layer, each chunk of it stored once."""
    layer = make_layer(tmp_path / "layer", b"".join(chunk(i) for i in range(40)))
    store = MemoryStore()
    with ThreadPoolExecutor(8) as pool:
        reports = list(pool.map(lambda _: _publish(store, layer), range(8)))
    assert {report.digest for report in reports} == {layer[2]}
    assert sum(name.startswith("blobs/") for name in store.objects) == 1
    assert _fetch(store, layer[2], tmp_path / "out") == bytes_of(layer[0])


def test_a_damaged_layer_of_this_node_is_not_published(tmp_path: Path) -> None:
    """Its bytes are held against its digest on the way: ImageCorrupt, and no manifest in the store."""
    for file in ("data", "metadata"):
        layer = make_layer(tmp_path / file, chunk(1))
        (layer[0] / file).write_bytes(b"y" * (layer[0] / file).stat().st_size)
        store = MemoryStore()
        with pytest.raises(ImageCorrupt, match="damaged on this node"):
            _publish(store, layer)
        assert manifest_name(layer[2]) not in store.objects


@pytest.mark.parametrize("part", ["blob", "index", "metadata", "manifest"])
@pytest.mark.parametrize("damage", ["missing", "cut short", "changed"])
def test_a_damaged_store_never_gives_a_layer(tmp_path: Path, part: str, damage: str) -> None:
    """Whichever object is missing, cut short or changed: a typed error, and publishing to mend does."""
    layer = make_layer(tmp_path / "layer", chunk(1) + b"text " * 100_000)
    store = MemoryStore()
    _publish(store, layer)
    name = {
        "blob": next(each for each in store.objects if each.startswith("blobs/")),
        "index": index_name(layer[2]),
        "metadata": metadata_name(layer[2]),
        "manifest": manifest_name(layer[2]),
    }[part]
    content = store.objects[name]
    if damage == "missing":
        store.delete(name)
    else:
        half = len(content) // 2
        store.put(name, content[:half] if damage == "cut short" else content[:half] + b"!" + content[half + 1 :])
    expected = NotFound if (part, damage) == ("manifest", "missing") else ImageCorrupt
    with pytest.raises(expected) as caught:
        _fetch(store, layer[2], tmp_path / "out")
    assert caught.value.remedy
    if expected is ImageCorrupt:
        assert check_stored(store, layer[2], tmp_path, deep=True, stop=Event(), progress=_quiet) != []
    _publish(store, layer, mend=True)
    assert check_stored(store, layer[2], tmp_path, deep=True, stop=Event(), progress=_quiet) == []
    assert _fetch(store, layer[2], tmp_path / "out") == bytes_of(layer[0])


def _swapped(chunks: list[StoredChunk]) -> list[StoredChunk]:
    one, two = chunks[0], chunks[1]
    return [one._replace(offset=two.offset), two._replace(offset=one.offset), *chunks[2:]]


def _moved(chunks: list[StoredChunk]) -> list[StoredChunk]:
    return [*chunks[:2], chunks[2]._replace(offset=chunks[2].offset - 1), *chunks[3:]]


def _cut(chunks: list[StoredChunk]) -> list[StoredChunk]:
    return [chunks[0]._replace(length=chunks[0].length - 1), *chunks[1:]]


@pytest.mark.parametrize("damage", [_swapped, _moved, _cut])
def test_a_damaged_index_is_found_and_not_believed(
    tmp_path: Path, damage: Callable[[list[StoredChunk]], list[StoredChunk]]
) -> None:
    """Places that are not where the chunks are: a deep check tells, and the next version does not rely on them."""
    one = make_layer(tmp_path / "one", b"".join(chunk(i) for i in range(4)))
    two = make_layer(tmp_path / "two", b"".join(chunk(i) for i in range(5)))
    store = MemoryStore()
    _publish(store, one)
    index = _index(store, one)
    store.put(
        index_name(one[2]),
        encode_index(ChunkIndex(index.chunk_size, index.blobs, tuple(damage(list(index.chunks))))),
    )
    faults = check_stored(store, one[2], tmp_path, deep=True, stop=Event(), progress=_quiet)
    assert len(faults) == 1
    assert "where the index says" in faults[0]
    _publish(store, two)
    assert check_stored(store, two[2], tmp_path, deep=True, stop=Event(), progress=_quiet) == []
    assert _fetch(store, two[2], tmp_path / "out") == bytes_of(two[0])
    _publish(store, one, mend=True)
    assert check_stored(store, one[2], tmp_path, deep=True, stop=Event(), progress=_quiet) == []


def test_a_fetch_goes_on_where_it_was_cut_off(tmp_path: Path) -> None:
    """What is on this node already is not read again, and damaged pieces of it are."""
    layer = make_layer(tmp_path / "layer", b"".join(chunk(i) for i in range(200)))
    store = MemoryStore()
    _publish(store, layer)
    out = tmp_path / "out"
    reads = 0

    def cut(act: str, name: str) -> None:
        nonlocal reads
        if act == "read" and name.startswith("blobs/"):
            reads += 1
            if reads > 3:
                raise StoreUnreachable("cut off")

    store.before = cut
    with pytest.raises(StoreUnreachable):
        _fetch(store, layer[2], out)
    first, reads = reads, -1_000
    with (out / "data").open("r+b") as file:
        file.write(b"damaged")
    assert _fetch(store, layer[2], out) == bytes_of(layer[0])
    assert first > 3
    whole, reads = reads + 1_000, -1_000
    assert _fetch(store, layer[2], out) == bytes_of(layer[0])
    assert (whole > 0, reads) == (True, -1_000)


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    """Metadata that would become gigabytes, and a chunk that claims to be one, are refused by their sizes."""
    import zstandard

    layer = make_layer(tmp_path / "layer", b"text " * 100_000)
    store = MemoryStore()
    _publish(store, layer)
    packer = zstandard.ZstdCompressor(level=19).compressobj()
    bomb = b"".join(packer.compress(bytes(16 << 20)) for _ in range(32)) + packer.flush()
    store.put(metadata_name(layer[2]), bomb)
    with pytest.raises(ImageCorrupt, match="larger than its layer says"):
        _fetch(store, layer[2], tmp_path / "out")
    assert (tmp_path / "out" / "metadata").stat().st_size <= layer[1].metadata.size


def test_packs_are_never_named_as_refused() -> None:
    """A pack whose name is about to be removed gets another, and its chunks are found in it all the same."""
    packs: dict[str, bytes] = {}
    stored = [chunk(1), chunk(2)]
    digests = [hashlib.sha256(each).digest() for each in stored]
    refused: set[str] = set()
    for _ in range(3):
        packer = Packer(packs.__setitem__, {}, frozenset(refused))
        for digest, each in zip(digests, stored, strict=True):
            packer.add(digest, each)
        index = packer.index(CHUNK_SIZE)
        name = index.blobs[0]
        assert name not in refused
        assert hashlib.sha256(packs[name]).hexdigest() == name
        for place, each in zip(index.chunks, stored, strict=True):
            assert packs[name][place.offset : place.offset + place.length] == each
        refused.add(name)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=30), st.integers(1, 200))
def test_packs_hold_every_chunk_once(chunks: list[tuple[int, int]], pack_size: int) -> None:
    """Whatever the chunks and the size of packs: each is where the index says, packs stay within their size."""
    packs: dict[str, bytes] = {}
    stored = [bytes([kind]) * (10 * length) for kind, length in chunks]
    packer = Packer(packs.__setitem__, {}, pack_size=pack_size)
    for each in stored:
        packer.add(hashlib.sha256(each).digest(), each)
    index = packer.index(CHUNK_SIZE)
    for place, each in zip(index.chunks, stored, strict=True):
        blob = packs[index.blobs[place.blob]] if place.length else b""
        assert blob[place.offset : place.offset + place.length] == each
    assert sum(map(len, packs.values())) == sum(len(each) for each in set(stored))
    assert all(len(pack) <= max(pack_size, 30) for pack in packs.values())
