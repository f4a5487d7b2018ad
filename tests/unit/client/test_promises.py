"""The SDK's promises when connections break, calls are cancelled and sandboxes end."""

from __future__ import annotations

import asyncio

import pytest

import dsec
from dsec.client.client import DSecClient
from dsec.testing.fake_node import FakeNode

pytestmark = pytest.mark.anyio


async def _until_started(fake: FakeNode, argv: list[str]) -> None:
    """Wait until the fake edge has begun an exec."""
    await asyncio.to_thread(fake.do, fake.edge.until_started(argv))


def _finish(fake: FakeNode, argv: list[str]) -> None:
    async def release() -> None:
        known = fake.edge.exec_of(argv)
        assert known is not None
        known.write(1, b"late\n")
        known._task.cancel()
        known.finish(0)

    fake.do(release())


async def test_an_exec_survives_its_connection(fake: FakeNode, client: DSecClient) -> None:
    """After the WebSocket breaks the exec is joined by its ID and gives its whole output; it was started once."""
    sandbox = await client.sandbox("image")
    task = asyncio.create_task(sandbox.exec("hang", "early"))
    await _until_started(fake, ["hang", "early"])
    fake.do(fake.edge.drop_sockets())
    _finish(fake, ["hang", "early"])
    result = await task
    assert result.ok and result.stdout == "early\nlate\n"
    assert len(fake.edge.starts) == 1


async def test_an_exec_survives_a_restart_of_the_apiserver(fake: FakeNode, client: DSecClient) -> None:
    """An exec, a stream of events and a later call go on over a new apiserver, each byte once."""
    sandbox = await client.sandbox("image")
    task = asyncio.create_task(sandbox.exec("hang", "early"))
    await _until_started(fake, ["hang", "early"])
    running = await sandbox.spawn("cat", stdin=dsec.PIPE)
    await running.stdin.write(b"before ")
    events = running.events()
    first = await anext(events)
    assert isinstance(first, dsec.Stdout) and first.data == b"before "
    await asyncio.to_thread(fake.restart_apiserver)
    await running.stdin.write(b"after")
    await running.stdin.close()
    rest = [event async for event in events]
    assert b"".join(event.data for event in rest if isinstance(event, dsec.Stdout)) == b"after"
    _finish(fake, ["hang", "early"])
    assert (await task).stdout == "early\nlate\n"
    assert (await sandbox.exec("true")).ok
    assert len(fake.edge.starts) == 3


async def test_an_exec_that_never_arrived_is_started_under_its_key(fake: FakeNode, client: DSecClient) -> None:
    """An exec that the node does not know never began: the same key starts it, once."""
    sandbox = await client.sandbox("image")
    await sandbox.exec("true")
    fake.edge.fail_next("WS exec", dsec.NodeError("the edge restarts", retry_after_s=0.01))
    result = await sandbox.exec("echo", "x", key="k")
    assert result.stdout == "x\n"
    assert fake.edge.starts.count(result.exec_id) == 1


async def test_an_exec_that_did_not_arrive_twice_is_started_all_the_same(fake: FakeNode, client: DSecClient) -> None:
    """A node that dies again before it has noted the second attempt has not begun it either: the third one does."""
    sandbox = await client.sandbox("image")
    await sandbox.exec("true")
    fake.edge.fail_next("WS exec", *(dsec.NodeError("the edge restarts", retry_after_s=0.01) for _ in range(2)))
    result = await sandbox.exec("echo", "x", key="k")
    assert result.stdout == "x\n"
    assert fake.edge.starts.count(result.exec_id) == 1


async def test_input_of_an_exec_that_never_arrived_is_sent_again(fake: FakeNode, client: DSecClient) -> None:
    """The input goes to the exec that is begun in place of the one that the node does not know, whole."""
    sandbox = await client.sandbox("image")
    fake.edge.fail_next("WS exec", dsec.NodeError("the edge restarts", retry_after_s=0.01))
    result = await sandbox.exec("cat", stdin=b"input" * 100_000, key="k")
    assert result.stdout_bytes == b"input" * 100_000
    assert fake.edge.starts.count(result.exec_id) == 1


async def test_an_unknown_outcome_is_never_a_result(fake: FakeNode, client: DSecClient) -> None:
    """When the connection broke and the node lost the sandbox, the outcome is unknown and says of which exec."""
    sandbox = await client.sandbox("image")
    task = asyncio.create_task(sandbox.exec("hang"))
    await _until_started(fake, ["hang"])
    started = fake.edge.starts[0]
    fake.edge.execs.clear()
    fake.edge.sandboxes.clear()
    fake.do(fake.edge.drop_sockets())
    with pytest.raises(dsec.OutcomeUnknown) as raised:
        await task
    assert raised.value.exec_id == started and raised.value.is_infra


async def test_a_stopped_sandbox_ends_its_execs_with_what_they_said(fake: FakeNode, client: DSecClient) -> None:
    """An exec whose sandbox is stopped raises SandboxGone with the cause, the caller's fault, and the output."""
    sandbox = await client.sandbox("image")
    task = asyncio.create_task(sandbox.exec("gone", "so far"))
    await _until_started(fake, ["gone", "so far"])
    await sandbox.stop()
    with pytest.raises(dsec.SandboxGone) as raised:
        await task
    assert raised.value.cause == "stopped" and raised.value.fault == "caller"
    assert raised.value.partial.stdout == "so far\n"


async def test_a_cancelled_exec_is_killed_and_confirmed(fake: FakeNode, client: DSecClient) -> None:
    """Cancelling exec kills the program before the cancellation comes back."""
    sandbox = await client.sandbox("image")
    task = asyncio.create_task(sandbox.exec("hang"))
    await _until_started(fake, ["hang"])
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert fake.edge.kills == fake.edge.starts
    known = fake.edge.exec_of(["hang"])
    assert known is not None and known.killed.is_set()


async def test_a_server_without_kills_on_the_websocket_gets_them_by_route(fake: FakeNode, client: DSecClient) -> None:
    """A node of the release before answers Unsupported: the exec is killed all the same."""
    sandbox = await client.sandbox("image")
    task = asyncio.create_task(sandbox.exec("hang"))
    await _until_started(fake, ["hang"])
    fake.edge.fail_next("WS kill", dsec.Unsupported("this server has no method 'kill'"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    known = fake.edge.exec_of(["hang"])
    assert known is not None and known.killed.is_set()


async def test_a_timeout_around_an_exec_kills_it(fake: FakeNode, client: DSecClient) -> None:
    """asyncio.timeout around run_shell is a cancellation: TimeoutError comes after the kill."""
    sandbox = await client.sandbox("image")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await sandbox.run_shell("hang")
    assert fake.edge.kills == fake.edge.starts


async def test_a_second_cancellation_does_not_skip_the_kill(fake: FakeNode, client: DSecClient) -> None:
    """A cancel during the confirmation waits for it all the same."""
    sandbox = await client.sandbox("image")
    task = asyncio.create_task(sandbox.exec("hang"))
    await _until_started(fake, ["hang"])
    fake.edge.hold("WS kill")
    task.cancel()
    await asyncio.to_thread(fake.do, fake.edge.until_held("WS kill"))
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    fake.do(_released(fake, "WS kill"))
    with pytest.raises(asyncio.CancelledError):
        await task
    known = fake.edge.exec_of(["hang"])
    assert known is not None and known.killed.is_set()


async def _released(fake: FakeNode, route: str) -> None:
    fake.edge.release(route)


async def test_cancelling_wait_only_detaches(fake: FakeNode, client: DSecClient) -> None:
    """Cancelling Exec.wait kills nothing; a later wait gives the result."""
    sandbox = await client.sandbox("image")
    running = await sandbox.spawn("hang")
    waiting = asyncio.create_task(running.wait())
    other = asyncio.create_task(running.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert fake.edge.kills == []
    _finish(fake, ["hang"])
    assert (await other).stdout == (await running.wait()).stdout == "late\n"


async def test_a_detached_exec_runs_on(fake: FakeNode, client: DSecClient) -> None:
    """detach() closes the stream only; the program is there and can be waited for again."""
    sandbox = await client.sandbox("image")
    running = await sandbox.spawn("hang")
    await running.detach()
    assert await running.poll() is None
    _finish(fake, ["hang"])
    assert (await running.wait()).ok


async def test_a_node_that_is_down_is_a_node_error(client: DSecClient, fake: FakeNode) -> None:
    """A refused connection becomes NodeError with a remedy, within the deadline; no transport's exception."""
    gone = DSecClient("http://127.0.0.1:9", fake.token)
    for attempt in (gone.sandbox("image", deadline_s=0.3), gone.status(), gone.attach(_ANY).exec("true")):
        with pytest.raises(dsec.NodeError, match="dsec up") as raised:
            await attempt
        assert raised.value.retryable and raised.value.is_infra
    await gone.close()


_ANY = "sb-fake-" + "a" * 26


async def test_an_edge_that_is_down_is_a_node_error(fake: FakeNode, client: DSecClient) -> None:
    """While the edge is away a create fails at its deadline with NodeError, and works when it is back."""
    sandbox = await client.sandbox("image")
    fake.do(fake.edge.stop())
    with pytest.raises(dsec.NodeError):
        await client.sandbox("image", deadline_s=0.4)
    later = asyncio.create_task(sandbox.exec("echo", "back"))
    await asyncio.sleep(0)
    fake.do(fake.edge.start(fake.directory / "edge.sock"))
    assert (await later).stdout == "back\n"


async def test_errors_pickle_with_their_data() -> None:
    """An error that crosses a process keeps class, cause and ID."""
    import pickle

    error = dsec.SandboxGone("gone", sandbox_id="sb-x", cause="idle")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is dsec.SandboxGone and again.cause == "idle" and again.sandbox_id == "sb-x"
