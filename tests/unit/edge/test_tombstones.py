"""Stopping, finding and forgetting: stops are confirmed and idempotent, tombstones last as long as configured."""

from __future__ import annotations

import asyncio

import pytest

from dsec.errors import Conflict, InvalidArgument, NotFound
from dsec.testing.edge_world import LAYER, World, failing, until

pytestmark = pytest.mark.anyio


async def test_stopping_twice(world: World) -> None:
    """The second stop gives the first one's confirmation; concurrent ones agree."""
    async with world.edge() as (edge, api):
        made = await api.create()
        path = f"/v1/sandboxes/{made['id']}/stop"
        answers = await asyncio.gather(*(api.call("POST", path, {}) for _ in range(5)))
        assert all(each == answers[0] for each in answers)
        assert await api.call("POST", path, {}) == answers[0]
        assert edge.core.admission.used.sandboxes == 0


async def test_only_the_callers_own_are_stopped(world: World) -> None:
    """`mine` and labels both stop the principal's own; without a filter nothing is."""
    async with world.edge() as (_, api):
        mine = await api.create(labels={"run": "1"})
        other = await api.create(labels={"run": "2"})
        bobs = await api.create(principal="bob", labels={"run": "1"})
        assert isinstance(await failing(api.call("POST", "/v1/stop", {})), InvalidArgument)
        assert (await api.call("POST", "/v1/stop", {"job": "j"}))["stopped"] == []
        report = await api.call("POST", "/v1/stop", {"labels": {"run": "1"}})
        assert report == {"stopped": [mine["id"]], "failed": []}
        report = await api.call("POST", "/v1/stop", {"mine": True})
        assert report["stopped"] == [other["id"]]
        assert (await api.call("GET", f"/v1/sandboxes/{bobs['id']}"))["state"] == "running"


async def test_finding(world: World) -> None:
    """By state, label, name and owner; without a state the ended ones too."""
    async with world.edge() as (_, api):
        one = await api.create(labels={"run": "1"}, name="one")
        two = await api.create(principal="bob")
        await api.call("POST", f"/v1/sandboxes/{one['id']}/stop", {})

        async def ids_of(query: str) -> set[str]:
            return {each["id"] for each in (await api.call("GET", "/v1/sandboxes" + query))["sandboxes"]}

        assert await ids_of("") == {one["id"], two["id"]}
        assert await ids_of("?state=running") == {two["id"]}
        assert await ids_of("?state=stopped&state=lost") == {one["id"]}
        assert await ids_of("?label=run=1") == {one["id"]}
        assert await ids_of("?name=one") == {one["id"]}
        assert await ids_of("?mine=true") == {one["id"]}
        assert isinstance(await failing(api.call("GET", "/v1/sandboxes?state=odd")), InvalidArgument)
        assert await ids_of("?job=j") == set()


async def test_usage_of_live_and_ended(world: World) -> None:
    """Fresh numbers while it runs, the last ones after."""
    async with world.edge() as (_, api):
        made = await api.create()
        live = await api.call("GET", f"/v1/sandboxes/{made['id']}/usage")
        assert (live["cpu_s"], live["pids"]) == (0.001, 1)
        await api.call("POST", f"/v1/sandboxes/{made['id']}/stop", {})
        assert (await api.call("GET", f"/v1/sandboxes/{made['id']}/usage"))["cpu_s"] == 0.001
        assert (await api.call("GET", f"/v1/sandboxes/{made['id']}"))["usage"]["cpu_s"] == 0.001


async def test_deleting(world: World) -> None:
    """A live sandbox is kept unless forced; then record and output are gone and only the catalogue knows it."""
    async with world.edge() as (_, api):
        made = await api.create(key="k")
        path = f"/v1/sandboxes/{made['id']}"
        assert isinstance(await failing(api.call("DELETE", path)), Conflict)
        await api.call("DELETE", path + "?force=true")
        error = await failing(api.call("GET", path))
        assert isinstance(error, NotFound)
        assert error.details["cause"] == "stopped"
        assert world.runtime.removed_output == [made["id"]]
        assert isinstance(await failing(api.create(key="k")), NotFound)


async def test_a_crash_right_after_a_stop_loses_no_history(world: World) -> None:
    """What was not yet brought into the catalogue is brought there by the next edge, and only that."""
    async with world.edge() as (_, api):
        made = await api.create(labels={"run": "1"})
        await api.call("POST", f"/v1/sandboxes/{made['id']}/stop", {})
    async with world.edge() as (edge, _):
        await edge.ends.flush_past()
        past = edge.core.catalogue.find(made["id"])
        assert past is not None
        assert (past.cause, past.labels) == ("stopped", {"run": "1"})
        assert edge.core.records.not_catalogued() == []


async def test_tombstones_go_after_their_time(world: World) -> None:
    """Old ones are reaped with their output and create keys, young and live ones stay."""
    async with world.edge() as (edge, api):
        old, live = await api.create(key="old"), await api.create(key="live")
        await api.call("POST", f"/v1/sandboxes/{old['id']}/stop", {})
        await until(lambda: old["id"] in world.runtime.forgotten)
        world.clock.now = edge.core.records.sandbox(old["id"]).ended_at + 3600  # type: ignore[union-attr,operator]
        young = await api.create()
        await edge._reap()
        assert edge.core.records.sandbox(old["id"]) is not None
        world.clock.now += edge.core.config.tombstone_s
        await edge._reap()
        assert edge.core.records.sandbox(old["id"]) is None
        assert world.runtime.removed_output == [old["id"]]
        for each in (live, young):
            assert (await api.call("GET", f"/v1/sandboxes/{each['id']}"))["state"] == "running"


@pytest.mark.parametrize("jump_s", [-3e8, 3e8])
async def test_a_clock_that_jumps(world: World, jump_s: float) -> None:
    """Back or forward by years: live sandboxes stay, as do their layers and keys; what has ended may be forgotten
    early, or late, and nothing else follows from it.
    """
    async with world.edge() as (edge, api):
        live, ended = await api.create(key="live"), await api.create(key="ended")
        await api.call("POST", f"/v1/sandboxes/{ended['id']}/stop", {})
        await until(lambda: ended["id"] in world.runtime.forgotten)
        record = edge.core.records.sandbox(ended["id"])
        assert record is not None and record.ended_at is not None
        usual = record.ended_at
        world.clock.now = usual + jump_s
        await edge._reap()
        assert (edge.core.records.sandbox(ended["id"]) is None) is (jump_s > 0)
        assert (await api.call("GET", f"/v1/sandboxes/{live['id']}"))["state"] == "running"
        assert (await api.create(key="live"))["id"] == live["id"]
        assert edge.core.uses_layer(LAYER)
        await api.call("POST", f"/v1/sandboxes/{live['id']}/stop", {})
        world.clock.now = usual
    async with world.edge() as (edge, api):
        await edge._reap()
        assert (await api.create(key="live"))["id"] == live["id"]
        assert (await api.call("GET", f"/v1/sandboxes/{live['id']}"))["state"] == "stopped"
        assert (await api.create())["state"] == "running"


async def test_status_and_metrics(world: World) -> None:
    """Counts, what is requested, and the same numbers for Prometheus."""
    async with world.edge() as (_, api):
        await api.create(memory_mib=[100, 200])
        status = await api.call("GET", "/v1/status")
        assert status["sandboxes"]["running"] == 1
        assert status["requests"]["memory_bytes"] == 100 << 20
        assert {each["name"]: each["state"] for each in status["parts"]} == {"edge": "running", "runtime": "running"}
        async with api.session.get("http://edge/metrics") as answer:
            text = await answer.text()
        assert 'dsec_sandboxes{state="running"} 1.0' in text
        assert 'dsec_edge_events_total{kind="created",what="ok"} 1.0' in text


async def test_an_unknown_route(world: World) -> None:
    """A typed NotFound, as every failure."""
    async with world.edge() as (_, api):
        assert isinstance(await failing(api.call("GET", "/v1/nothing")), NotFound)
