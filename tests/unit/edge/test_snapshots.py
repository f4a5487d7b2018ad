"""Snapshots, over a fake runtime: taken once, counted, found again, given to new sandboxes, removed."""

from __future__ import annotations

from typing import Any

import pytest

from dsec.api.network import Network
from dsec.errors import CapacityError, InvalidArgument, NodeError, NotFound, SandboxGone, Unsupported
from dsec.testing.edge_world import LAYER, Api, World, failing, until

pytestmark = pytest.mark.anyio


async def taken(api: Api, sandbox: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A snapshot."""
    body = {"key": "key-1", "keep_s": 60} | fields
    made: dict[str, Any] = await api.call("POST", f"/v1/sandboxes/{sandbox['id']}/snapshots", body)
    return made


async def test_a_snapshot_is_taken_once_for_a_key(world: World) -> None:
    """The same key gives the same one, another key another; they are listed, found and removed."""
    async with world.edge() as (_, api):
        made = await api.create()
        one = await taken(api, made)
        assert await taken(api, made) == one and one["id"].startswith("sn-test-")
        assert len(world.runtime.called("snapshot.make")) == 1
        two = await taken(api, made, key="key-2")
        listed = (await api.call("GET", "/v1/snapshots"))["snapshots"]
        assert [each["id"] for each in listed] == [one["id"], two["id"]]
        await api.call("DELETE", f"/v1/snapshots/{one['id']}")
        await api.call("DELETE", f"/v1/snapshots/{one['id']}")
        assert (await api.call("GET", f"/v1/snapshots/{one['id']}"))["state"] == "removed"
        assert set(world.runtime.snapshots) == {two["id"]}
        assert isinstance(await failing(api.call("GET", "/v1/snapshots/sn-test-x")), NotFound)


async def test_a_snapshot_counts_until_it_is_removed(world: World) -> None:
    """What it holds and the layers below it, after its sandbox too; the runtime's event frees both."""
    async with world.edge() as (edge, api):
        made = await api.create()
        before = edge.core.admission.used.disk_bytes
        one = await taken(api, made)
        assert edge.core.admission.used.disk_bytes == before + 4096
        await api.call("POST", f"/v1/sandboxes/{made['id']}/stop", {})
        assert edge.core.uses_layer(LAYER) and edge.core.users_of(LAYER) == [one["id"]]
        world.runtime.answer("snapshot.remove", {"snapshot_ids": [one["id"]]})
        await until(lambda: not edge.core.snapshots)
        assert edge.core.admission.used.disk_bytes == 0 and not edge.core.uses_layer(LAYER)


async def test_the_next_edge_finds_what_there_is(world: World) -> None:
    """One is still there and counts, one went while nobody listened, one was taken and not noted."""
    async with world.edge() as (edge, api):
        made = await api.create()
        one, two = await taken(api, made), await taken(api, made, key="key-2")
        three = await taken(api, made, key="key-3")
        record = edge.core.records.snapshots.get(three["id"])
        assert record is not None
        record.found = None
        edge.core.records.snapshots.save(record)
        record.id = "sn-test-nevertaken"
        edge.core.records.snapshots.save(record)
    del world.runtime.snapshots[two["id"]]
    world.runtime.snapshots["sn-test-nobodys"] = world.runtime.snapshots[one["id"]] | {
        "snapshot_id": "sn-test-nobodys"
    }
    async with world.edge() as (edge, api):
        await until(lambda: "sn-test-nobodys" not in world.runtime.snapshots)
        listed = (await api.call("GET", "/v1/snapshots"))["snapshots"]
        assert {each["id"] for each in listed} == {one["id"], three["id"]}
        assert (await api.call("GET", f"/v1/snapshots/{two['id']}"))["state"] == "removed"
        assert set(edge.core.snapshots) == {one["id"], three["id"]}
        assert edge.core.admission.used.disk_bytes >= 2 * 4096


async def test_a_sandbox_that_begins_with_a_snapshot(world: World) -> None:
    """The snapshot's own arguments make one like its sandbox, also after that has ended."""
    async with world.edge() as (edge, api):
        fields: dict[str, Any] = {
            "env": {"A": "1"},
            "labels": {"l": "x"},
            "profile": "strict",
            "memory_mib": (64, 512),
            "endpoints": {"a": "http://h:1/p"},
            "network": {"default": "allow", "max_connections": 7},
        }
        made = await api.create(**fields, workdir="/w")
        one = await taken(api, made)
        await api.call("PUT", f"/v1/sandboxes/{made['id']}/network", {"network": "none"})
        await api.call("POST", f"/v1/sandboxes/{made['id']}/stop", {})
        new = await api.create(**one["args"])
        assert edge.core.live[new["id"]].network == Network(default="allow", max_connections=7)
        spec = world.runtime.sandboxes[new["id"]].spec
        assert new["profile"] == spec["profile"] == "strict"
        assert (spec["from_snapshot"], spec["layers"]) == (one["id"], [LAYER])
        assert (new["from_snapshot"], new["env"], new["labels"], new["workdir"]) == (
            one["id"], {"A": "1"}, {"l": "x"}, "/w",
        )  # fmt: skip
        assert (new["memory_mib"], new["command"], new["main_exec_id"]) == (512, None, None)
        assert spec["endpoints"][0]["host"] == "h" and spec["endpoints"][0]["path"] == "/p"


async def test_what_is_refused(world: World) -> None:
    """Memory, times that make no sense, a sandbox that is gone, a full pool, a snapshot that is gone."""
    async with world.edge() as (edge, api):
        made = await api.create()
        for fields, kind in (({"memory": True}, Unsupported), ({"keep_s": 0}, InvalidArgument)):
            assert isinstance(await failing(taken(api, made, **fields)), kind)
        one = await taken(api, made)
        both = {"from_snapshot": one["id"], "from_disk": made["id"]}
        assert isinstance(await failing(api.create(**both)), InvalidArgument)
        edge.core.admission.pending_disk_bytes = 1 << 60
        assert isinstance(await failing(taken(api, made, key="key-2")), CapacityError)
        edge.core.admission.pending_disk_bytes = 0
        await api.call("POST", f"/v1/sandboxes/{made['id']}/stop", {})
        assert isinstance(await failing(taken(api, made, key="key-2")), SandboxGone)
        await api.call("DELETE", f"/v1/snapshots/{one['id']}")
        assert isinstance(await failing(api.create(from_snapshot=one["id"])), NotFound)
        assert (await taken(api, made))["state"] == "removed"


async def test_one_that_could_not_be_taken_leaves_nothing(world: World) -> None:
    """A refusal drops the intent; a broken link keeps it, and the next try takes it."""
    async with world.edge() as (edge, api):
        made = await api.create()
        world.runtime.failures["snapshot.make"] = CapacityError("the pool is full")
        assert isinstance(await failing(taken(api, made)), CapacityError)
        assert edge.core.snapshots == {} and edge.core.records.snapshots.all() == []
        world.runtime.failures["snapshot.make"] = NodeError("away")
        assert isinstance(await failing(taken(api, made)), NodeError)
        assert (await api.call("GET", "/v1/snapshots"))["snapshots"] == []
        assert (await taken(api, made))["state"] == "made"
