"""Tags in a store: two nodes, one name."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from dsec.errors import Conflict, ImageCorrupt, ImageNotFound, NotFound
from dsec.images.catalogue import ImageConfig
from dsec.images.references import parse_layer
from dsec.stores.layout import TagRecord, tag_name
from dsec.stores.memory import MemoryStore
from dsec.stores.stored_images import ImageRecord, list_images, put_image, read_image
from dsec.stores.tags import drop_tag, list_tags, put_tag, read_tag, versions_of

TAG = parse_layer("toolkit/compilers:12")


def _record(letter: str, by: str = "one", at: float = 1.0) -> TagRecord:
    return TagRecord(digest=letter * 64, at=at, by=by)


def test_a_tag_of_another_layer_is_moved_only_when_told() -> None:
    """Conflict says what it means and whose that is; with ``move`` it moves."""
    store = MemoryStore()
    assert put_tag(store, TAG, _record("a"), move=False)
    with pytest.raises(Conflict) as caught:
        put_tag(store, TAG, _record("b", "two"), move=False)
    assert caught.value.details == {"digest": "a" * 64, "at": 1.0, "by": "one"}
    assert "--move" in (caught.value.remedy or "")
    assert read_tag(store, TAG) == _record("a")
    assert put_tag(store, TAG, _record("b", "two"), move=True)
    assert read_tag(store, TAG) == _record("b", "two")


def test_the_same_again_changes_nothing() -> None:
    """Who published it first stays known."""
    store = MemoryStore()
    put_tag(store, TAG, _record("a"), move=False)
    assert not put_tag(store, TAG, _record("a", "two", 9.0), move=False)
    assert read_tag(store, TAG).by == "one"


def test_of_many_nodes_with_different_layers_one_wins() -> None:
    """Without ``move`` exactly one of sixteen publishes the tag; the others are told."""
    store = MemoryStore()

    def try_it(number: int) -> bool:
        try:
            return put_tag(store, TAG, _record(f"{number:x}", f"node{number}"), move=False)
        except Conflict:
            return False

    with ThreadPoolExecutor(16) as pool:
        won = list(pool.map(try_it, range(16)))
    assert won.count(True) == 1
    assert read_tag(store, TAG).by == f"node{won.index(True)}"


def test_versions_come_newest_first() -> None:
    """Of this name only."""
    store = MemoryStore()
    for version, letter, at in (("1", "a", 1.0), ("3", "c", 3.0), ("2", "b", 2.0)):
        put_tag(store, parse_layer(f"toolkit/compilers:{version}"), _record(letter, at=at), move=False)
    put_tag(store, parse_layer("toolkit/compilers-old:1"), _record("d"), move=False)
    assert versions_of(store, TAG) == ["c" * 64, "b" * 64, "a" * 64]


def test_dropped_tags_and_damaged_ones() -> None:
    """A dropped tag is NotFound with a remedy; a damaged one is ImageCorrupt, never passed over."""
    store = MemoryStore()
    put_tag(store, TAG, _record("a"), move=False)
    store.put("tags/what/is/this/here", b"?")
    assert list(list_tags(store)) == [TAG]
    drop_tag(store, TAG)
    with pytest.raises(NotFound) as caught:
        drop_tag(store, TAG)
    assert "dsec layer push" in (caught.value.remedy or "")
    for raw in (b"", b"{}", b'{"digest":"../../etc","at":1,"by":"x","format":"dsec.tag.v1"}', b"\xff"):
        store.put(tag_name(TAG), raw)
        with pytest.raises(ImageCorrupt):
            read_tag(store, TAG)
        with pytest.raises(ImageCorrupt):
            list_tags(store)


def test_a_damaged_record_can_be_moved_and_dropped() -> None:
    """What its remedy says works: with ``move`` it is replaced, and it can be removed; other versions are found."""
    store = MemoryStore()
    put_tag(store, parse_layer("toolkit/compilers:11"), _record("c"), move=False)
    store.put(tag_name(TAG), b"damaged")
    assert versions_of(store, TAG) == ["c" * 64]
    with pytest.raises(ImageCorrupt) as caught:
        put_tag(store, TAG, _record("a"), move=False)
    assert "toolkit/compilers:12 again with --move" in (caught.value.remedy or "")
    assert put_tag(store, TAG, _record("a"), move=True)
    assert read_tag(store, TAG) == _record("a")
    store.put(tag_name(TAG), b"damaged")
    told: list[ImageCorrupt] = []
    assert len(list_tags(store, told.append)) == len(told) == 1
    drop_tag(store, TAG)
    assert store.stat(tag_name(TAG)) is None
    with pytest.raises(NotFound):
        drop_tag(store, TAG)


def test_images() -> None:
    """An image's record is found by its reference only, moves only when told to, and is never passed over damaged."""
    store = MemoryStore()
    record = ImageRecord(
        reference="docker.io/library/python:3.12", digest="sha256:1", config=ImageConfig(env={"A": "b"}),
        layers=("a" * 64, "b" * 64), at=1.0, by="one",
    )  # fmt: skip
    assert put_image(store, record, move=False)
    assert not put_image(store, msgspec.structs.replace(record, by="two", at=2.0), move=False)
    other = msgspec.structs.replace(record, layers=("c" * 64,), by="two")
    with pytest.raises(Conflict) as caught:
        put_image(store, other, move=False)
    assert caught.value.details["by"] == "one"
    assert read_image(store, record.reference) == record
    assert put_image(store, other, move=True)
    assert list_images(store) == [other]
    with pytest.raises(ImageNotFound):
        read_image(store, "docker.io/library/python:3.13")
    name = next(iter(store.objects))
    for raw in (b"{}", msgspec.json.encode(msgspec.structs.replace(record, layers=("../x",)))):
        store.put(name, raw)
        with pytest.raises(ImageCorrupt):
            list_images(store)
        with pytest.raises(ImageCorrupt):
            put_image(store, record, move=False)
    assert put_image(store, record, move=True)
    assert list_images(store) == [record]
