"""One client in many places: event loops one after another, threads, children, other processes."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest

import dsec
import dsec.sync
from dsec.client.client import DSecClient
from dsec.sync.portal import apart
from dsec.testing.fake_node import FakeNode

SOURCE = Path(dsec.__file__).parents[1]


def test_sequential_event_loops(fake: FakeNode) -> None:
    """A client, a sandbox and a running exec go from one asyncio.run to the next, and no connection is left open."""
    client = DSecClient(fake.url, fake.token)

    async def first() -> tuple[dsec.Sandbox, dsec.Exec]:
        sandbox = await client.sandbox("image")
        return sandbox, await sandbox.spawn("cat", stdin=dsec.PIPE)

    async def second(sandbox: dsec.Sandbox, running: dsec.Exec) -> str:
        assert (await sandbox.exec("true")).ok
        await running.stdin.write("over two loops")
        await running.stdin.close()
        return (await running.wait()).stdout

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sandbox, running = asyncio.run(first())
        assert asyncio.run(second(sandbox, running)) == "over two loops"
    assert len(fake.edge.starts) == 2


def test_two_threads_at_once(fake: FakeNode) -> None:
    """Two threads, each with its own loop, use one client at the same time."""
    client = DSecClient(fake.url, fake.token)
    results: list[str] = []

    async def work(name: str) -> None:
        sandbox = await client.sandbox("image")
        for _ in range(20):
            results.append((await sandbox.exec("echo", name)).stdout)

    threads = [threading.Thread(target=lambda n=name: asyncio.run(work(n))) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == ["a\n"] * 20 + ["b\n"] * 20


def test_after_a_fork(fake: FakeNode) -> None:
    """A forked child opens connections of its own; the parent's go on working after it has ended."""
    client = DSecClient(fake.url, fake.token)

    async def one(sandbox: dsec.Sandbox) -> bool:
        return (await sandbox.exec("true")).ok

    async def parent() -> None:
        sandbox = await client.sandbox("image")
        assert await one(sandbox)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = 0 if asyncio.run(one(client.attach(sandbox.id))) else 2
            finally:
                os._exit(code)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert status == 0
        assert await one(sandbox)

    asyncio.run(parent())


def test_a_child_owns_nothing_of_its_parents(fake: FakeNode) -> None:
    """A forked child that exits normally does not stop the sandbox of its parent's open block."""
    client = DSecClient(fake.url, fake.token)

    async def parent() -> None:
        async with client.sandbox("image") as sandbox:
            child = os.fork()
            if child == 0:
                from dsec.client.owned import stop_owned

                os._exit(0 if stop_owned() == 0 else 1)
            _, status = await asyncio.to_thread(os.waitpid, child, 0)
            assert status == 0
            assert fake.edge.sandboxes[sandbox.id].state == "running"

    asyncio.run(parent())


def test_handles_pickle_without_the_token(fake: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickled sandbox and exec carry URL and IDs, never the token, and work where the environment has one."""

    async def make() -> tuple[bytes, str]:
        async with DSecClient(fake.url, fake.token) as client:
            sandbox = await client.sandbox("image")
            running = await sandbox.spawn("echo", "kept")
            return pickle.dumps((sandbox, running, client)), sandbox.id

    data, sandbox_id = asyncio.run(make())
    assert fake.token.encode() not in data and fake.url.encode() in data
    program = (
        "import asyncio, pickle, sys\n"
        "async def main():\n"
        "    sandbox, running, client = pickle.loads(sys.stdin.buffer.read())\n"
        "    print(sandbox.id, (await running.wait()).stdout, (await sandbox.exec('true')).ok)\n"
        "    assert sandbox._client is client\n"
        "    await client.close()\n"
        "asyncio.run(main())\n"
    )
    environment = {"PYTHONPATH": str(SOURCE), "DSEC_TOKEN": fake.token, "PATH": os.environ["PATH"]}
    done = subprocess.run([sys.executable, "-c", program], input=data, env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().split() == [sandbox_id, "kept", "True"]
    monkeypatch.delenv("DSEC_TOKEN", raising=False)
    monkeypatch.setenv("DSEC_ROOT", str(tmp_path / "nowhere"))
    without = pickle.loads(data)[0]
    with pytest.raises(dsec.Denied, match="DSEC_TOKEN"):
        asyncio.run(_exec(without))


async def _exec(sandbox: dsec.Sandbox) -> None:
    await sandbox.exec("true")


def test_the_node_of_this_machine_is_found(fake: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without arguments the client reads node.json and the token file; without them it says `dsec up`."""
    monkeypatch.setenv("DSEC_ROOT", str(tmp_path / "root"))

    async def version() -> str:
        async with DSecClient() as client:
            return (await client.version()).node

    with pytest.raises(dsec.NodeError, match="dsec up"):
        asyncio.run(version())
    fake.node_json(tmp_path / "root")
    assert asyncio.run(version()) == "fake"


def test_sync_from_plain_python(fake: FakeNode) -> None:
    """dsec.sync has sandboxes, execs, files, iteration and errors without await."""
    with dsec.sync.DSecClient(fake.url, fake.token) as client:
        with client.sandbox("image", labels={"a": "b"}) as sandbox:
            assert sandbox.labels == {"a": "b"}
            assert sandbox.run_shell("echo hello").stdout == "hello\n"
            running = sandbox.spawn("cat", stdin=dsec.PIPE)
            running.stdin.write("a\nb\n")
            running.stdin.close()
            assert list(running.lines()) == ["a", "b"]
            assert running.wait().ok
            sandbox.write("/f", b"123")
            assert sandbox.files.read("/f", offset=1) == b"23"
            with pytest.raises(dsec.ExecutableNotFound):
                sandbox.exec("nosuch")
        assert fake.edge.sandboxes[sandbox.id].state == "stopped"
        made = list(client.sandboxes(dsec.SandboxArgs("image"), n=3))
        assert sorted(one.index for one in made) == [0, 1, 2]
        assert len(client.sandboxes(dsec.SandboxArgs("image"), n=2).all()) == 2
        assert len(list(client.find())) == 5


def test_sync_inside_a_running_loop(fake: FakeNode) -> None:
    """dsec.sync works where an event loop is running already (a notebook)."""

    async def cell() -> str:
        with dsec.sync.DSecClient(fake.url, fake.token) as client, client.sandbox("image") as sandbox:
            return sandbox.run_shell("echo inside").stdout

    assert asyncio.run(cell()) == "inside\n"


def test_work_apart_outlives_the_loops_of_its_callers() -> None:
    """``apart`` runs everything in one loop, whichever asks; its errors come back, cancelling it cancels there."""
    cancelled = threading.Event()

    async def here() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    async def failing() -> None:
        raise LookupError("gone")

    async def waiting() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def given_up() -> None:
        async with asyncio.timeout(0.05):
            await apart(waiting())

    assert asyncio.run(apart(here())) is asyncio.run(apart(here()))
    with pytest.raises(LookupError, match="gone"):
        asyncio.run(apart(failing()))
    with pytest.raises(TimeoutError):
        asyncio.run(given_up())
    assert cancelled.wait(10)


def test_sync_after_a_fork_and_pickled(fake: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child of a process that used dsec.sync starts a thread of its own; handles pickle."""
    monkeypatch.setenv("DSEC_TOKEN", fake.token)
    client = dsec.sync.DSecClient(fake.url)
    sandbox = client.sandbox("image")
    again = pickle.loads(pickle.dumps(sandbox))
    assert again == sandbox and again.exec("true").ok
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if sandbox.exec("true").ok else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert sandbox.exec("true").ok
    client.close()


def test_ctrl_c_kills_what_a_sync_call_runs(fake: FakeNode) -> None:
    """KeyboardInterrupt in a blocking exec ends the program before it comes out, and leaves no sandbox of a block."""
    program = (
        "import dsec.sync, sys\n"
        "client = dsec.sync.DSecClient()\n"
        "with client.sandbox('image') as sandbox:\n"
        "    sandbox.exec('hang')\n"
    )
    environment = {"PYTHONPATH": str(SOURCE), "DSEC_TOKEN": fake.token, "DSEC_URL": fake.url}
    process = subprocess.Popen([sys.executable, "-c", program], env=environment, stderr=subprocess.PIPE)
    while fake.edge.exec_of(["hang"]) is None:
        assert process.poll() is None
        threading.Event().wait(0.01)
    process.send_signal(2)
    _, errors = process.communicate(timeout=20)
    assert b"KeyboardInterrupt" in errors and b"never retrieved" not in errors
    assert fake.edge.kills == fake.edge.starts
    assert [info.state for info in fake.edge.sandboxes.values()] == ["stopped"]
