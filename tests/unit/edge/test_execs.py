"""Execs through the WebSocket: once for each key, results recorded before they are told, readable after the end."""

from __future__ import annotations

import asyncio

import pytest

from dsec.api import ids
from dsec.errors import Conflict, ExecutableNotFound, InvalidArgument, NodeError, NotFound, SandboxGone, Unsupported
from dsec.testing.edge_world import World, failing, until

pytestmark = pytest.mark.anyio


async def test_a_key_runs_once(world: World) -> None:
    """The second exec of a key gets the first one's output and result; the program ran once."""
    async with world.edge() as (edge, api), api.socket() as socket:
        made = await api.create()
        first = await socket.run(made["id"], b"echo", b"hi", key="e")
        again = await socket.run(made["id"], b"echo", b"hi", key="e")
        assert again[0] == first[0]
        assert again[1] == first[1]
        assert edge.core.counters["execs", "started"] == 1
    assert len(world.runtime.called("exec.start")) == 1


async def test_a_key_that_runs_is_attached(world: World) -> None:
    """While the first runs, a second exec of its key waits for the same end."""
    async with world.edge() as (_, api):
        made = await api.create()
        exec_id = ids.exec_id(made["id"], "e")
        async with api.socket() as one, api.socket() as two:
            runs = [asyncio.create_task(each.run(made["id"], b"sleep", key="e")) for each in (one, two)]
            await until(lambda: len(world.runtime.called("exec.start")) == 2)
            assert len(world.runtime.sandboxes[made["id"]].execs) == 1
            world.runtime.finish_exec(made["id"], exec_id, 3)
            assert [(await each)[0]["exit_code"] for each in runs] == [3, 3]


async def test_another_body_is_a_conflict(world: World) -> None:
    """A key belongs to one program."""
    async with world.edge() as (_, api), api.socket() as socket:
        made = await api.create()
        await socket.run(made["id"], b"true", key="e")
        assert isinstance(await failing(socket.run(made["id"], b"false", key="e")), Conflict)


async def test_the_result_is_recorded_before_it_is_told(world: World) -> None:
    """As soon as the client has the end, HTTP has it too, and the runtime is told that it is committed."""
    async with world.edge() as (_, api), api.socket() as socket:
        made = await api.create()
        end, _, _ = await socket.run(made["id"], b"exit", b"9", key="e")
        info = await api.call("GET", f"/v1/sandboxes/{made['id']}/execs/{end['exec_id']}")
        assert (info["exit_code"], info["ended"], info["argv"]) == (9, "exited", ["exit", "9"])
        await until(lambda: world.runtime.sandboxes[made["id"]].execs[end["exec_id"]].acked)


async def test_a_detached_exec_is_recorded_by_its_event(world: World) -> None:
    """`detach` ends at once with the start; the end comes by the runtime's event."""
    async with world.edge() as (_, api), api.socket() as socket:
        made = await api.create()
        end, _, _ = await socket.run(made["id"], b"sleep", key="e", mode="detach")
        assert list(end) == ["started_at"]
        exec_id = ids.exec_id(made["id"], "e")
        path = f"/v1/sandboxes/{made['id']}/execs/{exec_id}"
        assert (await api.call("GET", path))["ended"] is None
        world.runtime.finish_exec(made["id"], exec_id, 4)
        await until(lambda: world.runtime.sandboxes[made["id"]].execs[exec_id].acked)
        assert (await api.call("GET", path))["exit_code"] == 4


async def test_a_program_that_does_not_exist(world: World) -> None:
    """ExecutableNotFound, remembered for its key."""
    async with world.edge() as (_, api), api.socket() as socket:
        made = await api.create()
        for _ in range(2):
            assert isinstance(await failing(socket.run(made["id"], b"missing", key="e")), ExecutableNotFound)
    assert len(world.runtime.called("exec.start")) == 1


async def test_a_retryable_refusal_leaves_no_trace(world: World) -> None:
    """The same key may start it afterwards."""
    async with world.edge() as (_, api), api.socket() as socket:
        made = await api.create()
        world.runtime.failures["exec.start"] = NodeError("no room", phase="clone")
        assert isinstance(await failing(socket.run(made["id"], b"true", key="e")), NodeError)
        assert (await api.call("GET", f"/v1/sandboxes/{made['id']}/execs"))["execs"] == []
        end, _, _ = await socket.run(made["id"], b"true", key="e")
        assert end["exit_code"] == 0


async def test_stopping_the_sandbox_is_told_to_its_execs(world: World) -> None:
    """A running exec gets SandboxGone(stopped), the caller's fault; so does a new one."""
    async with world.edge() as (_, api), api.socket() as socket:
        made = await api.create()
        stream = await socket.open("exec", sandbox_id=made["id"], key="e", argv=[b"sleep"])
        await socket.frame()
        await api.call("POST", f"/v1/sandboxes/{made['id']}/stop", {})
        error = await failing(socket.result(stream))
        assert isinstance(error, SandboxGone)
        assert (error.cause, error.fault) == ("stopped", "caller")
        error = await failing(socket.run(made["id"], b"true"))
        assert isinstance(error, SandboxGone)
        (listed,) = (await api.call("GET", f"/v1/sandboxes/{made['id']}/execs"))["execs"]
        assert (listed["ended"], listed["error"]["code"]) == (None, "sandbox_gone")


async def test_results_are_read_after_the_end_of_the_sandbox(world: World) -> None:
    """Attach by ID and the same key both give the kept output and the recorded result, also to the next edge."""
    async with world.edge() as (_, api), api.socket() as socket:
        made = await api.create()
        first = await socket.run(made["id"], b"echo", b"kept", key="e")
        await api.call("POST", f"/v1/sandboxes/{made['id']}/stop", {})
        await until(lambda: made["id"] in world.runtime.forgotten)
    async with world.edge() as (_, api), api.socket() as socket:
        exec_id = first[0]["exec_id"]
        stream = await socket.open("attach", sandbox_id=made["id"], exec_id=exec_id, mode="collect")
        end, output, _ = await socket.result(stream)
        assert (end, output[1]) == (first[0], b"kept\n")
        again = await socket.run(made["id"], b"echo", b"kept", key="e")
        assert again[0] == first[0]


async def test_killing(world: World) -> None:
    """A kill is confirmed and its exec is `cancelled`; a signal is `signalled`; an ended exec stays as it is."""
    async with world.edge() as (_, api), api.socket() as socket:
        made = await api.create()
        for key, body, ended in (("a", {}, "cancelled"), ("b", {"signal": 10}, "signalled")):
            stream = await socket.open("exec", sandbox_id=made["id"], key=key, argv=[b"sleep"])
            await socket.frame()
            path = f"/v1/sandboxes/{made['id']}/execs/{ids.exec_id(made['id'], key)}"
            await api.call("POST", path + "/kill", body)
            end, _, _ = await socket.result(stream)
            assert end["ended"] == ended
            await api.call("POST", path + "/kill", {})
            assert (await api.call("GET", path))["ended"] == ended


async def test_kills_on_the_websocket(world: World) -> None:
    """They answer in any order, as by HTTP: confirmed, a signal, first, over already, and what is malformed."""
    async with world.edge() as (_, api), api.socket() as socket:
        made = await api.create()
        sandbox_id = made["id"]

        def named(key: str) -> dict[str, str]:
            return {"sandbox_id": sandbox_id, "exec_id": ids.exec_id(sandbox_id, key)}

        for key, fields, ended in (("a", {}, "cancelled"), ("b", {"signal": 10}, "signalled")):
            stream = await socket.open("exec", sandbox_id=sandbox_id, key=key, argv=[b"sleep"])
            await socket.frame()
            kill = await socket.open("kill", **named(key), **fields)
            ends = {frame[0]: frame[2] for frame in [await socket.frame(), await socket.frame()]}
            assert ends[kill] == {} and ends[stream]["ended"] == ended
            assert (await socket.result(await socket.open("kill", **named(key))))[0] == {}
        assert (await socket.result(await socket.open("kill", **named("c"))))[0] == {}
        end, output, _ = await socket.run(sandbox_id, b"echo", b"no", key="c")
        assert (end["ended"], output[1]) == ("cancelled", b"")
        for wrong in ({"signal": 65}, {"grace_s": -1}, {"exec_id": "x"}):
            refused = socket.result(await socket.open("kill", **(named("a") | wrong)))
            assert isinstance(await failing(refused), InvalidArgument)
        assert isinstance(await failing(socket.result(await socket.open("kill", **named("a"), x=1))), Unsupported)


async def test_a_kill_that_comes_first_is_remembered(world: World) -> None:
    """The exec that comes later ends `cancelled`, unrun."""
    async with world.edge() as (_, api), api.socket() as socket:
        made = await api.create()
        await api.call("POST", f"/v1/sandboxes/{made['id']}/execs/{ids.exec_id(made['id'], 'e')}/kill", {})
        end, output, _ = await socket.run(made["id"], b"echo", b"no", key="e")
        assert (end["ended"], output[1]) == ("cancelled", b"")


async def test_what_does_not_exist(world: World) -> None:
    """Unknown sandboxes and execs are NotFound, malformed IDs InvalidArgument."""
    async with world.edge() as (_, api), api.socket() as socket:
        made = await api.create()
        assert isinstance(await failing(socket.run("sb-test-" + "a" * 26, b"true")), NotFound)
        path = f"/v1/sandboxes/{made['id']}/execs/"
        assert isinstance(await failing(api.call("GET", path + "a" * 26)), NotFound)
        assert isinstance(await failing(api.call("GET", path + "x")), InvalidArgument)
