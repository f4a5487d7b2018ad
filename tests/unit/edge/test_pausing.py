"""Pausing over a fake runtime: recorded once, by whoever asked; noted when nobody asked; made up for if unheard."""

from __future__ import annotations

import pytest

from dsec.errors import Conflict, NotFound, SandboxGone
from dsec.testing.edge_world import World, failing, until

pytestmark = pytest.mark.anyio


async def test_pause_and_resume_are_recorded_once(world: World) -> None:
    """The story has each transition once, with its asker, however often it is asked and told."""
    async with world.edge() as (_, api):
        made = await api.create()
        path = f"/v1/sandboxes/{made['id']}"
        for _ in range(2):
            paused = await api.call("POST", path + "/pause", principal="bob")
            assert (paused["id"], paused["partial"]) == (made["id"], False)
        assert (await api.call("GET", path))["state"] == "paused"
        for _ in range(2):
            await api.call("POST", path + "/resume")
        story = (await api.call("GET", path + "/story"))["story"]
        assert [each["state"] for each in story] == ["creating", "running", "paused", "running"]
        assert (story[2]["actor"], story[3]["actor"]) == ("bob", "alice")


async def test_an_exec_resumes(world: World) -> None:
    """What the runtime tells of itself is noted as the runtime's."""
    async with world.edge() as (_, api), api.socket() as socket:
        made = await api.create()
        path = f"/v1/sandboxes/{made['id']}"
        await api.call("POST", path + "/pause")
        await socket.run(made["id"], b"echo", b"hi")
        story = (await api.call("GET", path + "/story"))["story"]
        assert (story[-1]["state"], story[-1]["cause"], story[-1]["actor"]) == ("running", "exec", "runtime")


async def test_what_happened_unheard_is_found(world: World) -> None:
    """A sandbox that was paused, or resumed, while no edge lived is so recorded by the next."""
    async with world.edge() as (_, api):
        one, two = await api.create(), await api.create()
        await api.call("POST", f"/v1/sandboxes/{two['id']}/pause")
    world.runtime.sandboxes[one["id"]].paused = True
    world.runtime.sandboxes[two["id"]].paused = False
    async with world.edge() as (_, api):
        assert (await api.call("GET", f"/v1/sandboxes/{one['id']}"))["state"] == "paused"
        assert (await api.call("GET", f"/v1/sandboxes/{two['id']}"))["state"] == "running"


async def test_a_pause_that_something_undid_is_a_conflict(world: World) -> None:
    """An exec that came while everything was being stopped has resumed it: the caller is told."""
    async with world.edge() as (edge, api):
        made = await api.create()
        freeze = world.runtime._sandbox_freeze
        undone = {"paused": False, "whole": False, "waited_ns": 5}
        world.runtime._sandbox_freeze = lambda params: freeze(params) | undone  # type: ignore[method-assign]
        path = f"/v1/sandboxes/{made['id']}"
        assert isinstance(await failing(api.call("POST", path + "/pause")), Conflict)
        del world.runtime._sandbox_freeze
        world.runtime.end_sandbox(made["id"], "idle")
        await until(lambda: made["id"] not in edge.core.live)
        for what in ("pause", "resume"):
            assert isinstance(await failing(api.call("POST", f"{path}/{what}")), SandboxGone)
        assert isinstance(await failing(api.call("POST", "/v1/sandboxes/nobody/pause")), NotFound)


async def test_a_paused_sandbox_that_vanishes_is_lost(world: World) -> None:
    """Paused is a way of living: recovery treats it as running."""
    async with world.edge() as (_, api):
        made = await api.create()
        await api.call("POST", f"/v1/sandboxes/{made['id']}/pause")
    world.runtime.lose_all()
    async with world.edge() as (_, api):
        assert (await api.call("GET", f"/v1/sandboxes/{made['id']}"))["state"] == "lost"
