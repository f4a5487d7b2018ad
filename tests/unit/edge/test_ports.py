"""Exposed ports and endpoints at the edge: recorded before they are told, told again after every death."""

from __future__ import annotations

from typing import Any

import pytest

from dsec.errors import Conflict, DSecError, InvalidArgument, NodeError, NotFound, SandboxGone
from dsec.testing.edge_world import World, failing, until

pytestmark = pytest.mark.anyio

ENDPOINTS = {"llm": "http://127.0.0.1:8000/v1", "judge": {"url": "https://judge.example", "max_bytes": 9}}


def _told(world: World, sandbox_id: str) -> dict[str, Any]:
    told = world.runtime.sandboxes[sandbox_id].net
    assert told is not None
    return told


async def test_a_port_keeps_its_token_until_it_is_taken_back(world: World) -> None:
    """Exposing again gives the same token; after taking it back there is a new one. The runtime is told each time."""
    async with world.edge() as (_, api):
        made = await api.create()
        path = f"/v1/sandboxes/{made['id']}/ports"
        first = await api.call("POST", path, {"port": 3000})
        assert first["host"] == f"3000-{made['id']}.localhost"
        assert await api.call("POST", path, {"port": 3000}) == first
        assert _told(world, made["id"])["ports"] == [{"port": 3000, "token": first["token"]}]
        assert (await api.call("GET", path))["ports"] == [first]
        await api.call("DELETE", f"{path}/3000")
        assert _told(world, made["id"])["ports"] == []
        await api.call("DELETE", f"{path}/3000")
        second = await api.call("POST", path, {"port": 3000})
        assert second["token"] != first["token"]
        assert len(first["token"]) >= 32


@pytest.mark.parametrize("port", [0, -1, 65536])
async def test_only_ports(world: World, port: int) -> None:
    """A number that is no port is refused and recorded nowhere."""
    async with world.edge() as (_, api):
        made = await api.create()
        path = f"/v1/sandboxes/{made['id']}/ports"
        assert isinstance(await failing(api.call("POST", path, {"port": port})), InvalidArgument)
        assert (await api.call("GET", path))["ports"] == []


async def test_ports_outlive_edge_and_runtime(world: World) -> None:
    """A runtime that begins anew is told everything again, by this edge and by the next one."""
    async with world.edge() as (_, api):
        made = await api.create(endpoints=ENDPOINTS)
        port = await api.call("POST", f"/v1/sandboxes/{made['id']}/ports", {"port": 80})
        told = _told(world, made["id"])
        world.runtime.sandboxes[made["id"]].net = None
        await world.runtime.drop_connections()
        await until(lambda: world.runtime.sandboxes[made["id"]].net is not None)
        assert _told(world, made["id"]) == told
    await world.runtime.drop_connections()
    world.runtime.sandboxes[made["id"]].net = None
    async with world.edge() as (_, api):
        await until(lambda: world.runtime.sandboxes[made["id"]].net is not None)
        assert _told(world, made["id"]) == told
        assert (await api.call("GET", f"/v1/sandboxes/{made['id']}/ports"))["ports"] == [port]


async def test_what_could_not_be_told_is_kept_and_told_later(world: World) -> None:
    """When the runtime fails, the caller gets an error that may be repeated; the record stands."""
    async with world.edge() as (_, api):
        made = await api.create()
        world.runtime.failures["net.set"] = NodeError("no proxy")
        path = f"/v1/sandboxes/{made['id']}/ports"
        error = await failing(api.call("POST", path, {"port": 80}))
        assert isinstance(error, NodeError) and error.retryable
        again = await api.call("POST", path, {"port": 80})
        assert _told(world, made["id"])["ports"] == [{"port": 80, "token": again["token"]}]


async def test_a_network_that_is_refused_is_not_recorded(world: World) -> None:
    """When a sandbox cannot be made ready for its first policy, the caller hears why and nothing has changed; once it
    can, it has one.
    """
    async with world.edge() as (_, api):
        made = await api.create()
        path = f"/v1/sandboxes/{made['id']}/network"
        world.runtime.failures["net.prepare"] = Conflict("a program holds port 61953")
        assert isinstance(await failing(api.call("PUT", path, {"network": "open"})), Conflict)
        assert (await api.call("GET", path))["network"] is None
        assert world.runtime.called("net.set") == []
        assert (await api.call("PUT", path, {"network": "open"}))["network"]["default"] == "allow"
        assert _told(world, made["id"])["egress"]["allow"] is True
        await api.call("PUT", path, {"network": "none"})
        assert len(world.runtime.called("net.prepare")) == 2
        assert _told(world, made["id"])["egress"]["allow"] is False


async def test_one_sandbox_keeps_no_other_from_its_network(world: World) -> None:
    """When the runtime begins anew and refuses one sandbox, all others are told, the node recovers, and that one is
    told later.
    """
    async with world.edge() as (_, api):
        made = [await api.create() for _ in range(3)]
        for each in made:
            await api.call("POST", f"/v1/sandboxes/{each['id']}/ports", {"port": 80})
    await world.runtime.drop_connections()
    for sandbox in world.runtime.sandboxes.values():
        sandbox.net = None
    world.runtime.failures["net.set"] = Conflict("a program holds port 61953")
    async with world.edge() as (edge, api):
        await until(lambda: edge.recovered and world.runtime.called("net.told") != [])
        nets = [each.net for each in world.runtime.sandboxes.values()]
        assert sum(net is None for net in nets) == 1
        assert edge.core.counters["refused", "net.set"] == 1
        await edge.ports.tell_rest()
        assert all(each.net is not None for each in world.runtime.sandboxes.values())
        told = len(world.runtime.called("net.set"))
        await edge.ports.tell_rest()
        assert len(world.runtime.called("net.set")) == told


async def test_endpoints_reach_the_runtime_with_the_create(world: World) -> None:
    """The create carries the URL in parts and the limits; counts come back under their names."""
    async with world.edge() as (_, api):
        made = await api.create(endpoints=ENDPOINTS)
        first, second = world.runtime.called("sandbox.create")[0]["endpoints"]
        assert (first["name"], first["host"], first["port"], first["path"]) == ("llm", "127.0.0.1", 8000, "/v1")
        assert (second["tls"], second["max_bytes"], second["closed"]) == (True, 9, False)
        listed = (await api.call("GET", f"/v1/sandboxes/{made['id']}/endpoints"))["endpoints"]
        assert [(each["name"], each["requests"]) for each in listed] == [("llm", 3), ("judge", 0)]


async def test_counts_outlive_their_sandbox(world: World) -> None:
    """What endpoints had done is told with the end, and read from the record, by a later edge too."""
    async with world.edge() as (_, api):
        made = await api.create(endpoints=ENDPOINTS)
        await api.call("POST", f"/v1/sandboxes/{made['id']}/stop", {})
    async with world.edge() as (_, api):
        listed = (await api.call("GET", f"/v1/sandboxes/{made['id']}/endpoints"))["endpoints"]
        assert [(each["name"], each["requests"]) for each in listed] == [("llm", 3), ("judge", 0)]
        assert world.runtime.called("net.usage") == []


async def test_a_closed_endpoint_stays_closed(world: World) -> None:
    """Closing is recorded: the next edge says so again. An unknown name is not found."""
    async with world.edge() as (_, api):
        made = await api.create(endpoints=ENDPOINTS)
        path = f"/v1/sandboxes/{made['id']}/endpoints"
        assert isinstance(await failing(api.call("POST", f"{path}/other/close", {})), NotFound)
        await api.call("POST", f"{path}/llm/close", {})
        assert [each["closed"] for each in _told(world, made["id"])["endpoints"]] == [True, False]
    await world.runtime.drop_connections()
    world.runtime.sandboxes[made["id"]].net = None
    async with world.edge() as (_, api):
        await until(lambda: world.runtime.sandboxes[made["id"]].net is not None)
        assert [each["closed"] for each in _told(world, made["id"])["endpoints"]] == [True, False]


async def test_ports_end_with_their_sandbox(world: World) -> None:
    """Of a stopped sandbox no port is listed, and none can be exposed."""
    async with world.edge() as (_, api):
        made = await api.create()
        path = f"/v1/sandboxes/{made['id']}"
        await api.call("POST", f"{path}/ports", {"port": 80})
        await api.call("POST", f"{path}/stop", {})
        assert (await api.call("GET", f"{path}/ports"))["ports"] == []
        error: DSecError = await failing(api.call("POST", f"{path}/ports", {"port": 80}))
        assert isinstance(error, SandboxGone)
