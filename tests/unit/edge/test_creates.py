"""Creates over the fake runtime: one sandbox for each key, errors remembered or not, cancelling."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dsec.errors import (
    CapacityError,
    Conflict,
    DeadlineExceeded,
    ImageNotFound,
    InvalidArgument,
    NodeError,
    PlatformError,
    Unsupported,
)
from dsec.testing.edge_world import IMAGE, Api, World, failing, until

pytestmark = pytest.mark.anyio


async def test_a_key_makes_one_sandbox(world: World) -> None:
    """Same key and body: the same sandbox, even after its end; the runtime was asked once."""
    async with world.edge() as (_, api):
        first = await api.create(key="k")
        assert (await api.create(key="k", deadline_s=5))["id"] == first["id"]
        await api.call("POST", f"/v1/sandboxes/{first['id']}/stop", {})
        again = await api.create(key="k")
        assert (again["id"], again["state"]) == (first["id"], "stopped")
    assert len(world.runtime.called("sandbox.create")) == 1


async def test_another_body_is_a_conflict(world: World) -> None:
    """The key of one request cannot be used for another, before and after its end."""
    async with world.edge() as (_, api):
        gate = world.runtime.hold("sandbox.create")
        first = asyncio.create_task(api.create(key="k"))
        await gate.reached.wait()
        assert isinstance(await failing(api.create(key="k", cpu=1)), Conflict)
        gate.open()
        await first
        assert isinstance(await failing(api.create(key="k", cpu=1)), Conflict)


async def test_concurrent_creates_of_a_key_join(world: World) -> None:
    """Ten callers with one key get one sandbox from one call of the runtime."""
    async with world.edge() as (_, api):
        gate = world.runtime.hold("sandbox.create")
        callers = [asyncio.create_task(api.create(key="k")) for _ in range(10)]
        await gate.reached.wait()
        gate.open()
        assert len({made["id"] for made in await asyncio.gather(*callers)}) == 1
    assert len(world.runtime.called("sandbox.create")) == 1


async def test_a_lasting_error_is_remembered_and_a_retryable_one_is_not(world: World) -> None:
    """The runtime's refusal comes again without asking it; its failure is tried again."""
    async with world.edge() as (_, api):
        world.runtime.failures["sandbox.create"] = InvalidArgument("no such user", phase="user")
        for _ in range(2):
            error = await failing(api.create(key="bad"))
            assert isinstance(error, InvalidArgument)
            assert error.phase == "user"
        assert len(world.runtime.called("sandbox.create")) == 1
        world.runtime.failures["sandbox.create"] = NodeError("out of memory")
        assert isinstance(await failing(api.create(key="flaky")), NodeError)
        assert (await api.create(key="flaky"))["state"] == "running"
        found = await api.call("GET", "/v1/sandboxes")
        assert len(found["sandboxes"]) == 1


async def test_a_failed_create_leaves_nothing(world: World) -> None:
    """Name, share of the node and record of a failed create are given back."""
    async with world.edge() as (edge, api):
        world.runtime.failures["sandbox.create"] = PlatformError("a defect")
        assert isinstance(await failing(api.create(name="n")), PlatformError)
        assert edge.core.live == {}
        assert edge.core.admission.used.sandboxes == 0
        assert (await api.create(name="n"))["name"] == "n"


async def test_a_name_is_unique_among_the_live(world: World) -> None:
    """A second live sandbox of a name is a Conflict; after the first one's end the name is free."""
    async with world.edge() as (_, api):
        first = await api.create(name="n")
        assert isinstance(await failing(api.create(name="n")), Conflict)
        assert (await api.call("GET", "/v1/sandboxes/n"))["id"] == first["id"]
        await api.call("POST", "/v1/sandboxes/n/stop", {})
        second = await api.create(name="n")
        assert (await api.call("GET", "/v1/sandboxes/n"))["id"] == second["id"] != first["id"]


async def test_requests_above_the_node_are_refused_at_once(world: World) -> None:
    """Even an empty node could not give it: InvalidArgument with a remedy, not a wait."""
    async with world.edge() as (_, api):
        error = await failing(api.create(memory_mib=[1 << 20, 1 << 20]))
        assert isinstance(error, InvalidArgument)
        assert "memory_mib: the request of 1048576 is above" in error.message
        assert error.remedy is not None


async def test_a_full_node_raises_or_waits(world: World) -> None:
    """`raise` gives CapacityError at once with a position; `wait` is served when room comes."""
    async with world.edge() as (_, api):
        big: dict[str, Any] = {"memory_mib": [7000, 7000]}
        first = await api.create(**big)
        error = await failing(api.create(on_full="raise", **big))
        assert isinstance(error, CapacityError)
        assert error.retry_after_s is not None
        assert error.details["position"] == 0
        waiting = asyncio.create_task(api.create(**big))
        await until(lambda: len(world.runtime.called("sandbox.create")) == 1)
        await _queued(api, 1)
        await api.call("POST", f"/v1/sandboxes/{first['id']}/stop", {})
        assert (await waiting)["state"] == "running"


async def test_waiting_ends_at_the_deadline(world: World) -> None:
    """A node that stays full is a CapacityError, which may be tried again, and the queue is left."""
    async with world.edge() as (_, api):
        await api.create(memory_mib=[7000, 7000])
        error = await failing(api.create(memory_mib=[7000, 7000], deadline_s=0.1))
        assert isinstance(error, CapacityError)
        assert error.retryable
        await _queued(api, 0)


async def test_the_queue_takes_turns_between_principals(world: World) -> None:
    """Bob's one request is served before Alice's second, though it came last."""
    async with world.edge() as (_, api):
        big: dict[str, Any] = {"memory_mib": [7000, 7000]}
        held = await api.create(**big)
        order: list[str] = []

        async def wait(who: str, name: str) -> None:
            made = await api.create(principal=who, **big)
            order.append(name)
            await api.call("POST", f"/v1/sandboxes/{made['id']}/stop", {})

        tasks = []
        for number, (who, name) in enumerate([("alice", "a1"), ("alice", "a2"), ("bob", "b1")]):
            tasks.append(asyncio.create_task(wait(who, name)))
            await _queued(api, number + 1)
        await api.call("POST", f"/v1/sandboxes/{held['id']}/stop", {})
        await asyncio.gather(*tasks)
        assert order == ["a1", "b1", "a2"]


async def test_a_dropped_connection_leaves_the_queue(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that went away is not served; one that comes back with the key in time keeps its place."""
    monkeypatch.setattr("dsec.edge.creates._LEAVE_QUEUE_S", 0.05)
    async with world.edge() as (edge, api):
        await api.create(memory_mib=[7000, 7000])
        caller = asyncio.create_task(api.create(key="gone", memory_mib=[7000, 7000]))
        await _queued(api, 1)
        caller.cancel()
        await _queued(api, 0)
        assert ("default", "gone") not in edge.creates.under_way


async def test_cancelling_a_queued_create(world: World) -> None:
    """It leaves the queue; its caller gets a Conflict, and so does a later create with the key."""
    async with world.edge() as (_, api):
        await api.create(memory_mib=[7000, 7000])
        caller = asyncio.create_task(api.create(key="k", memory_mib=[7000, 7000]))
        await _queued(api, 1)
        assert (await api.call("DELETE", "/v1/creates/k"))["sandbox_id"] is None
        assert isinstance(await failing(caller), Conflict)
        await _queued(api, 0)
        assert isinstance(await failing(api.create(key="k", memory_mib=[7000, 7000])), Conflict)


async def test_cancelling_a_create_that_the_runtime_works_on(world: World) -> None:
    """It is undone: the runtime is told to stop it, and no record stays."""
    async with world.edge() as (edge, api):
        gate = world.runtime.hold("sandbox.create", "after")
        caller = asyncio.create_task(api.create(key="k"))
        await gate.reached.wait()
        await api.call("DELETE", "/v1/creates/k")
        assert isinstance(await failing(caller), Conflict)
        assert world.runtime.sandboxes == {}
        assert edge.core.live == {}
        gate.open()


async def test_cancelling_a_finished_create_stops_its_sandbox(world: World) -> None:
    """A cancellation that comes too late still leaves nothing running."""
    async with world.edge() as (_, api):
        made = await api.create(key="k")
        assert (await api.call("DELETE", "/v1/creates/k"))["sandbox_id"] == made["id"]
        assert (await api.call("GET", f"/v1/sandboxes/{made['id']}"))["state"] == "stopped"


async def test_cancelling_comes_before_the_create(world: World) -> None:
    """A delete that overtakes its create is remembered, also by the next edge."""
    async with world.edge() as (_, api):
        await api.call("DELETE", "/v1/creates/k")
    async with world.edge() as (_, api):
        assert isinstance(await failing(api.create(key="k")), Conflict)
    assert world.runtime.called("sandbox.create") == []


async def test_the_deadline_names_the_image(world: World) -> None:
    """While the image is pulled the deadline ends the call with phase `image`; the pull goes on for the next."""
    pulling, pulled = asyncio.Event(), asyncio.Event()

    async def pull(*_: Any) -> Any:
        pulling.set()
        await pulled.wait()

    world.programs["inspect"] = world.programs["pull"] = pull
    async with world.edge() as (_, api):
        error = await failing(api.create(image="alpine:3", key="k", deadline_s=0.2))
        assert isinstance(error, DeadlineExceeded)
        assert error.phase == "image"
        assert pulling.is_set()
        assert isinstance(await failing(api.create(image="alpine:3", key="k", deadline_s=0.1)), DeadlineExceeded)


async def test_an_unknown_image_is_typed(world: World) -> None:
    """Neither here nor to be pulled."""
    async with world.edge() as (_, api):
        assert isinstance(await failing(api.create(image="alpine:3", pull="never")), ImageNotFound)


async def test_what_waits_and_what_is_unknown_is_unsupported(world: World) -> None:
    """A field that is not built, and one that does not exist, are refused by name."""
    async with world.edge() as (_, api):
        error = await failing(api.create(qos="batch"))
        assert isinstance(error, Unsupported)
        assert "qos" in error.message
        error = await failing(api.create(gang=True))
        assert isinstance(error, Unsupported)
        assert "gang" in error.message


async def test_a_missing_kernel_feature_refuses_creates(world: World) -> None:
    """The probe's reason is the answer."""
    world.runtime.features = [
        {"name": "id-mapped mounts", "present": False, "detail": "Linux 5.10", "lost": "sandboxes", "remedy": ""},
        {"name": "pre-content events", "present": False, "detail": "", "lost": "", "remedy": ""},
    ]
    async with world.edge() as (edge, api):
        await until(lambda: edge.core.refusal is not None)
        error = await failing(api.create())
        assert isinstance(error, Unsupported)
        assert "id-mapped mounts" in error.message
        assert "pre-content" not in error.message


async def test_a_node_that_goes_down_refuses_creates(world: World) -> None:
    """While `dsec down` runs, creates are refused and may be tried again."""
    async with world.edge() as (_, api):
        world.config.paths.draining.touch()
        assert isinstance(await failing(api.create()), CapacityError)


async def test_the_main_process_is_the_sandbox(world: World) -> None:
    """Its end stops the sandbox, its code is the sandbox's, its result is recorded as its own."""
    async with world.edge() as (edge, api):
        made = await api.create(command=["7"], image=IMAGE)
        await until(lambda: made["id"] not in edge.core.live)
        info = await api.call("GET", f"/v1/sandboxes/{made['id']}")
        assert (info["state"], info["cause"], info["exit_code"]) == ("stopped", "main-exited", 0)
        assert info["started_at"] is not None
        exec_ = await api.call("GET", f"/v1/sandboxes/{made['id']}/execs/{made['main_exec_id']}")
        assert (exec_["argv"], exec_["ended"]) == (["echo", "7"], "exited")


async def _queued(api: Api, count: int) -> None:
    async with asyncio.timeout(5):
        while (await api.call("GET", "/v1/status"))["queued"] != count:  # noqa: ASYNC110  (nothing tells of it)
            await asyncio.sleep(0.001)


async def test_refusals_speak_the_users_units(world: World) -> None:
    """What is impossible, or does not fit now, is named as the field that was given, in its unit, with what to do."""
    async with world.edge() as (_, api):
        above = await failing(api.create(memory_mib=[40_960, 40_960]))
        assert "memory_mib: the request of 40960 is above what this node has" in str(above) and above.remedy
        for fields in ({"cpu": -1}, {"pids": 1e12}, {"memory_mib": 1}, {"disk_mib": [5, 4]}):
            refused = await failing(api.create(**fields))
            assert isinstance(refused, InvalidArgument) and refused.remedy, fields
        await api.create(memory_mib=[5000, 5000])
        full = await failing(api.create(memory_mib=[5000, 5000], on_full="raise"))
        late = await failing(api.create(memory_mib=[5000, 5000], deadline_s=0.05))
        assert "(memory_mib)" in str(full) and full.remedy and late.remedy
