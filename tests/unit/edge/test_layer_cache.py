"""Layers leave a full node and come back when they are needed, and never under whoever needs them."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.edge.shelf import Shelf, put_stored_image

from dsec.errors import CapacityError, Conflict, NodeError, NotFound, StoreUnreachable
from dsec.stores.layout import manifest_name
from dsec.testing.edge_world import LAYER, failing, until

pytestmark = pytest.mark.anyio
both = pytest.mark.parametrize("shelf", ["whole", "filled"], indirect=True)
TAGS = ("workspace/w:1", "workspace/w:2")


def _shrunk(shelf: Shelf, mib: int) -> None:
    shelf.edge.core.config = msgspec.structs.replace(shelf.edge.core.config, layer_cache_mib=mib)


def _on_disk(shelf: Shelf) -> set[str]:
    return {each.name for each in shelf.world.config.paths.layers.iterdir()} - {LAYER}


@both
async def test_an_evicted_layer_comes_back_at_the_next_create(shelf: Shelf) -> None:
    """Its tag stays, its files go, its store keeps it; a create finds it here again before the runtime is asked."""
    digest = shelf.published(TAGS[0])
    await shelf.pull(TAGS[0])
    assert await shelf.cache.evict(digest)
    assert _on_disk(shelf) == set()
    assert shelf.claims() == {digest}
    shown = await shelf.api.call("GET", f"/v1/layers/{TAGS[0]}")
    assert (shown["here"], shown["local_bytes"], shown["stores"]) == (False, 0, ["shelf"])
    assert not await shelf.cache.evict(digest)
    gate = shelf.world.runtime.hold("sandbox.create")
    creating = asyncio.create_task(shelf.api.create(workspace=TAGS[0]))
    await gate.reached.wait()
    assert shelf.images.layers.has(digest)
    gate.open()
    assert digest in (await creating)["layers"]


@both
async def test_what_is_needed_stays(shelf: Shelf) -> None:
    """A layer of a sandbox, of work in progress, or that no store has is not evicted, by whomever it is asked."""
    digest = shelf.published(TAGS[0])
    await shelf.pull(TAGS[0])
    sandbox = await shelf.api.create(workspace=TAGS[0])
    with pytest.raises(Conflict):
        await shelf.cache.evict(digest)
    await shelf.api.call("POST", f"/v1/sandboxes/{sandbox['id']}/stop", {})
    with shelf.images.holding([digest]), pytest.raises(Conflict):
        await shelf.cache.evict(digest)
    shelf.store.delete(manifest_name(digest))
    with pytest.raises(Conflict):
        await shelf.cache.evict(digest)
    with pytest.raises(Conflict):
        await shelf.cache.evict(LAYER)
    assert shelf.images.layers.has(digest)
    _shrunk(shelf, 0)
    assert await shelf.cache.shrink() == []


@both
async def test_a_sandbox_that_comes_during_an_eviction_keeps_its_layer(shelf: Shelf) -> None:
    """The create begins while the runtime unmounts: the eviction stops, and the layer never left."""
    digest = shelf.published(TAGS[0])
    await shelf.pull(TAGS[0])
    gate = shelf.world.runtime.hold("layer.evict", "after")
    evicting = asyncio.create_task(shelf.cache.evict(digest))
    await gate.reached.wait()
    await shelf.api.create(workspace=TAGS[0])
    gate.open()
    with pytest.raises(Conflict):
        await evicting
    assert _on_disk(shelf) == {digest}


@both
async def test_a_runtime_that_does_not_answer_keeps_its_layers(shelf: Shelf) -> None:
    """What may be mounted is not taken away."""
    digest = shelf.published(TAGS[0])
    await shelf.pull(TAGS[0])
    shelf.world.runtime.failures["layer.evict"] = NodeError("away")
    with pytest.raises(NodeError):
        await shelf.cache.evict(digest)
    assert _on_disk(shelf) == {digest}


@pytest.mark.parametrize("shelf", ["whole"], indirect=True)
async def test_the_longest_unused_leave_a_full_node(shelf: Shelf) -> None:
    """Above the high mark layers go until the low one, those that were used last stay; below it nothing happens."""
    used, unused = shelf.published(TAGS[0], seed=1), shelf.published(TAGS[1], seed=2)
    for tag in TAGS:
        await shelf.pull(tag)
    sandbox = await shelf.api.create(workspace=TAGS[0])
    await shelf.api.call("POST", f"/v1/sandboxes/{sandbox['id']}/stop", {})
    shelf.world.clock.now += 100
    assert await shelf.cache.shrink() == []
    taken = shelf.cache.cached_bytes
    assert taken > 2 * (256 << 10)
    own = shelf.images.layers.own_bytes()
    shelf.edge.core.config = msgspec.structs.replace(shelf.edge.core.config, layer_cache_mib=0)
    # Between the marks of one layer and two.
    marks = shelf.cache.marks
    low = taken - own[unused] // 2
    shelf.cache.marks = lambda: msgspec.structs.replace(marks(), high=taken - 1, low=low)  # type: ignore[method-assign]
    assert await shelf.cache.shrink() == [unused]
    assert _on_disk(shelf) == {used}
    numbers = await (await shelf.api.session.get("http://edge/metrics")).text()
    assert "dsec_layers_evicted 1.0" in numbers
    assert 'dsec_layer_cache_bytes{what="high"}' in numbers


@both
async def test_a_layer_that_cannot_go_is_replaced_by_the_next(shelf: Shelf) -> None:
    """The longest unused is lost to its store: the next one goes, and no more than it takes."""
    tags = [*TAGS, "workspace/w:3"]
    digests = [shelf.published(tag, seed=seed) for seed, tag in enumerate(tags, 1)]
    for tag in tags:
        await shelf.pull(tag)
        shelf.world.clock.now += 100
        shelf.edge.core.layers_used[shelf.images.resolve_layer(tag)] = shelf.world.clock.now
    shelf.store.delete(manifest_name(digests[0]))
    await shelf.cache.shrink()
    own = shelf.images.layers.own_bytes()
    taken = shelf.cache.cached_bytes
    marks = msgspec.structs.replace(shelf.cache.marks(), high=taken - 1, low=taken - own[digests[1]])
    shelf.cache.marks = lambda: marks  # type: ignore[method-assign]
    assert await shelf.cache.shrink() == [digests[1]]
    assert shelf.cache.cached_bytes == marks.low
    assert _on_disk(shelf) == {digests[0], digests[2]}


@both
async def test_a_store_that_is_away_is_asked_once_a_round(shelf: Shelf, tmp_path: Path) -> None:
    """However many layers only it has: none goes, and the next round goes on once it is back."""
    digests = {shelf.published(tag, seed=seed) for seed, tag in enumerate(TAGS, 1)}
    for tag in TAGS:
        await shelf.pull(tag)
    asked: list[str | None] = []
    opened = shelf.stores.open

    def counted(name: str | None) -> Any:
        asked.append(name)
        return opened(name)

    shelf.stores.open = counted  # type: ignore[method-assign]
    _shrunk(shelf, 0)
    (tmp_path / "shelf").rename(tmp_path / "away")
    assert await shelf.cache.shrink() == []
    assert asked == ["shelf"]
    (tmp_path / "away").rename(tmp_path / "shelf")
    assert set(await shelf.cache.shrink()) == digests


@both
async def test_a_node_that_is_stuck_does_not_look_all_the_time(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above its mark a node looks at once, and goes on as long as something goes; in vain, not again at once."""
    digest = shelf.published(TAGS[0])
    await shelf.pull(TAGS[0])
    looked: list[int] = []
    own_bytes = shelf.images.layers.own_bytes

    def counted() -> dict[str, int]:
        looked.append(1)
        return own_bytes()

    monkeypatch.setattr(shelf.images.layers, "own_bytes", counted)
    await shelf.cache.keep()
    await shelf.cache.keep()
    assert (len(looked), _on_disk(shelf)) == (1, {digest})
    _shrunk(shelf, 0)
    (tmp_path / "shelf").rename(tmp_path / "away")
    for _ in range(3):
        await shelf.cache.keep()
    assert (len(looked), _on_disk(shelf)) == (2, {digest})
    (tmp_path / "away").rename(tmp_path / "shelf")
    shelf.cache._scanned -= 15
    await shelf.cache.keep()
    assert (len(looked), _on_disk(shelf)) == (3, set())


@pytest.mark.parametrize("shelf", ["whole"], indirect=True)
async def test_claims_are_written_beside_the_loop(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for the disk is no thread of the edge's loop."""
    digest = shelf.published(TAGS[0])
    await shelf.pull(TAGS[0])
    on: list[threading.Thread] = []
    intend_claim = shelf.images.copies.intend_claim

    def seen(*arguments: str) -> None:
        on.append(threading.current_thread())
        intend_claim(*arguments)

    monkeypatch.setattr(shelf.images.copies, "intend_claim", seen)
    assert await shelf.cache.evict(digest)
    assert on and threading.current_thread() not in on


@both
async def test_what_is_shown_of_conflicts_is_brought_back_before(shelf: Shelf) -> None:
    """Evicted layers are here again when they are looked into."""
    digests = {shelf.published(tag, seed=seed) for seed, tag in enumerate(TAGS, 1)}
    for tag in TAGS:
        await shelf.pull(tag)
    for each in digests:
        assert await shelf.cache.evict(each)
    assert set(shelf.images.layers.missing(each for each in sorted(digests))) == digests
    checked = await failing(shelf.api.call("POST", "/v1/layers/check", {"layers": list(TAGS)}))
    assert not isinstance(checked, NotFound)
    assert _on_disk(shelf) == digests


@pytest.mark.timeout(60)
@pytest.mark.parametrize("shelf", ["whole"], indirect=True)
async def test_a_pull_that_wants_room_while_room_is_made(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer is deleted for good and pulled again at once onto a full disk: neither waits for the other for ever."""
    wanted = shelf.published(TAGS[0])
    await shelf.pull(TAGS[0])
    shelf.images.layers._catalogue.remove_tag(TAGS[0])
    full = asyncio.Event()
    make_room = shelf.stores.make_room

    async def asking(digest: str) -> bool:
        full.set()
        return await make_room(digest)

    shelf.stores.make_room = asking
    monkeypatch.setattr("os.pwrite", _full_while(lambda: not full.is_set()))
    gate = shelf.world.runtime.hold("layer.evict")
    _shrunk(shelf, 0)
    shrinking = asyncio.create_task(shelf.cache.shrink())
    await gate.reached.wait()  # it is forgotten, and its claim is to be given back
    pulling = asyncio.create_task(shelf.pull(TAGS[0]))
    await full.wait()
    gate.open()
    async with asyncio.timeout(30):
        assert await shrinking == [wanted]
        await asyncio.gather(pulling, return_exceptions=True)


@both
async def test_what_nothing_needs_goes_first_and_its_claim(shelf: Shelf) -> None:
    """An untagged layer is deleted for good when room is wanted."""
    digest = shelf.published(TAGS[0])
    await shelf.pull(TAGS[0])
    shelf.images.layers._catalogue.remove_tag(TAGS[0])
    _shrunk(shelf, 0)
    assert await shelf.cache.shrink() == [digest]
    assert not shelf.images.layers.knows(digest)
    assert shelf.claims() == set()


@both
async def test_layers_of_an_image_come_back(shelf: Shelf) -> None:
    """An image some of whose layers were evicted is made into a sandbox as before."""
    first, second = shelf.published(seed=1), shelf.published(seed=2)
    put_stored_image(shelf, first, second)
    await shelf.fetch_image()
    for each in (first, second):
        assert await shelf.cache.evict(each)
    made = await shelf.api.create(image="i:1")
    assert made["layers"] == [first, second]
    assert _on_disk(shelf) == {first, second}


@both
async def test_an_image_with_a_layer_twice(shelf: Shelf) -> None:
    """It is fetched once, comes back once, and a sandbox has it once, where it was named last."""
    first, second = shelf.published(seed=1), shelf.published(seed=2)
    put_stored_image(shelf, first, second, first)
    await shelf.fetch_image()
    assert await shelf.cache.evict(first)
    assert (await shelf.api.create(image="i:1"))["layers"] == [second, first]


@both
async def test_a_clock_that_jumps_back(shelf: Shelf) -> None:
    """A layer that is used after the jump is no older than before, whether its use is written down or not."""
    digest = shelf.published(TAGS[0])
    await shelf.pull(TAGS[0])
    before = shelf.world.clock.now
    for _ in range(2):
        made = await shelf.api.create(workspace=TAGS[0])
        await shelf.api.call("POST", f"/v1/sandboxes/{made['id']}/stop", {})
        await until(lambda: not shelf.edge.core.uses_layer(digest))
        assert shelf.cache.last_use(digest) >= before
        await shelf.cache.note_uses()
        assert shelf.cache.last_use(digest) >= before
        shelf.world.clock.now -= 500
    await shelf.start()
    assert shelf.cache.last_use(digest) >= before


@both
async def test_many_creates_bring_a_layer_once(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait for one fetch."""
    digest = shelf.published(TAGS[0])
    await shelf.pull(TAGS[0])
    await shelf.cache.evict(digest)
    fetched: list[str] = []
    received = shelf.stores._received

    async def counted(name: str, wanted: str, *rest: Any) -> Any:
        fetched.append(wanted)
        return await received(name, wanted, *rest)

    monkeypatch.setattr(shelf.stores, "_received", counted)
    await asyncio.gather(*(shelf.api.create(workspace=TAGS[0]) for _ in range(20)))
    assert fetched == [digest]


@both
async def test_a_store_that_lost_an_evicted_layer(shelf: Shelf, tmp_path: Path) -> None:
    """The create's error says so; once the layer is there again it is brought. A store that is away is retryable."""
    digest = shelf.published(TAGS[0])
    await shelf.pull(TAGS[0])
    await shelf.cache.evict(digest)
    manifest = shelf.store.read(manifest_name(digest))
    (tmp_path / "shelf").rename(tmp_path / "away")
    away = await failing(shelf.api.create(workspace=TAGS[0]))
    assert isinstance(away, StoreUnreachable) and away.retryable
    (tmp_path / "away").rename(tmp_path / "shelf")
    shelf.store.delete(manifest_name(digest))
    lost = await failing(shelf.api.create(workspace=TAGS[0]))
    assert isinstance(lost, NotFound) and "evicted" in lost.message
    shelf.store.put(manifest_name(digest), manifest)
    assert digest in (await shelf.api.create(workspace=TAGS[0]))["layers"]


@both
async def test_an_edge_that_comes_later_knows_what_is_not_here(shelf: Shelf) -> None:
    """What was evicted and when layers were used is known to the next edge; a grave that was left is gone."""
    digest, kept = shelf.published(TAGS[0], seed=1), shelf.published(TAGS[1], seed=2)
    for tag in TAGS:
        await shelf.pull(tag)
    await shelf.api.create(workspace=TAGS[1])
    await shelf.cache.note_uses()
    grave = shelf.images.layers.evict(digest)
    assert grave is not None and grave.exists()
    await shelf.start()
    assert shelf.images.layers.missing([digest, kept]) == [digest]
    assert _on_disk(shelf) == {kept}
    assert shelf.images.copies.uses()[kept] == shelf.world.clock.now
    assert digest in (await shelf.api.create(workspace=TAGS[0]))["layers"]


@pytest.mark.parametrize("shelf", ["whole"], indirect=True)
async def test_a_pull_onto_a_full_disk_makes_room(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another layer goes, and the pull is done; with nothing to evict it is CapacityError."""
    digest, wanted = shelf.published(TAGS[0], seed=1), shelf.published(TAGS[1], seed=2)
    await shelf.pull(TAGS[0])
    monkeypatch.setattr("os.pwrite", _full_while(lambda: digest in _on_disk(shelf)))
    await shelf.pull(TAGS[1])
    assert _on_disk(shelf) == {wanted}
    await shelf.cache.evict(wanted)
    monkeypatch.setattr("os.pwrite", _full_while(lambda: True))
    assert isinstance(await failing(shelf.api.create(workspace=TAGS[0])), CapacityError)


def _full_while(full: Callable[[], bool]) -> Callable[[int, Any, int], int]:
    import os

    written = os.pwrite

    def write(fd: int, raw: Any, offset: int) -> int:
        if full():
            raise OSError(errno.ENOSPC, "full")
        return written(fd, raw, offset)

    return write


@both
async def test_collecting_while_sandboxes_are_made(shelf: Shelf) -> None:
    """Whatever the order of creates, removals and clean-ups: who gets a sandbox has its layers on disk."""
    digest = shelf.published(TAGS[0])

    async def create() -> None:
        try:
            made = await shelf.api.create(workspace=TAGS[0])
        except (NotFound, Conflict):
            return
        assert digest in made["layers"]
        assert shelf.images.layers.has(digest)
        await shelf.api.call("POST", f"/v1/sandboxes/{made['id']}/stop", {})

    async def disturb() -> None:
        try:
            await shelf.pull(TAGS[0])
            await shelf.cache.evict(digest)
            await shelf.api.call("POST", "/v1/layers/gc", {})
            await shelf.api.call("DELETE", f"/v1/layers/{TAGS[0]}")
        except (NotFound, Conflict):
            return

    for _ in range(10):
        await asyncio.gather(*(create() for _ in range(4)), disturb(), disturb())
    await shelf.pull(TAGS[0])
    await create()
    await until(lambda: not shelf.edge.core.uses_layer(digest))
