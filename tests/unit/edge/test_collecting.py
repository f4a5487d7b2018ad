"""Clean-ups of the node beside creates, and after deaths in their middle."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.edge.shelf import Shelf, put_stored_image

from dsec.errors import ImageNotFound
from dsec.images import Image
from dsec.testing.edge_world import LAYER, World, failing, until

pytestmark = pytest.mark.anyio
TAG = "workspace/w:1"
ORPHAN = "e" * 64


async def test_layers_without_a_record_go_at_the_next_start(world: World) -> None:
    """A process that died between putting a layer in place and recording it, or between forgetting and deleting one,
    keeps no edge from starting; a layer that a live sandbox has stays, recorded or not.
    """
    async with world.edge() as (edge, api):
        await api.create()
        edge.core.images.layers._catalogue.remove_image("dsec/debian:12")
        assert edge.core.images.layers._catalogue.remove_layer(LAYER)
    orphan = world.config.paths.layers / ORPHAN
    orphan.mkdir()
    (orphan / "layer.json").write_bytes(b"{}")
    async with world.edge():
        assert not orphan.exists()
        assert (world.config.paths.layers / LAYER).exists()


async def test_a_tag_that_goes_while_its_sandbox_is_made(shelf: Shelf) -> None:
    """The layer stays until the sandbox has ended, then a clean-up takes it; a dry run says so before."""
    digest = shelf.published(TAG)
    await shelf.pull(TAG)
    gate = shelf.world.runtime.hold("sandbox.create")
    creating = asyncio.create_task(shelf.api.create(workspace=TAG))
    await gate.reached.wait()
    await shelf.api.call("DELETE", f"/v1/layers/{TAG}")
    assert (await shelf.api.call("POST", "/v1/layers/gc", {}))["removed_layers"] == []
    gate.open()
    made = await creating
    assert shelf.images.layers.has(digest)
    evicted = [each for call in shelf.world.runtime.called("layer.evict") for each in call["digests"]]
    assert digest not in evicted
    await shelf.api.call("POST", f"/v1/sandboxes/{made['id']}/stop", {})
    await until(lambda: not shelf.edge.core.uses_layer(digest))
    dry = await shelf.api.call("POST", "/v1/layers/gc", {"dry_run": True})
    assert dry["removed_layers"] == [digest]
    assert shelf.images.layers.has(digest)
    assert (await shelf.api.call("POST", "/v1/layers/gc", {}))["removed_layers"] == [digest]
    assert shelf.claims() == set()


async def test_an_image_that_goes_at_the_end_of_its_own_pull(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """A create that had waited for it does not begin with layers that are gone: it looks again."""
    digest = shelf.published()
    put_stored_image(shelf, digest)
    resolved = shelf.images.resolve

    async def late(reference: str, **options: object) -> Image:
        image = await resolved(reference, **options)  # type: ignore[arg-type]
        monkeypatch.setattr(shelf.images, "resolve", resolved)
        await shelf.images.remove("i:1")
        return image

    await shelf.fetch_image()
    monkeypatch.setattr(shelf.images, "resolve", late)
    assert isinstance(await failing(shelf.api.create(image="i:1", pull="never")), ImageNotFound)
    assert shelf.world.runtime.called("sandbox.create") == []
