"""Crashes of the edge at each recorded step, and of the runtime under it: nothing is lost, nothing is done twice."""

from __future__ import annotations

import asyncio
import contextlib

import aiohttp
import pytest

from dsec.edge.records import Records
from dsec.errors import DSecError, NodeError, OutcomeUnknown, Unsupported
from dsec.testing.edge_world import World, failing, until

pytestmark = pytest.mark.anyio

LOST = (DSecError, aiohttp.ClientError)


async def _crash_in_create(world: World, when: str) -> None:
    """Crash the edge while the runtime is held `before` or `after` it makes a sandbox with the key `k`."""
    gate = world.runtime.hold("sandbox.create", when)
    async with world.edge() as (_, api):
        caller = asyncio.create_task(api.create(key="k", name="n"))
        await gate.reached.wait()
    with contextlib.suppress(*LOST):
        await caller
    await world.runtime.drop_connections()


async def test_crash_after_the_intent(world: World) -> None:
    """The intent is recorded, the runtime has made nothing: the next edge makes it, and the key finds it."""
    await _crash_in_create(world, "before")
    assert world.runtime.sandboxes == {}
    async with world.edge() as (_, api):
        made = await api.create(key="k", name="n")
        assert made["state"] == "running"
        assert list(world.runtime.sandboxes) == [made["id"]]


async def test_crash_before_running_is_recorded(world: World) -> None:
    """The runtime has made it, the edge does not know: it is adopted, not made again."""
    await _crash_in_create(world, "after")
    (sandbox_id,) = world.runtime.sandboxes
    async with world.edge() as (_, api):
        made = await api.create(key="k", name="n")
        assert (made["id"], made["state"]) == (sandbox_id, "running")
    assert len(world.runtime.called("sandbox.create")) == 1


async def test_crash_after_the_cancellation_is_recorded(world: World) -> None:
    """A create that was cancelled just before the crash is undone by the next edge."""
    await _crash_in_create(world, "after")
    records = Records(world.config.paths.node_db)
    records.cancel_create("default", "k", 1.0)
    records.close()
    async with world.edge() as (edge, _):
        assert world.runtime.sandboxes == {}
        assert edge.core.live == {}


async def test_a_create_that_cannot_be_finished_is_undone(world: World) -> None:
    """The runtime refuses it now: no record stays, and the key is free."""
    await _crash_in_create(world, "before")
    world.runtime.failures["sandbox.create"] = NodeError("no")
    async with world.edge() as (edge, api):
        assert edge.core.live == {}
        assert (await api.create(key="k", name="n"))["state"] == "running"


async def test_a_running_sandbox_is_adopted_with_its_share(world: World) -> None:
    """After a crash the sandbox has its name, its share of the node, and takes execs."""
    async with world.edge() as (_, api):
        made = await api.create(name="n", memory_mib=[7000, 7000])
    async with world.edge() as (edge, api):
        assert edge.core.admission.used.memory_bytes == 7000 << 20
        assert (await api.call("GET", "/v1/sandboxes/n"))["id"] == made["id"]
        async with api.socket() as socket:
            end, _, _ = await socket.run(made["id"], b"true")
            assert end["exit_code"] == 0


async def test_an_end_while_the_edge_was_away(world: World) -> None:
    """It is recorded with its true cause, and forgotten by the runtime only then."""
    async with world.edge() as (_, api):
        made = await api.create()
    world.runtime.end_sandbox(made["id"], "idle")
    async with world.edge() as (edge, api):
        info = await api.call("GET", f"/v1/sandboxes/{made['id']}")
        assert (info["state"], info["cause"]) == ("stopped", "idle")
        await until(lambda: made["id"] in world.runtime.forgotten)
        assert edge.core.live == {}


async def test_crash_between_the_end_and_forgetting(world: World) -> None:
    """The end is recorded, the runtime was not told: the next edge tells it."""
    gate = world.runtime.hold("sandbox.forget")
    async with world.edge() as (_, api):
        made = await api.create()
        await api.call("POST", f"/v1/sandboxes/{made['id']}/stop", {})
        await gate.reached.wait()
    await world.runtime.drop_connections()
    assert made["id"] in world.runtime.sandboxes
    async with world.edge():
        await until(lambda: made["id"] not in world.runtime.sandboxes)


async def test_crash_while_an_exec_runs(world: World) -> None:
    """The exec runs on; its result, unheard by anybody, is recorded by the next edge and acknowledged then."""
    async with world.edge() as (_, api):
        made = await api.create()
        async with api.socket() as socket:
            await socket.open("exec", sandbox_id=made["id"], key="e", argv=[b"sleep"], mode="detach")
            await socket.frame()
    (exec_id,) = world.runtime.sandboxes[made["id"]].execs
    world.runtime.finish_exec(made["id"], exec_id, 5)
    async with world.edge() as (_, api):
        info = await api.call("GET", f"/v1/sandboxes/{made['id']}/execs/{exec_id}")
        assert (info["ended"], info["exit_code"]) == ("exited", 5)
        await until(lambda: world.runtime.sandboxes[made["id"]].execs[exec_id].acked)


async def test_crash_between_an_execs_intent_and_its_start(world: World) -> None:
    """The runtime never saw it: the same key starts it, once."""
    async with world.edge() as (_, api):
        made = await api.create()
        gate = world.runtime.hold("exec.start")
        async with api.socket() as socket:
            await socket.open("exec", sandbox_id=made["id"], key="e", argv=[b"true"])
            await gate.reached.wait()
    await world.runtime.drop_connections()
    assert world.runtime.sandboxes[made["id"]].execs == {}
    async with world.edge() as (_, api), api.socket() as socket:
        end, _, _ = await socket.run(made["id"], b"true", key="e")
        assert end["exit_code"] == 0
    assert len(world.runtime.sandboxes[made["id"]].execs) == 1


async def test_the_keepers_death_loses_sandboxes_with_the_reason(world: World) -> None:
    """Running sandboxes are lost(keeper); their running execs are OutcomeUnknown, the node's fault."""
    async with world.edge() as (_, api):
        made = await api.create()
        async with api.socket() as socket:
            await socket.open("exec", sandbox_id=made["id"], key="e", argv=[b"sleep"], mode="detach")
            await socket.frame()
    world.runtime.lose_all()
    async with world.edge() as (_, api):
        info = await api.call("GET", f"/v1/sandboxes/{made['id']}")
        assert (info["state"], info["cause"]) == ("lost", "keeper")
        async with api.socket() as socket:
            error = await failing(socket.run(made["id"], b"sleep", key="e"))
        assert isinstance(error, OutcomeUnknown)
        assert error.is_infra


async def test_a_new_boot_loses_everything_and_remembers_it(world: World) -> None:
    """Records of another boot go to the catalogue as lost(reboot)."""
    async with world.edge() as (_, api):
        made = await api.create(labels={"run": "7"})
    world.runtime.lose_all()
    world.boot("boot-2")
    async with world.edge() as (edge, api):
        error = await failing(api.call("GET", f"/v1/sandboxes/{made['id']}"))
        assert error.code == "not_found"
        assert error.details["cause"] == "reboot"
        past = edge.core.catalogue.find(made["id"])
        assert past is not None
        assert past.labels == {"run": "7"}


async def test_an_unknown_sandbox_of_the_runtime_is_ended(world: World) -> None:
    """What no record knows is nobody's, and would never be stopped."""
    async with world.edge() as (_, api):
        made = await api.create()
    for path in world.config.paths.data.glob("node.db*"):
        path.unlink()
    async with world.edge():
        await until(lambda: made["id"] not in world.runtime.sandboxes)


async def test_the_runtime_restarts_under_the_edge(world: World) -> None:
    """WebSockets close with 1012, calls in flight fail retryably, then everything works on."""
    async with world.edge() as (edge, api):
        made = await api.create()
        async with api.socket() as socket:
            await socket.run(made["id"], b"true")
            await world.runtime.stop()
            with pytest.raises(ConnectionError, match="1012"):
                await socket.frame()
        await until(lambda: not edge.core.link.connected)
        await world.runtime.start()
        await until(lambda: edge.core.link.connected)
        async with api.socket() as socket:
            end, _, _ = await socket.run(made["id"], b"true")
            assert end["exit_code"] == 0


async def test_the_runtime_restarts_in_the_middle_of_a_create(world: World) -> None:
    """The edge asks again by the same ID as soon as the link is back; the caller notices nothing."""
    async with world.edge() as (_, api):
        gate = world.runtime.hold("sandbox.create", "after")
        caller = asyncio.create_task(api.create())
        await gate.reached.wait()
        await world.runtime.stop()
        await world.runtime.start()
        made = await caller
        assert made["state"] == "running"
        assert list(world.runtime.sandboxes) == [made["id"]]


async def test_an_end_told_while_the_link_was_down(world: World) -> None:
    """The runtime's event went nowhere; the comparison after reconnecting finds the end."""
    async with world.edge() as (edge, api):
        made = await api.create()
        await world.runtime.stop()
        world.runtime.end_sandbox(made["id"], "lifetime")
        await world.runtime.start()
        await until(lambda: made["id"] not in edge.core.live)
        assert (await api.call("GET", f"/v1/sandboxes/{made['id']}"))["cause"] == "lifetime"


async def test_runtime_of_another_version(world: World) -> None:
    """A runtime that lacks a method does not kill the edge: creates are refused by its reason, reads answer on."""
    async with world.edge() as (edge, api):
        made = await api.create()
        world.runtime.failures["tool.list"] = Unsupported('unknown method "tool.list"')
        await world.runtime.drop_connections()
        await until(lambda: edge.core.refusal is not None)
        refused = await failing(api.create())
        assert isinstance(refused, Unsupported) and "another version" in str(refused) and "tool.list" in str(refused)
        assert (await api.call("GET", f"/v1/sandboxes/{made['id']}"))["state"] == "running"
        status = await api.call("GET", "/v1/status")
        assert "tool.list" in status["parts"][1]["refusal"]
