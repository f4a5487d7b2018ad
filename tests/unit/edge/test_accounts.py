"""Usage added up: by label, job, principal and image, live and ended, each sandbox once."""

from __future__ import annotations

from typing import Any

import pytest

from dsec.backends.wire import SandboxUse
from dsec.edge.accounts import Sums, by_of
from dsec.errors import InvalidArgument
from dsec.testing.edge_world import World, failing, until

pytestmark = pytest.mark.anyio


async def usage(api: Any, query: str) -> dict[str | None, dict[str, Any]]:
    """The groups by key."""
    return {each["key"]: each for each in (await api.call("GET", f"/v1/usage?{query}"))["groups"]}


async def test_live_and_ended_are_added_up(world: World) -> None:
    """Two of a run, one of them stopped, and one without the label."""
    async with world.edge() as (_, api):
        one, _, _ = [await api.create(labels={"run": "7"}), await api.create(labels={"run": "7"}), await api.create()]
        await api.call("POST", f"/v1/sandboxes/{one['id']}/stop", {})
        by_run = await usage(api, "by=label:run")
        assert set(by_run) == {"7", None}
        run = by_run["7"]
        assert (run["sandboxes"], run["live"], run["cpu_s"]) == (2, 1, pytest.approx(0.002))
        assert run["memory_gib_s"] == pytest.approx(2 * 8192 / 2**30)
        assert run["disk_mib"] == pytest.approx(2 * 4096 / 2**20)
        assert run["read_bytes"] is None and run["written_bytes"] is None
        for by, key in (("principal", "alice"), ("image", "dsec/debian:12"), ("job", None)):
            assert (await usage(api, f"by={by}"))[key]["sandboxes"] == 3


async def test_since_leaves_out_what_ended_before(world: World) -> None:
    """By the time of the end; live ones always count."""
    async with world.edge() as (edge, api):
        old = await api.create()
        world.runtime.end_sandbox(old["id"], "idle")
        await until(lambda: not edge.core.live)
        ended_at = (await api.call("GET", f"/v1/sandboxes/{old['id']}"))["ended_at"]
        await api.create()
        assert (await usage(api, f"by=principal&since={ended_at}"))["alice"]["sandboxes"] == 2
        assert (await usage(api, f"by=principal&since={ended_at + 1}"))["alice"]["sandboxes"] == 1


async def test_pages_of_tombstones(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are, each is counted once."""
    monkeypatch.setattr("dsec.edge.usage_routes._PAGE", 2)
    async with world.edge() as (_, api):
        for _ in range(5):
            made = await api.create()
            await api.call("POST", f"/v1/sandboxes/{made['id']}/stop", {})
        assert (await usage(api, "by=principal"))["alice"]["sandboxes"] == 5


@pytest.mark.parametrize(
    "query", ["", "by=colour", "by=label:", "by=label", "by=job&since=yesterday", "by=job&since=-1"]
)
async def test_bad_questions(world: World, query: str) -> None:
    """What cannot be grouped by, or is no time."""
    async with world.edge() as (_, api):
        assert isinstance(await failing(api.call("GET", f"/v1/usage?{query}")), InvalidArgument)


async def test_measured_bytes_are_added_and_unmeasured_stay_unknown(world: World) -> None:
    """None beside a number is that number; None alone stays None: nothing is invented."""
    async with world.edge() as (edge, api):
        made = await api.create()
        record = edge.core.live[made["id"]]
        sums = Sums(by_of("image"))
        for read in (None, 5, None, 7):
            sums.add(record, SandboxUse(read_bytes=read), 0.0)
        (group,) = sums.groups()
        assert (group.read_bytes, group.written_bytes, group.sandboxes) == (12, None, 4)
