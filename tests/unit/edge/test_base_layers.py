"""Sandboxes over a base layer in place of an image."""

from __future__ import annotations

import pytest
from tests.unit.edge.shelf import Shelf

from dsec.errors import Conflict, ImageNotFound, InvalidArgument, NotFound
from dsec.testing.edge_world import failing, until

pytestmark = pytest.mark.anyio
BASE = "base/small:1"


async def test_a_base_layer_is_what_a_sandbox_lies_over(shelf: Shelf) -> None:
    """It is the lowest layer, resolved once and recorded; its tag may move, whoever lives keeps what it had."""
    digest, workspace = shelf.published(BASE), shelf.published("workspace/w:1", seed=2)
    await shelf.pull(BASE)
    await shelf.pull("workspace/w:1")
    made = await shelf.api.create(image=BASE, workspace="workspace/w:1")
    assert (made["image"], made["image_digest"]) == (BASE, f"sha256:{digest}")
    assert made["layers"] == [digest, workspace]
    assert (made["user"], made["workdir"], made["command"]) == (None, "/", None)
    other = shelf.published(BASE, seed=3)
    await shelf.stores.pull(BASE, None, lambda *_: None, move=True)
    assert (await shelf.api.create(image=BASE))["layers"] == [other]
    assert (await shelf.api.create(image=f"@sha256:{digest}"))["layers"] == [digest]
    assert (await shelf.api.call("GET", f"/v1/sandboxes/{made['id']}"))["layers"] == [digest, workspace]


async def test_a_base_layer_is_kept_for_whom_it_is_below(shelf: Shelf) -> None:
    """Neither evicted nor collected while a sandbox is over it; evicted, the next create brings it back."""
    digest = shelf.published(BASE)
    await shelf.pull(BASE)
    made = await shelf.api.create(image=BASE)
    with pytest.raises(Conflict):
        await shelf.cache.evict(digest)
    await shelf.api.call("DELETE", f"/v1/layers/{BASE}")
    assert (await shelf.api.call("POST", "/v1/layers/gc", {}))["removed_layers"] == []
    await shelf.api.call("POST", f"/v1/sandboxes/{made['id']}/stop", {})
    await until(lambda: not shelf.edge.core.uses_layer(digest))
    assert (await shelf.api.call("POST", "/v1/layers/gc", {}))["removed_layers"] == [digest]
    await shelf.pull(BASE)
    assert await shelf.cache.evict(digest)
    assert (await shelf.api.create(image=BASE))["layers"] == [digest]
    assert shelf.images.layers.has(digest)


async def test_a_disk_over_a_base_layer_is_used_again(shelf: Shelf) -> None:
    """By the name that its sandbox had, pinned or not."""
    digest = shelf.published(BASE)
    await shelf.pull(BASE)
    old = await shelf.api.create(image=BASE)
    await shelf.api.call("POST", f"/v1/sandboxes/{old['id']}/stop", {"keep": "disk", "keep_s": 60})
    for name in (BASE, f"{BASE}@sha256:{digest}"):
        assert (await shelf.api.create(image=name, from_disk=old["id"]))["layers"] == [digest]
    for other in ("base/other:1", f"{BASE}@sha256:{'0' * 64}"):
        with pytest.raises(InvalidArgument, match="lies over"):
            raise await failing(shelf.api.create(image=other, from_disk=old["id"]))


@pytest.mark.parametrize(
    ("image", "expected", "remedy"),
    [
        ("base/none:1", NotFound, "dsec layer pull|pull it from a store"),
        ("base/small", InvalidArgument, "base/NAME:VERSION"),
        ("base/../small:1", InvalidArgument, "base/NAME:VERSION"),
        ("@sha256:12", InvalidArgument, "@sha256:DIGEST"),
        ("@sha256:" + "0" * 64, NotFound, "dsec layer pull"),
        (BASE + "@sha256:" + "0" * 64, Conflict, "dsec layer pull"),
        ("workspace/w:1", InvalidArgument, "workspace="),
    ],
)
async def test_base_layers_that_are_not_there(
    shelf: Shelf, image: str, expected: type[Exception], remedy: str
) -> None:
    """A typed error that says what to do; no registry is asked and nothing is made."""
    shelf.published(BASE)
    await shelf.pull(BASE)
    error = await failing(shelf.api.create(image=image))
    assert isinstance(error, expected), error
    assert any(each in (error.remedy or "") for each in remedy.split("|")), error.remedy
    assert shelf.world.runtime.called("sandbox.create") == []


async def test_a_base_layer_is_no_image(shelf: Shelf) -> None:
    """Where an image is shown, imported or removed it is refused; what Docker Hub has of that name is spelled out."""
    error = await failing(shelf.api.call("GET", f"/v1/images/{BASE}"))
    assert isinstance(error, InvalidArgument) and "docker.io/base/" in (error.remedy or "")
    for name in (BASE, "workspace/w:1"):
        with pytest.raises(InvalidArgument) as refused:
            await shelf.images.import_(f"docker://{name}")
        assert "dsec layer pull" in (refused.value.remedy or "")
    assert b"dsec layer pull" in await shelf.fetch_image(BASE)
    hub = await failing(shelf.api.create(image="docker.io/base/small:1", pull="never"))
    assert isinstance(hub, ImageNotFound)
