"""Disks that are kept, over a fake runtime: counted while they are, found again, given to new sandboxes, removed."""

from __future__ import annotations

from typing import Any

import pytest

from dsec.errors import Conflict, ImageNotFound, InvalidArgument, NotFound, Unsupported
from dsec.testing.edge_world import IMAGE, LAYER, Api, World, failing, until

pytestmark = pytest.mark.anyio


async def stopped(api: Api, **fields: Any) -> dict[str, Any]:
    """A sandbox that was stopped and whose disk is kept."""
    made = await api.create(**fields)
    done = await api.call("POST", f"/v1/sandboxes/{made['id']}/stop", {"keep": "disk", "keep_s": 60})
    assert done["kept_until"] is not None
    return made


async def test_a_kept_disk_counts_until_it_is_removed(world: World) -> None:
    """What was measured, and the layers below; the event of the runtime's timer gives both back."""
    async with world.edge() as (edge, api):
        made = await stopped(api)
        assert world.runtime.called("sandbox.stop")[-1]["keep_ms"] == 60_000
        admission = edge.core.admission
        assert (admission.used.disk_bytes, admission.used.sandboxes) == (4096, 0)
        assert edge.core.uses_layer(LAYER)
        assert (await api.call("GET", f"/v1/sandboxes/{made['id']}"))["kept_until"] > 0
        world.runtime.answer("disk.remove", {"sandbox_ids": [made["id"]]})
        await until(lambda: not edge.core.kept)
        assert admission.used.disk_bytes == 0 and not edge.core.uses_layer(LAYER)
        assert (await api.call("GET", f"/v1/sandboxes/{made['id']}"))["kept_until"] is None


async def test_the_next_edge_finds_what_is_kept(world: World) -> None:
    """One disk is still there and counts; one was removed while nobody listened and does not."""
    async with world.edge() as (_, api):
        one, two = await stopped(api), await stopped(api)
    del world.runtime.disks[two["id"]]
    async with world.edge() as (edge, api):
        assert set(edge.core.kept) == {one["id"]} and edge.core.admission.used.disk_bytes == 4096
        assert (await api.call("GET", f"/v1/sandboxes/{two['id']}"))["kept_until"] is None
        assert edge.core.records.kept() == [one["id"]]


async def test_a_sandbox_on_a_kept_disk(world: World) -> None:
    """It has the former one's layers, and its environment under the caller's, also when the image is gone."""
    async with world.edge() as (_, api):
        old = await stopped(api, env={"A": "1", "B": "1"}, workdir="/w")
        await api.call("DELETE", f"/v1/images/{IMAGE}")
        new = await api.create(from_disk=old["id"], env={"B": "2"}, job=None)
        spec = world.runtime.sandboxes[new["id"]].spec
        assert (spec["from_disk"], spec["layers"]) == (old["id"], [LAYER])
        assert (new["from_disk"], new["workdir"], new["user"]) == (old["id"], "/w", "app")
        assert isinstance(await failing(api.create()), ImageNotFound)


async def test_what_a_kept_disk_refuses(world: World) -> None:
    """Another image, layers, the image's command, a disk that is not kept, a name that is no ID."""
    async with world.edge() as (_, api):
        old, gone = await stopped(api), await api.create()
        await api.call("POST", f"/v1/sandboxes/{gone['id']}/stop", {})
        wrong: list[tuple[dict[str, Any], type[Exception]]] = [
            ({"image": "other:1"}, InvalidArgument),
            ({"toolkits": ["toolkit/x:1"]}, InvalidArgument),
            ({"command": "image"}, InvalidArgument),
            ({"from_disk": gone["id"]}, NotFound),
            ({"from_disk": "worker-1"}, InvalidArgument),
        ]
        for fields, kind in wrong:
            error = await failing(api.create(**({"from_disk": old["id"]} | fields)))
            assert isinstance(error, kind), (fields, error)


async def test_a_stop_that_finds_nothing_to_keep_says_so(world: World) -> None:
    """Who asks for the disk of what had ended gets a Conflict; asking twice is harmless."""
    async with world.edge() as (_, api):
        made, kept = await api.create(), await stopped(api)
        path = f"/v1/sandboxes/{made['id']}/stop"
        await api.call("POST", path, {})
        assert isinstance(await failing(api.call("POST", path, {"keep": "disk"})), Conflict)
        again = await api.call("POST", f"/v1/sandboxes/{kept['id']}/stop", {"keep": "disk"})
        assert again["kept_until"] is not None
        for body, kind in (({"keep": "all"}, Unsupported), ({"keep": "disk", "keep_s": 1e9}, InvalidArgument)):
            assert isinstance(await failing(api.call("POST", path, body)), kind)


async def test_the_tombstone_and_its_disk_go_together(world: World) -> None:
    """Removing what is kept of a sandbox removes its disk, by request and by age."""
    async with world.edge() as (edge, api):
        one = await stopped(api)
        await api.call("DELETE", f"/v1/sandboxes/{one['id']}")
        assert world.runtime.disks == {} and edge.core.kept == {} and edge.core.records.kept() == []
        two = await stopped(api)
        await edge.ends.bury([two["id"]])
        assert world.runtime.disks == {} and edge.core.admission.used.disk_bytes == 0
