"""What a node keeps in its stores by claims, and what it refuses of layers whose data is still there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from tests.unit.edge.shelf import Shelf, put_stored_image, quiet
from tests.unit.stores.layers import chunk

from dsec.edge.claimant import claimant_of
from dsec.errors import Conflict, ImageCorrupt, NodeError
from dsec.images.references import parse_layer
from dsec.node.config import NodeConfig
from dsec.stores.fetch import fetch_sparse
from dsec.stores.layout import TagRecord, manifest_name, tag_name
from dsec.testing.edge_world import failing

pytestmark = pytest.mark.anyio
TAGS = ("workspace/w:1", "workspace/w:2")


async def test_a_claim_stays_as_long_as_the_layer(shelf: Shelf) -> None:
    """Of two tags of one layer the first one's removal leaves layer and claim, the second one's takes both."""
    digest = shelf.published(*TAGS)
    for tag in TAGS:
        await shelf.pull(tag)
    await shelf.api.call("DELETE", f"/v1/layers/{TAGS[0]}")
    assert shelf.images.layers.has(digest)
    assert shelf.claims() == {digest}
    await shelf.api.call("DELETE", f"/v1/layers/{TAGS[1]}")
    assert not shelf.images.layers.has(digest)
    assert shelf.claims() == set()


async def test_a_layer_that_is_pulled_again_keeps_its_claim(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Letting go neither waits for a pull of the same layer nor takes its claim."""
    digest = shelf.published(TAGS[0])
    claimed, go_on = Event(), Event()

    def slowly(*arguments: Any) -> Any:
        claimed.set()
        assert go_on.wait(30)
        return fetch_sparse(*arguments)

    monkeypatch.setattr("dsec.stores.fetch.fetch_sparse", slowly)
    pulling = asyncio.create_task(shelf.pull(TAGS[0]))
    assert await asyncio.to_thread(claimed.wait, 30)
    async with asyncio.timeout(30):
        await shelf.stores.let_go([digest])
        await shelf.stores.settle()
    assert shelf.claims() == {digest}
    go_on.set()
    await pulling
    assert shelf.claims() == {digest}


async def test_removed_images_let_their_layers_go(shelf: Shelf) -> None:
    """The claims of an image's layers go with the image."""
    digest = shelf.published()
    put_stored_image(shelf, digest)
    await shelf.fetch_image()
    assert shelf.claims() == {digest}
    await shelf.api.call("DELETE", "/v1/images/i:1")
    assert not shelf.images.layers.has(digest)
    assert shelf.claims() == set()


async def test_a_fetch_of_an_image_that_broke_off_leaves_no_pins(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next fetch takes over what the first one brought: with the image all of its layers go, and their claims."""
    first, second = shelf.published(seed=1), shelf.published(seed=2)
    put_stored_image(shelf, first, second)
    manifest = shelf.store.read(manifest_name(second))
    shelf.store.delete(manifest_name(second))
    monkeypatch.setattr("dsec.edge.stored_images._AT_ONCE", 1)
    assert b"error" in await shelf.fetch_image()
    assert shelf.images.list_layers() == []
    assert (shelf.images.layers.has(first), shelf.claims()) == (True, {first})
    shelf.store.put(manifest_name(second), manifest)
    await shelf.fetch_image()
    assert shelf.images.list_layers() == []
    assert shelf.claims() == {first, second}
    await shelf.api.call("DELETE", "/v1/images/i:1")
    assert shelf.claims() == set()


async def test_what_a_broken_fetch_brought_is_garbage(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has to know of it to be rid of it."""
    first, second = shelf.published(seed=1), shelf.published(seed=2)
    put_stored_image(shelf, first, second)
    shelf.store.delete(manifest_name(second))
    monkeypatch.setattr("dsec.edge.stored_images._AT_ONCE", 1)
    assert b"error" in await shelf.fetch_image()
    assert (await shelf.api.call("POST", "/v1/layers/gc", {}))["removed_layers"] == [first]
    assert shelf.claims() == set()


async def test_names_of_an_images_layers_are_their_users(shelf: Shelf) -> None:
    """A fetch makes and takes no name: not that of a layer pulled by its digest, nor one beside a tag."""
    first, second = shelf.published(seed=1), shelf.published(TAGS[0], seed=2)
    put_stored_image(shelf, first, second)
    await shelf.pull(f"@sha256:{first}")
    await shelf.pull(TAGS[0])
    assert await shelf.cache.evict(second)
    await shelf.fetch_image()
    assert [each.tag for each in shelf.images.list_layers()] == [f"@sha256:{first}", TAGS[0]]
    await shelf.api.call("DELETE", "/v1/images/i:1")
    assert shelf.claims() == {first, second}


@pytest.mark.parametrize("shelf", ["filled", "whole"], indirect=True)
async def test_layers_of_an_image_are_fetched_beside_each_other(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four at a time; one that fails ends the others, and its error is the fetch's."""
    layers = [shelf.published(seed=seed) for seed in range(1, 7)]
    put_stored_image(shelf, *layers)
    received, at_once, most, four = shelf.stores._received, 0, 0, asyncio.Event()

    async def gated(name: str, digest: str, *rest: Any) -> Any:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        if at_once == 4:
            four.set()
        await four.wait()
        try:
            return await received(name, digest, *rest)
        finally:
            at_once -= 1

    monkeypatch.setattr(shelf.stores, "_received", gated)
    manifest = shelf.store.read(manifest_name(layers[2]))
    shelf.store.delete(manifest_name(layers[2]))
    said = await shelf.fetch_image()
    assert b"not_found" in said and layers[2].encode() in said
    assert (most, at_once) == (4, 0)
    shelf.store.put(manifest_name(layers[2]), manifest)
    await shelf.fetch_image()
    assert list(shelf.images.get("i:1").layers) == layers
    assert most == 4


@pytest.mark.parametrize("shelf", ["whole"], indirect=True)
async def test_an_image_is_pushed_whose_layers_were_evicted(shelf: Shelf) -> None:
    """They are brought back first, as those of a layer's push are."""
    first, second = shelf.published(seed=1), shelf.published(seed=2)
    put_stored_image(shelf, first, second)
    await shelf.fetch_image()
    assert await shelf.cache.evict(first)
    alice = {"dsec-principal": "alice"}
    async with shelf.api.session.post(
        "http://edge/v1/images/push", json={"reference": "i:1"}, headers=alice
    ) as answer:
        assert b'"pushed"' in await answer.read()
    assert shelf.images.layers.has(first)


async def test_differences_need_all_data(shelf: Shelf) -> None:
    """Data that is still in the store is never compared as zeros: Conflict."""
    shelf.published(TAGS[0], seed=1)
    shelf.published(TAGS[1], seed=2)
    for tag in TAGS:
        await shelf.pull(tag)
    asked = {"old": TAGS[0], "new": TAGS[1]}
    assert isinstance(await failing(shelf.api.call("POST", "/v1/layers/diff", asked)), Conflict)


async def test_a_damaged_tag_is_in_nobodys_way(shelf: Shelf) -> None:
    """It is not listed, hinders no other version, and is replaced by a push that moves it, and by no other."""
    digest = shelf.published(TAGS[0], TAGS[1])
    shelf.store.put(tag_name(parse_layer(TAGS[0])), b"damaged")
    assert [each.reference for each in await shelf.stores.tags("shelf")] == [TAGS[1]]
    await shelf.pull(TAGS[1])
    (shelf.images.layers.path(digest) / "filled").unlink()
    shelf.images.layers.retag(TAGS[0], digest, TagRecord(digest=digest, at=1.0, by="n").environment)
    (shelf.images.layers.path(digest) / "data").chmod(0o600)
    (shelf.images.layers.path(digest) / "data").write_bytes(chunk(1))
    with pytest.raises(ImageCorrupt) as caught:
        await shelf.stores.push(TAGS[0], None, quiet, move=False, mend=False)
    assert "--move" in (caught.value.remedy or "")
    await shelf.stores.push(TAGS[0], None, quiet, move=True, mend=False)
    assert len(await shelf.stores.tags("shelf")) == 2


async def test_machines_with_nodes_of_one_name_claim_apart(tmp_path: Path) -> None:
    """The name of a node's claims stays the same, and no other node's is like it; a damaged ID is refused."""
    one, two = (NodeConfig(node="local", root=str(tmp_path / each)) for each in ("one", "two"))
    for config in (one, two):
        config.paths.data.mkdir(parents=True)
    assert claimant_of(one) == claimant_of(one)
    assert claimant_of(one) != claimant_of(two)
    assert claimant_of(one).startswith("local-")
    assert [each.name for each in one.paths.data.iterdir()] == ["store-id"]
    one.paths.store_id.write_text("../x")
    with pytest.raises(NodeError):
        claimant_of(one)


async def test_claims_bear_the_claimants_name(shelf: Shelf) -> None:
    """Not the node's alone."""
    digest = shelf.published(TAGS[0])
    await shelf.pull(TAGS[0])
    assert [entry.name for entry in shelf.store.list("claims")] == [
        f"claims/{digest}/{claimant_of(shelf.world.config)}"
    ]
