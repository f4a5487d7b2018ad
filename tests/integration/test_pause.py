"""Pausing: everything stands still, time that counts goes on, whatever enters resumes, and a stop works as ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import dsec
from dsec.client.results import Stdout
from dsec.testing.node import RunningNode, wait_until

from .conftest import IMAGE

pytestmark = [pytest.mark.node, pytest.mark.anyio]

TICKING = "while :; do echo tick; sleep 0.02; done"


async def next_tick(events: AsyncIterator[object]) -> None:
    """Wait for output."""
    async for event in events:
        if isinstance(event, Stdout):
            return
    raise AssertionError("the output ended")


async def total(program: dsec.Exec) -> int:
    """Bytes written so far."""
    return (await program.info()).stdout_total_bytes


async def states(sandbox: dsec.Sandbox) -> list[tuple[str, str]]:
    """(state, cause) of the story."""
    return [(entry.state, entry.cause) for entry in await sandbox.story()]


async def until_state(sandbox: dsec.Sandbox, state: str) -> None:
    """Wait until the node says so."""
    async with asyncio.timeout(20):
        while (await sandbox.info()).state != state:  # noqa: ASYNC110  (there is no event to wait for)
            await asyncio.sleep(0.01)


async def test_a_paused_sandbox_stands_still_and_goes_on(sandbox: dsec.Sandbox) -> None:
    """A running exec writes nothing while paused, and goes on at the exact byte when resumed."""
    program = await sandbox.spawn(shell=TICKING)
    events = program.events()
    await next_tick(events)
    paused = await sandbox.pause()
    assert (paused.id, paused.partial) == (sandbox.id, False)
    assert (await sandbox.info()).state == "paused"
    # What was in the pipes when everything stood still is on its way; after that nothing can come.
    settled = await total(program)
    await asyncio.sleep(0.3)
    settled = max(settled, await total(program))
    await asyncio.sleep(0.3)
    assert await total(program) == settled
    await sandbox.resume()
    assert (await sandbox.info()).state == "running"
    async with asyncio.timeout(20):
        while await total(program) <= settled:
            await next_tick(events)
    await program.kill(grace_s=0)
    assert await states(sandbox) == [
        ("creating", "requested"), ("running", "started"), ("paused", "paused"), ("running", "resumed"),
    ]  # fmt: skip


async def test_a_pause_during_a_run_of_a_session(sandbox: dsec.Sandbox) -> None:
    """The run stands still with all else, goes on when resumed, and has its every byte and its status; the session's
    state is as it was left.
    """
    async with sandbox.open_session() as session:
        await session.run("n=1; mkfifo /tmp/begun /tmp/go")
        count = "i=0; while [ $i -lt 200 ]; do echo $i; i=$((i+1)); done"
        script = f"n=2; echo > /tmp/begun; {count}; read x < /tmp/go; {count}; echo $x; (exit 6)"
        running = asyncio.create_task(session.run(script))
        await sandbox.run_shell("read x < /tmp/begun", timeout_s=20, check=True)
        assert not (await sandbox.pause()).partial
        assert (await sandbox.info()).state == "paused" and not running.done()
        await sandbox.resume()
        await sandbox.run_shell("echo gone-on > /tmp/go", timeout_s=20)
        result = await running
        assert result.stdout == "".join(f"{i}\n" for i in range(200)) * 2 + "gone-on\n"
        assert (result.exit_code, result.ended) == (6, "exited")
        assert (await session.run("echo $? $n")).stdout == "6 2\n"


async def test_pause_and_resume_twice(sandbox: dsec.Sandbox) -> None:
    """Both may be said again; the story says each once, and by whom."""
    await sandbox.resume()
    await sandbox.pause()
    await sandbox.pause()
    await sandbox.resume()
    await sandbox.resume()
    story = await sandbox.story()
    assert [entry.state for entry in story] == ["creating", "running", "paused", "running"]
    assert story[2].actor == story[0].actor


@pytest.mark.parametrize("how", ["exec", "write", "read"])
async def test_whatever_enters_resumes(sandbox: dsec.Sandbox, how: str) -> None:
    """An exec or a file operation on a paused sandbox resumes it and does its work."""
    await sandbox.write("/tmp/x", b"kept")
    await sandbox.pause()
    if how == "exec":
        assert (await sandbox.exec("cat", "/tmp/x")).stdout == "kept"
    elif how == "write":
        await sandbox.write("/tmp/y", b"new")
    else:
        assert await sandbox.read("/tmp/x") == b"kept"
    await until_state(sandbox, "running")
    assert (await states(sandbox))[-1] == ("running", "exec" if how == "exec" else "file")


async def test_a_paused_sandbox_is_not_idle_but_its_lifetime_goes_on(client: dsec.DSecClient) -> None:
    """An idle time far shorter than the pause does not end it; its lifetime does, processes and all."""
    sandbox = await client.sandbox(IMAGE, idle_timeout_s=0.5, lifetime_s=4)
    await sandbox.spawn(shell=TICKING)
    await sandbox.pause()
    await until_state(sandbox, "stopped")
    assert (await sandbox.info()).cause == "lifetime"


async def test_a_stop_of_a_paused_one_works(node: RunningNode, client: dsec.DSecClient) -> None:
    """It is confirmed, no process is left, and the slot serves the next sandbox."""
    sandbox = await client.sandbox(IMAGE)
    await sandbox.run_shell("for i in 1 2 3; do setsid -f sleep 1000; done", check=True)
    program = asyncio.create_task(sandbox.run_shell(TICKING))
    await asyncio.to_thread(wait_until, lambda: len(node.sandbox_processes()) >= 6, "the loop runs")
    await sandbox.pause()
    stopped = await sandbox.stop()
    assert stopped.proof_of_death.processes == 0 and node.sandbox_processes() == set()
    with pytest.raises(dsec.SandboxGone) as gone:
        await program
    assert gone.value.cause == "stopped"
    with pytest.raises(dsec.SandboxGone):
        await sandbox.pause()
    async with client.sandbox(IMAGE) as other:
        assert (await other.exec("true")).ok


async def test_a_stop_with_grace_lets_a_paused_main_process_react(client: dsec.DSecClient) -> None:
    """SIGTERM reaches it: the sandbox goes on for the time of its grace."""
    script = "trap 'echo cleaned; exit 3' TERM; echo ready; while :; do sleep 0.02; done"
    sandbox = await client.sandbox(IMAGE, command=["sh", "-c", script])
    logs = sandbox.logs(follow=True)
    await next_tick(logs)
    await sandbox.pause()
    await sandbox.stop(grace_s=20)
    kept = b"".join([event.data async for event in sandbox.logs() if isinstance(event, Stdout)])
    assert kept == b"ready\ncleaned\n"


async def test_a_kill_reaches_a_paused_exec(sandbox: dsec.Sandbox) -> None:
    """An exec of a paused sandbox can be killed, confirmed, without resuming the sandbox."""
    program = await sandbox.spawn(shell=TICKING)
    await sandbox.pause()
    await program.kill(grace_s=0)
    assert (await program.wait()).ended == "cancelled"
    assert (await sandbox.info()).state == "paused"


async def test_a_new_runtime_knows_what_is_paused(store: object, client: dsec.DSecClient, node: RunningNode) -> None:
    """The kernel holds the state: over a restart of runtime and edge the sandbox stays paused, and can be resumed."""
    async with client.sandbox(IMAGE) as sandbox:
        program = await sandbox.spawn(shell=TICKING)
        await sandbox.pause()
        node.kill("edge")
        node.kill("runtime")
        assert (await sandbox.info()).state == "paused"
        before = await total(program)
        await sandbox.resume()
        async with asyncio.timeout(20):
            while await total(program) <= before:  # noqa: ASYNC110  (there is no event to wait for)
                await asyncio.sleep(0.01)
