"""Sessions as the SDK keeps them: results by key, broken connections, cancellation, long scripts, closed shells."""

from __future__ import annotations

import asyncio

import pytest

import dsec
from dsec.client.client import DSecClient
from dsec.errors import NodeError
from dsec.testing.fake_edge_sessions import FakeShell
from dsec.testing.fake_node import FakeNode

pytestmark = pytest.mark.anyio


async def _opened(fake: FakeNode, client: DSecClient) -> tuple[dsec.Session, FakeShell]:
    sandbox = await client.sandbox("image")
    session = await sandbox.open_session(key="shell")
    assert (await sandbox.open_session(key="shell")).id == session.id
    return session, fake.edge.shells[session.id]


async def _until_run(shell: FakeShell, script: str) -> None:
    async with asyncio.timeout(20):
        while script not in shell.scripts:  # noqa: ASYNC110  (the shell lives in another thread's loop)
            await asyncio.sleep(0.005)


async def test_runs_have_their_own_output(fake: FakeNode, client: DSecClient) -> None:
    """Each run's bytes are its own, at whatever offset of the session's they lie; a status is data."""
    session, shell = await _opened(fake, client)
    first, second = await session.run("echo one"), await session.run("err two")
    assert (first.stdout, first.stderr, second.stdout, second.stderr) == ("one\n", "", "", "two\n")
    assert (await session.run("echo three")).stdout == "three\n"
    assert (await session.run("false")).exit_code == 1
    assert shell.scripts == ["echo one", "err two", "echo three", "false"]


async def test_a_key_is_one_run(fake: FakeNode, client: DSecClient) -> None:
    """Asked again it is found, also after the connection broke in the middle of it."""
    session, shell = await _opened(fake, client)
    assert (await session.run("echo x", key="k")) == (await session.run("echo x", key="k"))
    waiting = asyncio.create_task(session.run("hang early", key="h"))
    await _until_run(shell, "hang early")
    fake.do(fake.edge.drop_sockets())
    shell_loop = fake.edge.loop
    assert shell_loop is not None
    shell_loop.call_soon_threadsafe(shell.cancel, "h")
    result = await waiting
    assert (result.ended, result.stdout) == ("cancelled", "early\n")
    assert shell.scripts == ["echo x", "hang early"]


async def test_a_cancelled_run_is_cancelled_at_the_node(fake: FakeNode, client: DSecClient) -> None:
    """The node hears of it before the caller goes on, and the session can be used again."""
    session, shell = await _opened(fake, client)
    running = asyncio.create_task(session.run("hang", key="h"))
    await _until_run(shell, "hang")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await session.run("echo next")).stdout == "next\n"


async def test_a_long_script_follows_in_pieces(fake: FakeNode, client: DSecClient) -> None:
    """Beyond 128 KiB it comes whole all the same."""
    session, shell = await _opened(fake, client)
    script = "echo " + "x" * 300_000
    assert (await session.run(script)).stdout == "x" * 300_000 + "\n"
    assert shell.scripts == [script]


async def test_a_shell_that_ended(fake: FakeNode, client: DSecClient) -> None:
    """A script that ends its shell has its result, the session says that it is closed, and runs nothing more."""
    session, shell = await _opened(fake, client)
    assert (await session.run("exit 3")).exit_code == 3 and session.closed
    with pytest.raises(dsec.Conflict):
        await session.run("echo x")
    await session.close()
    assert shell.scripts == ["exit 3"]


async def test_a_session_that_is_lost_is_no_result(fake: FakeNode, client: DSecClient) -> None:
    """When the connection broke and the node then knows no such session, the outcome is unknown; asked the first
    time it is just not found.
    """
    session, shell = await _opened(fake, client)
    waiting = asyncio.create_task(session.run("hang"))
    await _until_run(shell, "hang")
    del fake.edge.shells[session.id]
    fake.do(fake.edge.drop_sockets())
    with pytest.raises(dsec.OutcomeUnknown):
        await waiting
    with pytest.raises(dsec.NotFound):
        await session.run("echo x")


async def test_a_node_that_fails_for_a_while(fake: FakeNode, client: DSecClient) -> None:
    """Opening and running are asked again, and happen once."""
    sandbox = await client.sandbox("image")
    fake.edge.fail_next("WS session.open", NodeError("not now", phase="runtime", retry_after_s=0.01))
    async with sandbox.open_session() as session:
        fake.edge.fail_next("WS session.run", NodeError("not now", phase="runtime", retry_after_s=0.01))
        assert (await session.run("echo x")).stdout == "x\n"
        assert fake.edge.shells[session.id].scripts == ["echo x"]
    assert fake.edge.shells[session.id].closed
