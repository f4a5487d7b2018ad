"""Claims of a node that died, of pulls that broke off, and of stores that were away are given back."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.unit.edge.shelf import Shelf

from dsec.errors import NotFound, StoreUnreachable
from dsec.stores.layout import manifest_name
from dsec.testing.edge_world import failing

pytestmark = pytest.mark.anyio
TAG = "workspace/w:1"


async def test_a_death_between_removing_and_giving_back(shelf: Shelf) -> None:
    """The next edge gives back what its predecessor had no time for."""
    digest = shelf.published(TAG)
    await shelf.pull(TAG)
    await shelf.images.remove_layer(TAG)
    assert shelf.claims() == {digest}
    await shelf.start()
    await shelf.cache.keep()
    assert shelf.claims() == set()
    assert list(shelf.stores.claims.stale()) == []


async def test_a_layer_that_the_node_has_keeps_its_claim(shelf: Shelf) -> None:
    """Settling gives back what is not the node's, and nothing else."""
    digest = shelf.published(TAG)
    await shelf.pull(TAG)
    await shelf.stores.settle()
    assert shelf.claims() == {digest}


async def test_a_pull_that_broke_off(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its claim goes when the node settles, and the next pull claims anew."""
    digest = shelf.published(TAG)

    def away(*_: Any) -> Any:
        raise StoreUnreachable("away")

    with monkeypatch.context() as patched:
        patched.setattr("dsec.stores.fetch.fetch_sparse", away)
        with pytest.raises(StoreUnreachable):
            await shelf.pull(TAG)
    assert shelf.claims() == {digest}
    await shelf.stores.settle()
    assert shelf.claims() == set()
    await shelf.pull(TAG)
    assert shelf.claims() == {digest}


async def test_a_layer_that_is_not_there_is_not_claimed(shelf: Shelf) -> None:
    """A tag without its layer leaves neither a claim nor a note of one."""
    digest = shelf.published(TAG)
    shelf.store.delete(manifest_name(digest))
    with pytest.raises(NotFound):
        await shelf.pull(TAG)
    assert shelf.claims() == set()
    assert list(shelf.stores.claims.stale()) == []


async def test_a_store_that_was_away_is_told_later(shelf: Shelf, tmp_path: Path) -> None:
    """A removal is done without it; once it is back its claim goes."""
    digest = shelf.published(TAG)
    await shelf.pull(TAG)
    shutil.move(tmp_path / "shelf", tmp_path / "away")
    await shelf.api.call("DELETE", f"/v1/layers/{TAG}")
    assert not shelf.images.layers.knows(digest)
    shutil.move(tmp_path / "away", tmp_path / "shelf")
    assert shelf.claims() == {digest}
    await shelf.stores.settle()
    assert shelf.claims() == set()


async def test_a_store_that_left_the_settings_stops_nobody(shelf: Shelf) -> None:
    """What is claimed there stays noted, and other stores are told."""
    digest = shelf.published(TAG)
    await shelf.pull(TAG)
    shelf.images.copies.intend_claim(digest, "former")
    await shelf.api.call("DELETE", f"/v1/layers/{TAG}")
    assert shelf.claims() == set()
    assert shelf.images.copies.claims(digest) == ["former"]
    assert isinstance(await failing(shelf.api.call("GET", f"/v1/layers/{TAG}")), NotFound)
