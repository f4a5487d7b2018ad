"""Cleaning a store: what is needed stays, whoever publishes or dies meanwhile."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest
from tests.unit.stores.layers import bytes_of, chunk, make_layer

from dsec.errors import ImageCorrupt, NotFound, StoreUnreachable
from dsec.images.catalogue import ImageConfig
from dsec.images.references import parse_layer
from dsec.images.store import LayerManifest
from dsec.stores.collect import claim, collect, release
from dsec.stores.fetch import fetch, fetch_claimed
from dsec.stores.layout import TagRecord, index_name, manifest_name, metadata_name, tag_name
from dsec.stores.memory import MemoryStore
from dsec.stores.publish import publish
from dsec.stores.stored_images import ImageRecord, put_image
from dsec.stores.tags import drop_tag, put_tag

Layer = tuple[Path, LayerManifest, str]
TAG = parse_layer("workspace/w:1")


class World:
    """A store whose clock the test moves."""

    def __init__(self, folder: Path) -> None:
        self.now = 1_000.0
        self.store = MemoryStore(clock=lambda: self.now)
        self._folder = folder
        self._made = 0

    def layer(self, *seeds: int) -> Layer:
        self._made += 1
        return make_layer(self._folder / str(self._made), b"".join(chunk(seed) for seed in seeds))

    def push(self, layer: Layer, tag: str | None = None) -> None:
        publish(self.store, layer[0], layer[1], stop=Event(), progress=lambda _, __: None)
        if tag is not None:
            put_tag(self.store, parse_layer(tag), TagRecord(digest=layer[2], at=self.now, by="n"), move=True)

    def assert_whole(self, layer: Layer) -> None:
        self._made += 1
        out = self._folder / f"out{self._made}"
        out.mkdir()
        fetch(self.store, layer[2], out, stop=Event(), progress=lambda _, __: None)
        assert bytes_of(out) == bytes_of(layer[0])

    def blobs(self) -> set[str]:
        return {name for name in self.store.objects if name.startswith("blobs/")}


@pytest.fixture
def world(tmp_path: Path) -> World:
    """An empty store."""
    return World(tmp_path)


def test_what_lost_its_tag_goes_a_day_later(world: World) -> None:
    """The first clean-up dooms it and says so, one within the grace does nothing, one after it removes all of it."""
    gone, stays = world.layer(1, 2), world.layer(3)
    world.push(gone, "workspace/w:1")
    world.push(stays, "workspace/w:2")
    assert collect(world.store).doomed_layers == []
    drop_tag(world.store, TAG)
    first = collect(world.store)
    assert (first.doomed_layers, first.removed_layers) == ([gone[2]], [])
    world.now += 86_399
    assert collect(world.store).removed_layers == []
    world.assert_whole(gone)
    world.now += 2
    assert collect(world.store).removed_layers == [gone[2]]
    with pytest.raises(NotFound):
        world.assert_whole(gone)
    # Its blobs were needed until its index was gone: they follow by the same rule.
    collect(world.store)
    world.now += 86_401
    last = collect(world.store)
    assert len(last.removed_blobs) == 1
    assert last.removed_bytes > 500_000
    world.assert_whole(stays)
    collect(world.store)
    assert [name for name in world.store.objects if name.startswith("doomed/") and name != "doomed/clock"] == []


def test_a_dry_run_changes_nothing(world: World) -> None:
    """It reports, and the store is the same byte for byte."""
    world.push(world.layer(1))
    collect(world.store)
    world.now += 100_000
    before = dict(world.store.objects)
    report = collect(world.store, dry_run=True)
    assert world.store.objects == before
    assert report.removed_layers == [] or report.removed_bytes > 0


def test_a_layer_that_is_tagged_again_stays(world: World) -> None:
    """A tag that comes between the two clean-ups saves it, and its mark goes."""
    layer = world.layer(1)
    world.push(layer)
    collect(world.store)
    world.push(layer, "workspace/w:1")
    world.now += 100_000
    assert collect(world.store).removed_layers == []
    world.assert_whole(layer)


def test_chunks_that_others_use_stay(world: World) -> None:
    """A layer whose chunks lie in a removed layer's blob is whole afterwards."""
    old, new = world.layer(1, 2, 3), world.layer(2, 3, 4)
    world.push(old, "workspace/w:1")
    world.push(new, "workspace/w:2")
    drop_tag(world.store, TAG)
    for _ in range(5):
        collect(world.store)
        world.now += 100_000
    world.assert_whole(new)
    assert len(world.blobs()) == 2


def test_publishers_do_not_rely_on_what_is_doomed(world: World) -> None:
    """A blob that is about to go is not named by a layer published meanwhile, though the content is the same."""
    old = world.layer(1, 2)
    world.push(old, "workspace/w:1")
    drop_tag(world.store, TAG)
    collect(world.store)
    world.now += 86_401
    collect(world.store)  # The layer is gone,
    collect(world.store)  # its blob is doomed,
    world.now += 86_401
    doomed = world.blobs()
    new = world.layer(1, 2, 5)
    world.push(new, "workspace/w:2")
    same = world.layer(1, 2)
    assert same[2] == old[2]
    world.push(same, "workspace/w:3")
    collect(world.store)
    assert not doomed & world.blobs()
    world.assert_whole(new)
    world.assert_whole(same)


def test_a_cleaner_in_the_middle_of_publishing_does_no_harm(world: World) -> None:
    """Wherever in its acts a publisher is, a clean-up then (and one a day later) leaves it a whole layer."""
    acts = 0

    def count(_: str, __: str) -> None:
        nonlocal acts
        acts += 1

    def scenario(world: World, at: int | None) -> None:
        nonlocal acts
        old, new = world.layer(1, 2), world.layer(1, 2, 3)
        world.push(old, "workspace/w:1")
        drop_tag(world.store, TAG)
        collect(world.store)
        world.now += 86_401
        acts = 0

        def before(act: str, name: str) -> None:
            count(act, name)
            if acts == at:
                world.store.before = count
                collect(world.store)

        world.store.before = before
        world.push(new, "workspace/w:2")
        world.store.before = lambda _, __: None
        for _ in range(3):
            collect(world.store)
            world.now += 86_401
        world.assert_whole(new)

    scenario(world, None)
    for at in range(1, acts + 1):
        scenario(World(world._folder / f"at{at}"), at)


def test_what_dead_publishers_left_goes(world: World) -> None:
    """Blobs without an index, and an index without a manifest, are doomed and removed like the rest."""
    layer = world.layer(1)
    for left in range(1, 3):
        count = left

        def before(act: str, name: str) -> None:
            nonlocal count
            if act == "swap" or (act == "put" and not name.startswith("doomed")):
                if count == 0:
                    raise StoreUnreachable("died")
                count -= 1

        world.store.before = before
        with pytest.raises(StoreUnreachable):
            world.push(layer)
        world.store.before = lambda _, __: None
        assert world.blobs()
        for _ in range(4):
            collect(world.store)
            world.now += 86_401
        assert set(world.store.objects) == {"doomed/clock"}


def test_a_node_that_reads_on_demand_keeps_its_layer(world: World) -> None:
    """A claim counts as a tag until it is released."""
    layer = world.layer(1)
    world.push(layer)
    claim(world.store, layer[2], "node7")
    for _ in range(3):
        collect(world.store)
        world.now += 100_000
    world.assert_whole(layer)
    release(world.store, layer[2], "node7")
    for _ in range(4):
        collect(world.store)
        world.now += 100_000
    assert world.blobs() == set()


def test_nothing_goes_while_something_cannot_be_read(world: World) -> None:
    """A tag that is damaged stops the clean-up; a damaged index of a tagged layer keeps every blob."""
    layer, other = world.layer(1), world.layer(2)
    world.push(layer, "workspace/w:1")
    world.push(other)
    collect(world.store)
    world.now += 100_000
    world.store.put(index_name(layer[2]), b"damaged")
    for _ in range(3):
        report = collect(world.store)
        world.now += 100_000
    assert report.damaged_layers == [layer[2]]
    assert len(world.blobs()) == 2
    world.store.put(tag_name(TAG), b"damaged")
    with pytest.raises(ImageCorrupt):
        collect(world.store)


def test_an_image_keeps_its_layers(world: World) -> None:
    """Layers of an image of the store stay without tags of their own."""
    layer = world.layer(1)
    world.push(layer)
    record = ImageRecord(reference="i:1", digest="sha256:x", config=ImageConfig(), layers=(layer[2],), at=1.0, by="n")
    put_image(world.store, record, move=False)
    for _ in range(3):
        collect(world.store)
        world.now += 100_000
    world.assert_whole(layer)


def test_two_clean_ups_at_once_remove_nothing_new(world: World) -> None:
    """What one removed, and a publisher has put there anew, the other one leaves alone: a blob, a layer's parts."""
    layer, other = world.layer(1, 2), world.layer(1, 2, 3)
    world.push(layer, "workspace/w:1")
    drop_tag(world.store, TAG)
    collect(world.store)
    world.now += 86_401
    collect(world.store)  # The layer is gone,
    collect(world.store)  # its blob is doomed.
    world.now += 86_401

    def meanwhile(act: str, name: str) -> None:
        if (act, name) == ("list", "claims"):
            world.store.before = lambda _, __: None
            collect(world.store)
            assert world.blobs() == set()
            world.push(layer, "workspace/w:1")

    world.store.before = meanwhile
    collect(world.store)
    world.assert_whole(layer)
    world.push(other)
    collect(world.store)
    world.now += 86_401
    seen: list[str] = []

    def after_the_manifest(act: str, name: str) -> None:
        if manifest_name(other[2]) not in world.store.objects:
            seen.append(name)
            world.store.before = lambda _, __: None
            world.push(other, "workspace/w:2")

    world.store.before = after_the_manifest
    collect(world.store)
    assert seen
    world.assert_whole(other)


def test_a_claim_in_the_middle_of_a_clean_up(world: World, tmp_path: Path) -> None:
    """Before whichever of its acts a layer is claimed and pulled: it stays whole, or the pull is told.

    Of a removal itself the look at the mark before it is tried: from there to the removal there is no way back.
    """
    acts, outcomes = 0, set[str]()

    def scenario(world: World, at: int) -> None:
        nonlocal acts
        layer = world.layer(1)
        world.push(layer)
        collect(world.store)
        world.now += 86_401
        acts = 0
        outcome = ""

        def before(act: str, name: str) -> None:
            nonlocal acts, outcome
            if act == "delete" and name.startswith("layers/"):
                return
            acts += 1
            if acts != at:
                return
            world.store.before = lambda _, __: None
            try:
                target = world._folder / "sparse"
                target.mkdir()
                fetch_claimed(world.store, layer[2], target, "local-1")
                outcome = "claimed"
            except (NotFound, ImageCorrupt):
                outcome = "told"

        world.store.before = before
        collect(world.store)
        world.store.before = lambda _, __: None
        for _ in range(3):
            collect(world.store)
            world.now += 86_401
        if outcome == "claimed":
            world.assert_whole(layer)
        outcomes.add(outcome)

    scenario(world, 0)
    for at in range(1, acts + 1):
        scenario(World(tmp_path / f"at{at}"), at)
    assert outcomes == {"", "claimed", "told"}


def test_a_pull_that_a_clean_up_overtakes(world: World, tmp_path: Path) -> None:
    """A layer removed while its metadata is read is not taken for one that the store keeps; no claim stays."""
    layer = world.layer(1)
    world.push(layer)

    def before(act: str, name: str) -> None:
        if (act, name) == ("read", metadata_name(layer[2])):
            world.store.delete(manifest_name(layer[2]))
            world.store.delete(index_name(layer[2]))

    world.store.before = before
    (tmp_path / "out").mkdir()
    with pytest.raises(NotFound):
        fetch_claimed(world.store, layer[2], tmp_path / "out", "local-1")
    assert list(world.store.list("claims")) == []


@pytest.mark.parametrize("jump_s", [-3e8, 3e8])
def test_a_stores_clock_that_jumps(world: World, jump_s: float) -> None:
    """Forward or back by years, after something was doomed: what has a tag or a claim stays and is read; what is
    doomed goes, after a day by the clock as it is then at the latest.
    """
    tagged, claimed, gone = world.layer(1), world.layer(2), world.layer(3)
    world.push(tagged, "workspace/w:2")
    world.push(claimed)
    claim(world.store, claimed[2], "node-1")
    world.push(gone, "workspace/w:1")
    drop_tag(world.store, TAG)
    collect(world.store)
    world.now += jump_s
    first = collect(world.store)
    # A clock that was years late, or is now, cannot tell a day from a moment; nothing that is needed depends on it.
    assert first.removed_layers == ([gone[2]] if jump_s > 0 else [])
    world.now += 86_401
    later = collect(world.store)
    assert {*first.removed_layers, *later.removed_layers} == {gone[2]}
    world.now -= jump_s
    collect(world.store)
    for each in (tagged, claimed):
        world.assert_whole(each)
    world.push(gone, "workspace/w:1")
    collect(world.store)
    world.assert_whole(gone)
