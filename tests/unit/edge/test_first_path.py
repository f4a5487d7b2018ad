"""The whole path over the fake runtime: create, exec, read back, stop."""

from __future__ import annotations

import pytest

from dsec.testing.edge_world import World

pytestmark = pytest.mark.anyio


async def test_create_exec_stop(world: World) -> None:
    """A sandbox is made, runs a program with the merged environment, and its stop is confirmed."""
    async with world.edge() as (_, api):
        made = await api.create(env={"FROM": "caller"}, labels={"a": "b"})
        assert made["state"] == "running"
        async with api.socket() as socket:
            end, output, items = await socket.run(made["id"], b"echo", b"hi")
            assert (end["exit_code"], output[1]) == (0, b"hi\n")
            assert items[0]["started_at"] > 0
            _, output, _ = await socket.run(made["id"], shell="env", env={"MORE": "1"})
            assert output[1].split() == [b"FROM=caller", b"LANG=C", b"MORE=1", b"PATH=/bin"]
        stopped = await api.call("POST", f"/v1/sandboxes/{made['id']}/stop", {})
        assert (stopped["cause"], stopped["processes"]) == ("stopped", 0)
        story = (await api.call("GET", f"/v1/sandboxes/{made['id']}/story"))["story"]
        assert [each["state"] for each in story] == ["creating", "running", "stopped"]
