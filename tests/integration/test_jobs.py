"""Jobs over a real node: what a dead trainer leaves ends by its lease, what a live one takes over goes on."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import dsec
import dsec.sync
from dsec.api.ids import new_key
from dsec.node.local_calls import RuntimeCalls
from dsec.testing.node import RunningNode, wait_until

from .conftest import IMAGE

pytestmark = [pytest.mark.node, pytest.mark.anyio]

TRAINER = f"""
import asyncio, sys, dsec

async def main():
    async with dsec.DSecClient() as client, client.job(sys.argv[1], lease_s=float(sys.argv[2])) as job:
        sandbox = await job.sandbox({IMAGE!r})
        await sandbox.spawn(shell="echo once >> /tmp/runs; sleep 5; echo done", key="the-exec")
        print(sandbox.id, flush=True)
        await asyncio.sleep(1000)

asyncio.run(main())
"""


@contextmanager
def trainer(node: RunningNode, name: str, lease_s: float) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that holds a job with one sandbox, and that sandbox's ID."""
    command = [sys.executable, "-c", TRAINER, name, str(lease_s)]
    with subprocess.Popen(command, env=node.environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


async def over(sandbox: dsec.Sandbox) -> dsec.SandboxInfo:
    """Follow the logs to the sandbox's end."""
    async for _ in sandbox.logs(follow=True):
        pass
    return await sandbox.info()


@pytest.fixture
async def name() -> AsyncIterator[str]:
    """A job's name of a test's own."""
    yield f"train-{os.urandom(4).hex()}"


async def test_a_killed_trainers_sandboxes_end_within_the_lease(
    node: RunningNode, client: dsec.DSecClient, name: str
) -> None:
    """SIGKILL: the sandbox and what runs in it end, cause lease, soon after the lease; the job is lost."""
    with trainer(node, name, 2) as (process, sandbox_id):
        process.kill()
        killed_at = time.time()
        info = await over(client.attach(sandbox_id))
    assert (info.state, info.cause, info.job) == ("stopped", "lease", name)
    assert info.ended_at is not None and info.ended_at - killed_at < 2 + 20
    story = await client.attach(sandbox_id).story()
    assert (story[-1].cause, story[-1].actor) == ("lease", "runtime")
    (job,) = [each for each in await client.jobs() if each.name == name]
    assert (job.state, job.live) == ("lost", 0)


async def test_a_live_trainer_keeps_its_sandboxes(client: dsec.DSecClient, name: str) -> None:
    """An exec that outlasts the lease several times ends by itself."""
    async with client.job(name, lease_s=1) as job, job.sandbox(IMAGE) as sandbox:
        assert (await sandbox.exec("sleep", "4")).ok
        assert (await job.info()).state == "held"


def ends(node: RunningNode) -> dict[str, str]:
    """Cause of each ended sandbox, from the runtime itself."""
    with RuntimeCalls(node.paths.runtime_socket) as runtime:
        found = runtime.call("sandbox.list", {})["sandboxes"]
    return {one["sandbox_id"]: one["end"]["cause"] for one in found if one["end"] is not None}


async def test_the_lease_needs_no_python(node: RunningNode, client: dsec.DSecClient, name: str) -> None:
    """While apiserver and edge stand still the runtime ends what a dead trainer left; the edge then learns it."""
    pids = [node.services()[part].pid for part in ("apiserver", "edge")]
    with trainer(node, name, 2) as (process, sandbox_id):
        try:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            process.kill()
            await asyncio.to_thread(
                wait_until, lambda: ends(node).get(sandbox_id) == "lease", "the lease", timeout_s=30
            )
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
    assert (await over(client.attach(sandbox_id))).cause == "lease"


async def test_a_new_runtime_continues_the_lease(node: RunningNode, client: dsec.DSecClient, name: str) -> None:
    """The runtime dies right after the trainer: its successor ends what the trainer left."""
    with trainer(node, name, 3) as (process, sandbox_id):
        process.kill()
        node.kill("runtime")
        assert (await over(client.attach(sandbox_id))).cause == "lease"


async def test_a_restarted_trainer_takes_over(node: RunningNode, client: dsec.DSecClient, name: str) -> None:
    """The same name finds the live sandbox, and the same key the exec that runs in it: once, with its result."""
    with trainer(node, name, 60) as (process, sandbox_id):
        process.kill()
        process.wait()
        async with client.job(name, lease_s=60) as job:
            assert [info.id async for info in job.find()] == [sandbox_id]
            sandbox = job.attach(sandbox_id)
            program = await sandbox.spawn(
                shell="echo once >> /tmp/runs; sleep 5; echo done", key="the-exec"
            )  # fmt: skip
            result = await program.wait()
            assert (result.exit_code, result.stdout) == (0, "done\n")
            assert (await sandbox.read("/tmp/runs")) == b"once\n"
    assert (await client.attach(sandbox_id).info()).cause == "stopped"


async def test_a_zombie_is_refused(client: dsec.DSecClient, name: str) -> None:
    """Create, exec, the exec that it waits for, files, stop: Fenced; what it had goes on for the new holder."""
    old = await client.job(name, lease_s=30).open()
    sandbox = await old.sandbox(IMAGE)
    waiting = asyncio.create_task(sandbox.exec("sleep", "2", key="slow"))
    await until_exec(sandbox)
    async with client.job(name, lease_s=30) as new:
        with pytest.raises(dsec.Fenced) as fenced:
            await waiting
        assert (fenced.value.fault, fenced.value.is_infra, fenced.value.retryable) == ("caller", False, False)
        for call in (old.sandbox(IMAGE), sandbox.exec("true"), sandbox.read("/etc/hostname"), sandbox.stop()):
            with pytest.raises(dsec.Fenced):
                await call
        mine = new.attach(sandbox.id)
        assert (await mine.exec("sleep", "2", key="slow")).ok
    await old.detach()


async def test_a_zombies_transfer_is_refused(client: dsec.DSecClient, name: str, tmp_path: Path) -> None:
    """An upload that is under way when the job is taken ends with Fenced, and nothing of its file is there; so does a
    new one, and a download.
    """
    big = tmp_path / "big"
    await asyncio.to_thread(big.write_bytes, os.urandom(64 << 20))
    old = await client.job(name, lease_s=30).open()
    sandbox = await old.sandbox(IMAGE)
    under_way, taken = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def progress(arrived: int) -> None:
        # In the transfer's own thread, which stands still until the job has its next holder.
        loop.call_soon_threadsafe(under_way.set)
        assert taken.wait(60)

    uploading = asyncio.create_task(sandbox.files.upload(big, "/big", progress=progress))
    await under_way.wait()
    async with client.job(name, lease_s=30) as new:
        taken.set()
        with pytest.raises(dsec.Fenced):
            await uploading
        with pytest.raises(dsec.Fenced):
            await sandbox.files.upload(big, "/other")
        with pytest.raises(dsec.Fenced):
            await sandbox.files.download("/etc/hostname", tmp_path / "back")
        left = await new.attach(sandbox.id).run_shell("ls -A / | grep -e big -e other -e ^.dsec")
        assert left.stdout == ""
    assert await asyncio.to_thread(os.listdir, tmp_path) == ["big"]
    await old.detach()


async def until_exec(sandbox: dsec.Sandbox) -> None:
    """Wait until an exec runs."""
    async with asyncio.timeout(20):
        while not await sandbox.execs():  # noqa: ASYNC110  (there is no event to wait for)
            await asyncio.sleep(0.01)


async def test_a_lost_job_that_pauses(client: dsec.DSecClient, name: str) -> None:
    """on_lost="pause": the sandbox stands still, processes kept; the next holder's exec resumes it."""
    old = await client.job(name, lease_s=1, on_lost="pause").open()
    sandbox = client.attach((await old.sandbox(IMAGE)).id)
    await sandbox.run_shell("setsid -f sleep 1000", check=True)
    await old.detach()
    async with asyncio.timeout(30):
        while (await sandbox.info()).state != "paused":  # noqa: ASYNC110  (there is no event to wait for)
            await asyncio.sleep(0.02)
    assert (await sandbox.story())[-1].cause == "lease"
    async with client.job(name, lease_s=30, on_lost="pause") as new:
        result = await new.attach(sandbox.id).run_shell("cat /proc/[0-9]*/comm | grep -c sleep")
        assert result.stdout.strip() == "1"


async def test_max_live_waits_and_raises(client: dsec.DSecClient, name: str) -> None:
    """A create beyond max_live raises at once or waits, as on a full node; others are not held back."""
    async with client.job(name, max_live=2) as job:
        made = await job.sandboxes(dsec.SandboxArgs(IMAGE), n=2).all()
        first = made[0].sandbox
        assert first is not None
        with pytest.raises(dsec.CapacityError, match="max_live"):
            await job.sandbox(IMAGE, on_full="raise")
        async with client.sandbox(IMAGE) as other:
            assert (await other.exec("true")).ok
        waiting = asyncio.create_task(awaited(job))
        async with asyncio.timeout(20):
            while (await job.info()).queued != 1:  # noqa: ASYNC110  (there is no event to wait for)
                await asyncio.sleep(0.01)
        await first.stop()
        assert (await (await waiting).exec("true")).ok
        assert (await job.info()).live == 2


async def awaited(job: dsec.Job) -> dsec.Sandbox:
    """A create as a coroutine."""
    return await job.sandbox(IMAGE)


async def test_the_end_of_the_block_ends_the_job(client: dsec.DSecClient, name: str) -> None:
    """With or without an error: its sandboxes are stopped, others live on."""
    async with client.sandbox(IMAGE) as other:
        with pytest.raises(ZeroDivisionError):
            async with client.job(name) as job:
                made = await job.sandboxes(dsec.SandboxArgs(IMAGE), n=3).all()
                raise ZeroDivisionError
        for one in made:
            assert one.sandbox is not None
            assert (await client.attach(one.sandbox.id).info()).cause == "stopped"
        assert (await other.exec("true")).ok


async def test_find_and_stop_all_by_job(client: dsec.DSecClient, name: str) -> None:
    """The client's own, without the job's handle: an operator's view."""
    label = new_key()
    async with client.job(name) as job:
        one, two = await job.sandbox(IMAGE, labels={"x": label}), await job.sandbox(IMAGE)
        assert {info.id async for info in client.find(job=name)} == {one.id, two.id}
        assert (await client.stop_all(job=name, labels={"x": label})).stopped == [one.id]
        assert (await client.stop_all(job=name)).stopped == [two.id]
        assert [info.id async for info in client.find(job=name)] == []
        states = [info.state async for info in client.find(job=name, state="stopped")]
        assert states == ["stopped", "stopped"]


def test_plain_python(node: RunningNode) -> None:
    """dsec.sync has the same: signs of life come from its thread while the caller's own computes."""
    with dsec.sync.DSecClient(node.url, node.token) as client, client.job("plain", lease_s=1) as job:
        sandbox = job.sandbox(IMAGE)
        time.sleep(2.5)  # the trainer's own work
        assert sandbox.exec("true").ok
        assert [info.id for info in job.find()] == [sandbox.id]


def dsec_cli(node: RunningNode, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command line."""
    program = Path(sys.executable).with_name("dsec")
    return subprocess.run([str(program), *words], env=node.environment, capture_output=True, text=True, check=False)


async def test_the_command_line(node: RunningNode, client: dsec.DSecClient, name: str) -> None:
    """job ls, show and stop: the holder is fenced, its sandboxes are gone."""
    job = await client.job(name, max_live=5).open()
    sandbox = await job.sandbox(IMAGE)
    jobs = json.loads((await asyncio.to_thread(dsec_cli, node, "job", "ls", "--json")).stdout)
    assert [(each["live"], each["max_live"]) for each in jobs if each["name"] == name] == [(1, 5)]
    shown = json.loads((await asyncio.to_thread(dsec_cli, node, "job", "show", name, "--json")).stdout)
    assert shown["job"]["state"] == "held" and [each["id"] for each in shown["sandboxes"]] == [sandbox.id]
    listed = await asyncio.to_thread(dsec_cli, node, "ps", "-q", "--job", name)
    assert listed.stdout.split() == [sandbox.id]
    table = (await asyncio.to_thread(dsec_cli, node, "job", "show", name)).stdout
    assert sandbox.id in table and "held" in table
    stopped = await asyncio.to_thread(dsec_cli, node, "job", "stop", name)
    assert stopped.stdout.split() == [sandbox.id]
    with pytest.raises(dsec.Fenced):
        await job.sandbox(IMAGE)
    missing = await asyncio.to_thread(dsec_cli, node, "job", "show", "nobody")
    assert missing.returncode != 0 and "no job" in missing.stderr
    await job.detach()
