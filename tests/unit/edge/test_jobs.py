"""Jobs over a fake runtime: taken over, fenced everywhere, limited, lost, ended, and found again by the next edge."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dsec.api import ids
from dsec.errors import CapacityError, Conflict, Denied, DSecError, Fenced, InvalidArgument, SandboxGone
from dsec.testing.edge_world import IMAGE, Api, World, failing, until

pytestmark = pytest.mark.anyio


class Holder:
    """A trainer that holds a job."""

    def __init__(self, api: Api, info: dict[str, Any], principal: str = "alice") -> None:
        self.api, self.info, self.principal = api, info, principal
        self.claim = f"{info['name']};{info['fence']}"

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        """A request in the job's name."""
        return await self.api.call(method, path, body, principal=self.principal, job=self.claim)

    async def create(self, **fields: Any) -> dict[str, Any]:
        """A sandbox of the job."""
        body = {"image": IMAGE, "key": ids.new_key(), "job": self.info["name"]} | fields
        made = await self.call("POST", "/v1/sandboxes", body)
        assert isinstance(made, dict)
        return made

    async def beat(self) -> Any:
        """A sign of life."""
        return await self.api.call("POST", f"/v1/jobs/{self.info['name']}/heartbeat", {"fence": self.info["fence"]})


async def hold(api: Api, name: str = "train", principal: str = "alice", **fields: Any) -> Holder:
    """Take the job."""
    body = {"name": name, "holder": ids.new_key()} | fields
    return Holder(api, await api.call("POST", "/v1/jobs", body, principal=principal), principal)


async def test_every_call_of_a_fenced_holder_is_refused(world: World) -> None:
    """Create, exec, stop, info, files, heartbeat, end of the job: Fenced; the newer holder's all pass."""
    async with world.edge() as (_, api):
        old = await hold(api)
        made = await old.create()
        new = await hold(api)
        one = f"/v1/sandboxes/{made['id']}"
        calls: list[tuple[str, str, Any]] = [
            ("GET", one, None), ("GET", one + "/story", None), ("POST", one + "/stop", {}), ("DELETE", one, None),
            ("POST", one + "/pause", None), ("GET", one + "/files?path=/x", None), ("GET", "/v1/status", None),
            ("POST", "/v1/stop", {"job": "train"}),
            ("POST", "/v1/jobs/train/stop", None), ("GET", "/v1/sandboxes?job=train", None),
        ]  # fmt: skip
        for method, path, body in calls:
            assert isinstance(await failing(old.call(method, path, body)), Fenced), path
        assert isinstance(await failing(old.create()), Fenced)
        assert isinstance(await failing(old.beat()), Fenced)
        assert (await new.beat())["fence"] == new.info["fence"]
        found = (await new.call("GET", "/v1/sandboxes?job=train"))["sandboxes"]
        assert [(each["id"], each["job"]) for each in found] == [(made["id"], "train")]
        async with api.socket(job=old.claim) as socket:
            assert isinstance(await failing(socket.run(made["id"], b"true")), Fenced)
        async with api.socket(job=new.claim) as socket:
            end, _, _ = await socket.run(made["id"], b"true")
            assert end["exit_code"] == 0


async def test_a_takeover_hangs_up_on_the_old_holder(world: World) -> None:
    """Its WebSocket closes at once; the exec runs on, and the same key gives its result to the new holder."""
    async with world.edge() as (edge, api):
        old = await hold(api)
        made = await old.create()
        async with api.socket(job=old.claim) as socket:
            await socket.open("exec", sandbox_id=made["id"], key="k", argv=[b"sleep", b"9"], mode="collect")
            exec_id = ids.exec_id(made["id"], "k")
            await until(lambda: exec_id in world.runtime.sandboxes[made["id"]].execs)
            new = await hold(api)
            with pytest.raises(ConnectionError):
                while True:
                    await socket.frame()
        async with api.socket(job=new.claim) as socket:
            stream = await socket.open("exec", sandbox_id=made["id"], key="k", argv=[b"sleep", b"9"], mode="collect")
            await until(lambda: len(edge.relays) == 1)
            world.runtime.finish_exec(made["id"], exec_id, 5)
            end, _, _ = await socket.result(stream)
            assert end["exit_code"] == 5
        assert len(world.runtime.sandboxes[made["id"]].execs) == 1


async def test_what_an_old_holder_queued_leaves(world: World) -> None:
    """A create that waits when its holder is fenced gets Fenced and makes nothing; its key is the new holder's."""
    async with world.edge() as (edge, api):
        old = await hold(api, max_live=1)
        await old.create()
        waiting = asyncio.create_task(failing(old.create(key="the-key", deadline_s=60)))
        await until(lambda: len(edge.core.admission) == 1)
        new = await hold(api)
        assert isinstance(await waiting, Fenced)
        assert len(world.runtime.sandboxes) == 1 and len(edge.core.admission) == 0
        assert (await new.create(key="the-key"))["job"] == "train"


async def test_max_live(world: World) -> None:
    """A job at its limit queues, or is refused as on_full says, alone; one that ends lets the next in."""
    async with world.edge() as (edge, api):
        held = await hold(api, max_live=2)
        first, _ = await held.create(), await held.create()
        refused = await failing(held.create(on_full="raise"))
        assert isinstance(refused, CapacityError) and refused.details["field"] == "max_live"
        waiting = asyncio.create_task(held.create(deadline_s=60))
        await until(lambda: len(edge.core.admission) == 1)
        await api.create()
        info = await api.call("GET", "/v1/jobs/train")
        assert (info["live"], info["queued"], info["max_live"]) == (2, 1, 2)
        await held.call("POST", f"/v1/sandboxes/{first['id']}/stop", {})
        assert (await waiting)["job"] == "train"


async def test_max_live_counts_what_an_edge_finds(world: World) -> None:
    """After a restart of the edge the limit holds, and so does the fence."""
    async with world.edge() as (_, api):
        old = await hold(api)
        new = await hold(api, max_live=1)
        await new.create()
    async with world.edge() as (_, api):
        old.api = new.api = api
        assert isinstance(await failing(new.create(on_full="raise")), CapacityError)
        assert isinstance(await failing(old.beat()), Fenced)
        assert (await new.beat())["state"] == "held"


async def test_the_runtime_has_each_lease(world: World) -> None:
    """Taken, renewed and taken over, the lease is the runtime's; one that has forgotten it is told again."""
    async with world.edge() as (edge, api):
        held = await hold(api, lease_s=30, on_lost="pause")
        lease = world.runtime.leases["train"]
        assert lease == {"job": "train", "fence": held.info["fence"], "lease_ms": 30_000, "on_lost": "pause"}
        world.clock.now += 10
        assert (await held.beat())["expires_at"] == world.clock.now + 30
        world.runtime.leases.clear()
        world.clock.now += 10
        await world.runtime.drop_connections()
        await until(lambda: "train" in world.runtime.leases)
        assert world.runtime.leases["train"]["lease_ms"] == 20_000
        assert edge.core.records.jobs()[0].expires_at == world.clock.now + 20


async def test_a_lost_job(world: World) -> None:
    """Its sandboxes end with cause lease; a create of the same holder is a sign of life and takes the lease again."""
    async with world.edge() as (edge, api):
        held = await hold(api)
        made = await held.create()
        world.runtime.lose_job("train")
        await until(lambda: made["id"] not in edge.core.live)
        info = await held.call("GET", f"/v1/sandboxes/{made['id']}")
        assert (info["state"], info["cause"]) == ("stopped", "lease")
        await until(lambda: edge.core.records.jobs()[0].lost_at is not None)
        assert (await api.call("GET", "/v1/jobs/train"))["state"] == "lost"
        async with api.socket(job=held.claim) as socket:
            gone = await failing(socket.run(made["id"], b"true"))
            assert isinstance(gone, SandboxGone) and (gone.cause, gone.fault) == ("lease", "caller")
        await held.create()
        assert (await api.call("GET", "/v1/jobs/train"))["state"] == "held"


async def test_a_lost_job_that_pauses(world: World) -> None:
    """Its sandboxes are paused by the runtime, cause lease, and the next holder finds them so."""
    async with world.edge() as (edge, api):
        held = await hold(api, on_lost="pause")
        made = await held.create()
        world.runtime.lose_job("train")
        await until(lambda: edge.core.live[made["id"]].state == "paused")
        new = await hold(api)
        story = (await new.call("GET", f"/v1/sandboxes/{made['id']}/story"))["story"]
        assert (story[-1]["state"], story[-1]["cause"], story[-1]["actor"]) == ("paused", "lease", "runtime")


async def test_the_end_of_a_job(world: World) -> None:
    """Its sandboxes are stopped, others stay, its lease goes, its holder is fenced; ending it again is harmless."""
    async with world.edge() as (edge, api):
        held, other = await hold(api, max_live=2), await api.create()
        made = [await held.create() for _ in range(2)]
        waiting = asyncio.create_task(failing(held.create(deadline_s=60)))
        await until(lambda: len(edge.core.admission) == 1)
        report = await held.call("POST", "/v1/jobs/train/stop")
        assert sorted(report["stopped"]) == sorted(each["id"] for each in made) and report["failed"] == []
        assert isinstance(await waiting, Fenced)
        assert world.runtime.leases == {} and set(edge.core.live) == {other["id"]}
        assert (await held.call("POST", "/v1/jobs/train/stop"))["stopped"] == []
        assert isinstance(await failing(held.create()), Fenced)
        assert isinstance(await failing(held.beat()), Fenced)
        assert (await api.call("GET", "/v1/jobs"))["jobs"][0]["state"] == "ended"


async def test_a_create_that_is_starting_when_its_job_ends_is_stopped(world: World) -> None:
    """The end waits for what is under way, and stops it."""
    async with world.edge() as (edge, api):
        held = await hold(api)
        gate = world.runtime.hold("sandbox.create", "after")
        making = asyncio.create_task(held.create())
        await gate.reached.wait()
        ending = asyncio.create_task(api.call("POST", "/v1/jobs/train/stop"))
        await until(lambda: edge.core.records.jobs()[0].ended_at is not None)
        gate.open()
        made = await making
        assert (await ending)["stopped"] == [made["id"]]


async def test_who_may_do_what(world: World) -> None:
    """Another principal neither takes, ends nor speaks for a job; a create in a job needs its holder's number."""
    async with world.edge() as (_, api):
        held = await hold(api)
        stranger = Holder(api, held.info, "mallory")
        errors: list[tuple[DSecError, type[DSecError]]] = [
            (await failing(hold(api, principal="mallory")), Denied),
            (await failing(stranger.create()), Denied),
            (await failing(api.call("POST", "/v1/jobs/train/stop", principal="mallory")), Denied),
            (await failing(api.create(job="train")), InvalidArgument),
            (await failing(held.create(job="other")), InvalidArgument),
            (await failing(api.call("GET", "/v1/sandboxes", job="nonsense")), Conflict),
        ]
        for error, kind in errors:
            assert isinstance(error, kind), error


@pytest.mark.parametrize(
    "fields", [{"name": "a/b"}, {"name": ""}, {"lease_s": 0.5}, {"lease_s": 1e9}, {"max_live": 0}, {"holder": ""}]
)
async def test_bad_jobs(world: World, fields: dict[str, Any]) -> None:
    """Names, leases and limits that make no sense are InvalidArgument."""
    async with world.edge() as (edge, api):
        body = {"name": "train", "holder": "h"} | fields
        assert isinstance(await failing(api.call("POST", "/v1/jobs", body)), InvalidArgument)
        assert edge.core.records.jobs() == []


async def test_the_queue_is_fair_between_jobs(world: World) -> None:
    """A job's fifty creates do not keep another's first one waiting behind them."""
    async with world.edge() as (edge, api):
        greedy, modest = await hold(api, "greedy"), await hold(api, "modest")
        memory = (8192, 8192)
        first = await api.create(memory_mib=memory)
        served: list[str] = []

        async def wait(holder: Holder) -> None:
            made = await holder.create(memory_mib=memory, deadline_s=60)
            served.append(made["job"])
            await api.call("POST", f"/v1/sandboxes/{made['id']}/stop", {})

        tasks = [asyncio.create_task(wait(greedy)) for _ in range(6)]
        await until(lambda: len(edge.core.admission) == 6)
        tasks.append(asyncio.create_task(wait(modest)))
        await until(lambda: len(edge.core.admission) == 7)
        await api.call("POST", f"/v1/sandboxes/{first['id']}/stop", {})
        await asyncio.gather(*tasks)
        assert served[:2] == ["greedy", "modest"] and served.count("greedy") == 6


async def test_old_jobs_are_forgotten(world: World) -> None:
    """One that ended or was lost longer ago than a tombstone lives goes, its lease too; one that is held stays."""
    async with world.edge() as (edge, api):
        ended, _, held = await hold(api, "ended"), await hold(api, "lost", on_lost="pause"), await hold(api, "held")
        await ended.call("POST", "/v1/jobs/ended/stop")
        world.runtime.lose_job("lost")
        await until(lambda: edge.core.records.jobs()[2].lost_at is not None)
        far = max(world.clock.now, edge.core.records.jobs()[2].lost_at or 0.0) + 1
        await edge.jobs.reap(far)
        assert [each.name for each in edge.core.records.jobs()] == ["held"]
        assert set(world.runtime.leases) == {"held"}
        assert isinstance(await failing(ended.create()), Fenced)
        assert (await held.beat())["state"] == "held"
