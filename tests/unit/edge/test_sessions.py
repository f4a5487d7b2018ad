"""Sessions at the edge: requests completed, runs made once per key, outcomes kept."""

from __future__ import annotations

import hashlib

import pytest

from dsec.api import frames, ids
from dsec.errors import Conflict, InvalidArgument, NotFound, OutcomeUnknown, SandboxGone, Unsupported
from dsec.testing.edge_world import Socket, World, failing, until

pytestmark = pytest.mark.anyio


async def opened(socket: Socket, sandbox_id: str, key: str = "s", **fields: object) -> str:
    """The ID of a session that has been opened."""
    end, _, _ = await socket.result(await socket.open("session.open", sandbox_id=sandbox_id, key=key, **fields))
    assert "started_at" in end
    return ids.exec_id(sandbox_id, key)


async def run(socket: Socket, sandbox_id: str, session_id: str, script: bytes, key: str) -> tuple[object, ...]:
    """(exit code, standard output, closed) of a run."""
    stream = await socket.open("session.run", sandbox_id=sandbox_id, session_id=session_id, script=script, key=key)
    output = b""
    while (frame := await socket.frame())[1] == frames.Kind.DATA or frame[1] == frames.Kind.UNTIL:
        output += frame[4] if frame[1] == frames.Kind.DATA else b""
    assert frame[0] == stream
    if frame[1] == frames.Kind.ERROR:
        from dsec.errors import error_from_wire

        raise error_from_wire(frame[2])
    return frame[2]["exit_code"], output, frame[2]["closed"]


async def test_a_session_is_an_exec_with_defaults(world: World) -> None:
    """The shell gets what an exec gets (image's environment, user, directory) and stands in the list of execs."""
    async with world.edge() as (_, api), api.socket() as socket:
        made = await api.create(env={"A": "1"})
        session_id = await opened(socket, made["id"], env={"B": "2"})
        sent = world.runtime.called("session.open")[0]
        assert (sent["exec_id"], sent["mode"], sent["user"], sent["cwd"]) == (session_id, "detach", "app", b"/srv")
        assert {b"A=1", b"B=2", b"FROM=image"} <= set(sent["env"])
        assert sent["programs"] == [b"/bin/bash", b"/bin/sh"] and sent["argv"] == [b""]
        listed = await api.call("GET", f"/v1/sandboxes/{made['id']}/execs")
        assert [each["id"] for each in listed["execs"]] == [session_id]
        await opened(socket, made["id"], key="own", shell=[b"/tmp/busybox", b"sh"])
        sent = world.runtime.called("session.open")[1]
        assert sent["programs"] is None and sent["argv"] == [b"/tmp/busybox", b"sh"]


async def test_a_key_is_one_session_and_one_run(world: World) -> None:
    """The same key and body join, another body is a Conflict, for sessions and for runs."""
    async with world.edge() as (_, api), api.socket() as socket:
        made = await api.create()
        session_id = await opened(socket, made["id"])
        assert await opened(socket, made["id"]) == session_id
        again = await socket.open("session.open", sandbox_id=made["id"], key="s", cwd="/")
        assert isinstance(await failing(socket.result(again)), Conflict)
        for _ in range(2):
            assert await run(socket, made["id"], session_id, b"echo a", "one") == (0, b"a\n", False)
        assert await run(socket, made["id"], session_id, b"echo b", "two") == (0, b"b\n", False)
        assert isinstance(await failing(run(socket, made["id"], session_id, b"echo c", "two")), Conflict)
        scripts = world.runtime.sandboxes[made["id"]].sessions[session_id].scripts
        assert scripts == [b"echo a", b"echo b"]


async def test_merging_is_part_of_a_run(world: World) -> None:
    """It is passed on, and told again; the same key without it is another run."""
    async with world.edge() as (_, api), api.socket() as socket:
        made = await api.create()
        session_id = await opened(socket, made["id"])
        names = {"sandbox_id": made["id"], "session_id": session_id, "key": "k", "script": b"echo a >&2"}
        for _ in range(2):
            stream = await socket.open("session.run", **names, merge_stderr=True)
            while (frame := await socket.frame())[1] != frames.Kind.END:
                pass
            assert frame[0] == stream
            assert (frame[2]["merged"], frame[2]["stdout_total"], frame[2]["stderr_total"]) == (True, 2, 0)
        assert isinstance(await failing(socket.result(await socket.open("session.run", **names))), Conflict)


async def test_results_outlive_edge_session_and_sandbox(world: World) -> None:
    """After a crash of the edge, the end of the shell and the stop of the sandbox a run's result is still found."""
    async with world.edge() as (_, api), api.socket() as socket:
        made = await api.create()
        session_id = await opened(socket, made["id"])
        assert await run(socket, made["id"], session_id, b"echo a", "one") == (0, b"a\n", False)
    async with world.edge() as (_, api), api.socket() as socket:
        assert await run(socket, made["id"], session_id, b"echo a", "one") == (0, b"a\n", False)
        assert await run(socket, made["id"], session_id, b"exit 4", "two") == (4, b"", True)
        closed = await failing(run(socket, made["id"], session_id, b"true", "three"))
        assert isinstance(closed, Conflict) and closed.phase == "session"
        await api.call("POST", f"/v1/sandboxes/{made['id']}/stop", {})
        assert await run(socket, made["id"], session_id, b"echo a", "one") == (0, b"a\n", False)
        assert isinstance(await failing(run(socket, made["id"], session_id, b"true", "four")), SandboxGone)


async def test_a_run_that_nobody_waited_for_is_settled(world: World) -> None:
    """Its client went; it ended before the sandbox did, so it has a result and is not gone with the sandbox."""
    async with world.edge() as (edge, api):
        async with api.socket() as socket:
            made = await api.create()
            session_id = await opened(socket, made["id"])
            await socket.open("session.run", sandbox_id=made["id"], session_id=session_id, script=b"sleep", key="one")
            session = world.runtime.sandboxes[made["id"]].sessions[session_id]
            await until(lambda: session.scripts == [b"sleep"])
        run_id = ids.exec_id(session_id, "one")
        assert edge.core.records.runs.without_outcome(made["id"]) == {run_id}
        session.ends[run_id] = {"run_id": run_id, "ended": "exited", "exit_code": 3}
        await api.call("POST", f"/v1/sandboxes/{made['id']}/stop", {})
        known = edge.core.records.runs.find(made["id"], run_id)
        assert known is not None and known.end is not None and known.end.exit_code == 3


@pytest.mark.parametrize(("lost", "kind"), [(False, SandboxGone), (True, OutcomeUnknown)])
async def test_a_run_that_ends_with_its_sandbox(world: World, lost: bool, kind: type) -> None:
    """Stopped: SandboxGone. Lost with the keeper: nobody can know, OutcomeUnknown. Never a result."""
    async with world.edge() as (_, api), api.socket() as socket:
        made = await api.create()
        session_id = await opened(socket, made["id"])
        await socket.open("session.run", sandbox_id=made["id"], session_id=session_id, script=b"sleep", key="one")
        await until(lambda: bool(world.runtime.sandboxes[made["id"]].sessions[session_id].scripts))
        if not lost:
            await api.call("POST", f"/v1/sandboxes/{made['id']}/stop", {})
    if lost:
        world.runtime.lose_all()
    async with world.edge() as (_, api), api.socket() as socket:
        assert isinstance(await failing(run(socket, made["id"], session_id, b"sleep", "one")), kind)


async def test_cancel_and_close_reach_the_session(world: World) -> None:
    """Both are passed on, complete; of an ended sandbox they are refused."""
    async with world.edge() as (_, api), api.socket() as socket:
        made = await api.create()
        session_id = await opened(socket, made["id"])
        names = {"sandbox_id": made["id"], "session_id": session_id}
        await socket.result(await socket.open("session.cancel", **names, key="one", grace_s=0.5))
        sent = world.runtime.called("session.cancel")[0]
        assert sent == names | {"run_id": ids.exec_id(session_id, "one"), "grace_ms": 500}
        await socket.result(await socket.open("session.close", **names))
        assert world.runtime.called("session.close")[0] == names | {"grace_ms": 2000}
        await api.call("POST", f"/v1/sandboxes/{made['id']}/stop", {})
        assert isinstance(await failing(socket.result(await socket.open("session.close", **names))), SandboxGone)


async def test_requests_are_checked(world: World) -> None:
    """What is malformed is refused by name, and leaves no intent."""
    async with world.edge() as (edge, api), api.socket() as socket:
        made = await api.create()
        session_id = await opened(socket, made["id"])
        names = {"sandbox_id": made["id"], "session_id": session_id, "key": "k"}
        wrong: list[tuple[str, dict[str, object], type]] = [
            ("session.open", {"sandbox_id": made["id"], "key": "x", "shell": []}, InvalidArgument),
            ("session.open", {"sandbox_id": made["id"], "key": "x", "cwd": "tmp"}, InvalidArgument),
            ("session.open", {"sandbox_id": made["id"], "key": "x", "pty": True}, Unsupported),
            ("session.run", names, InvalidArgument),
            ("session.run", names | {"script": b"a\0"}, InvalidArgument),
            ("session.run", names | {"script": b"a", "length": 1, "sha256": "x"}, InvalidArgument),
            ("session.run", names | {"length": 17 << 20, "sha256": "x"}, InvalidArgument),
            ("session.run", names | {"script": b"a", "timeout_s": -1}, InvalidArgument),
            ("session.run", names | {"script": b"a", "session_id": "a" * 26}, NotFound),
            ("session.close", {"sandbox_id": made["id"], "session_id": "x"}, InvalidArgument),
        ]
        for method, params, kind in wrong:
            assert isinstance(await failing(socket.result(await socket.open(method, **params))), kind), params
        assert edge.core.records.runs.without_outcome(made["id"]) == frozenset()


async def test_a_long_script_follows_in_pieces(world: World) -> None:
    """It is copied unread; the digest that came first tells it from another."""
    script = b"echo " + b"x" * 300_000
    digest = hashlib.sha256(script).hexdigest()
    async with world.edge() as (_, api), api.socket() as socket:
        made = await api.create()
        session_id = await opened(socket, made["id"])
        stream = await socket.open(
            "session.run",
            sandbox_id=made["id"], session_id=session_id, key="long", length=len(script), sha256=digest,
        )  # fmt: skip
        for at in range(0, len(script), 100_000):
            await socket.ws.send_bytes(frames.data_frame(stream, 0, at, script[at : at + 100_000]))
        while (frame := await socket.frame())[1] != frames.Kind.END:
            pass
        assert frame[2]["stdout_total"] == 300_001
        assert isinstance(await failing(run(socket, made["id"], session_id, b"true", "long")), Conflict)
