"""One client in many places, over a real node: event loops one after another, threads, children, other processes."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import threading

import pytest

import dsec
import dsec.sync
from dsec.testing.node import RunningNode, wait_until

from .conftest import IMAGE

pytestmark = pytest.mark.node


def test_sequential_event_loops(node: RunningNode) -> None:
    """A client, a sandbox and a running exec go from one asyncio.run to the next."""
    client = node.client()

    async def first() -> tuple[dsec.Sandbox, dsec.Exec]:
        sandbox = await client.sandbox(IMAGE)
        return sandbox, await sandbox.spawn("cat", stdin=dsec.PIPE)

    async def second(sandbox: dsec.Sandbox, running: dsec.Exec) -> str:
        await running.stdin.write("over two loops")
        await running.stdin.close()
        said = (await running.wait()).stdout
        await sandbox.stop()
        return said

    assert asyncio.run(second(*asyncio.run(first()))) == "over two loops"


def test_two_threads_at_once(node: RunningNode) -> None:
    """Two threads with a loop each use one client at the same time, each with exact results."""
    client = node.client()
    results: list[str] = []

    async def work(name: str) -> None:
        async with client.sandbox(IMAGE) as sandbox:
            for _ in range(20):
                results.append((await sandbox.exec("echo", name)).stdout)

    threads = [threading.Thread(target=lambda n=name: asyncio.run(work(n))) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == ["a\n"] * 20 + ["b\n"] * 20


def test_after_a_fork(node: RunningNode) -> None:
    """A forked child uses the sandbox over connections of its own; the parent's go on; its end stops nothing."""
    client = node.client()

    async def say(sandbox: dsec.Sandbox) -> bool:
        return (await sandbox.exec("true")).ok

    async def parent() -> None:
        async with client.sandbox(IMAGE) as sandbox:
            assert await say(sandbox)
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    code = 0 if asyncio.run(say(client.attach(sandbox.id))) else 2
                finally:
                    os._exit(code)
            _, status = await asyncio.to_thread(os.waitpid, child, 0)
            assert status == 0
            assert await say(sandbox)

    asyncio.run(parent())


PICKLED = """
import asyncio, pickle, sys
async def main():
    sandbox, running = pickle.loads(sys.stdin.buffer.read())
    print(sandbox.id, (await running.wait()).stdout, (await sandbox.exec("true")).ok)
asyncio.run(main())
"""


def test_pickled_handles(node: RunningNode) -> None:
    """A sandbox and an exec go to another process, which has the token from its own environment."""

    async def make() -> tuple[bytes, dsec.Sandbox]:
        async with node.client() as client:
            sandbox = await client.sandbox(IMAGE)
            return pickle.dumps((sandbox, await sandbox.spawn("echo", "kept"))), sandbox

    data, sandbox = asyncio.run(make())
    assert node.token.encode() not in data
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PICKLED], input=data, capture_output=True, timeout=60,
        env=node.environment | {"DSEC_TOKEN": node.token}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().split() == [sandbox.id, "kept", "True"]
    assert done.stderr == b""
    asyncio.run(_stop(sandbox))


async def _stop(sandbox: dsec.Sandbox) -> None:
    await sandbox.stop()


def test_sync_in_plain_python(node: RunningNode) -> None:
    """The whole of it without await: execs, spawn, files, many, errors, tombstone."""
    with dsec.sync.DSecClient(node.url, node.token) as client:
        with client.sandbox(IMAGE, labels={"a": "b"}) as sandbox:
            assert sandbox.run_shell("echo hello").stdout == "hello\n"
            running = sandbox.spawn("sed", "-u", "s/^/got /", stdin=dsec.PIPE)
            running.stdin.write("a\nb\n")
            running.stdin.close()
            assert list(running.lines()) == ["got a", "got b"]
            sandbox.write("/f", b"123")
            assert sandbox.files.read("/f", offset=1) == b"23"
            with pytest.raises(dsec.FileMissing):
                sandbox.read("/none")
            with pytest.raises(dsec.ExecutableNotFound):
                sandbox.exec("nosuch")
        assert sandbox.info().state == "stopped"
        made = client.sandboxes(dsec.SandboxArgs(IMAGE), n=3).all()
        assert len(list(client.find())) == 3
        assert len(client.stop_all(mine=True).stopped) == 3
        assert [one.error for one in made] == [None] * 3


def test_sync_inside_a_running_loop(node: RunningNode) -> None:
    """dsec.sync works where an event loop runs already, as in a notebook."""

    async def cell() -> str:
        with dsec.sync.DSecClient(node.url, node.token) as client, client.sandbox(IMAGE) as sandbox:
            return sandbox.run_shell("echo inside").stdout

    assert asyncio.run(cell()) == "inside\n"


def test_the_node_of_this_machine_is_found(node: RunningNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without URL and token the client reads the node's own note; a wrong token is Denied; no node says `dsec up`."""
    for name in ("DSEC_NODE", "DSEC_ROOT"):
        monkeypatch.setenv(name, node.environment[name])

    async def node_of(client: dsec.DSecClient) -> str:
        async with client:
            return (await client.status()).node

    assert asyncio.run(node_of(dsec.DSecClient())) == node.paths.name
    with pytest.raises(dsec.Denied):
        asyncio.run(node_of(dsec.DSecClient(node.url, "wrong")))
    monkeypatch.setenv("DSEC_NODE", "none")
    with pytest.raises(dsec.NodeError, match="dsec up"):
        asyncio.run(node_of(dsec.DSecClient()))


HOLDS = """
import asyncio, dsec
async def main():
    async with dsec.DSecClient() as client, client.sandbox("dsec/debian:12", lifetime_s=LIFE) as sandbox:
        print(sandbox.id, flush=True)
        await sandbox.exec("sleep", "1000")
asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_program_that_is_interrupted(node: RunningNode, number: signal.Signals) -> None:
    """Ctrl-C in the middle of an exec stops the sandbox; a plain SIGTERM leaves it to its lifetime."""
    life = "600" if number == signal.SIGINT else "2"
    argv = [sys.executable, "-c", HOLDS.replace("LIFE", life)]
    with subprocess.Popen(argv, env=node.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as program:
        assert program.stdout is not None and program.stdout.readline().startswith(b"sb-")
        program.send_signal(number)
        assert program.wait(20) != 0
    wait_until(lambda: node.live_sandboxes() == [], "the sandbox has ended", timeout_s=15)


def test_a_killed_program_leaves_nothing_beyond_a_lifetime(node: RunningNode) -> None:
    """SIGKILL at any moment: what the lifetime removes is all that was left."""
    argv = [sys.executable, "-c", HOLDS.replace("LIFE", "2")]
    with subprocess.Popen(argv, env=node.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as program:
        assert program.stdout is not None and program.stdout.readline().startswith(b"sb-")
        program.kill()
    wait_until(lambda: node.leftovers() == [], "the lifetime has ended it", timeout_s=15)
