"""The keeper dies at each of its own steps and at others': the one death that loses something, and leaves nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

import dsec
import dsec.sync
from dsec.api.ids import exec_id
from dsec.node.up import UpOptions, up
from dsec.testing.faults import SETTINGS, Faults, fault_names
from dsec.testing.node import RunningNode, private_node, wait_until
from dsec.testing.traces import traces

from .fault_operations import IMAGE, OPERATIONS

pytestmark = [pytest.mark.node, pytest.mark.anyio, pytest.mark.timeout(120)]

OWN = [name for name in fault_names(Path(__file__).parents[2]) if name.startswith("keeper.")]
PASSED_BY = {
    "ack": ("exec",),
    "end": ("exec",),
    "put": ("stdin",),
    "reexec": ("new keeper",),
    "retag": ("kill",),
    "service": ("new proxy",),
    "signal": ("kill",),
    "spawn": ("exec", "create"),
}
"""The operations that come to the keeper's own steps, by the second part of their names."""
OTHERS = (
    "runtime.create.root",
    "runtime.exec.measured",
    "runtime.stdin.stored",
    "runtime.write.received",
    "runtime.stop.emptied",
)
"""Steps of the runtime at which it stands still while the keeper is killed."""
TOLD = ("keeper.ack.asked", "keeper.ack.forgotten", "keeper.end.told", "runtime.exec.measured")
"""Steps at which the end may have been told: whatever is told of it later must be true."""


@pytest.fixture(scope="module")
def own_node(store: Path) -> Iterator[RunningNode]:
    """One node for this module, whose keeper dies."""
    with private_node(store, settings=SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def whole(own_node: RunningNode) -> list[str]:
    """What of the node is on the machine while it holds nothing; an image's layer stays mounted once it was used."""
    with dsec.sync.DSecClient(own_node.url, own_node.token) as client:
        client.sandbox(IMAGE).stop()
    wait_until(lambda: own_node.leftovers() == [], "nothing is left")
    return traces(own_node)


def _new(part: str) -> Callable[[RunningNode], Awaitable[None]]:
    """``dsec restart PART``, of which the keeper dies."""

    async def restarting(node: RunningNode) -> None:
        with contextlib.suppress(dsec.NodeError):
            await asyncio.to_thread(node.restart, part)

    return restarting


def test_every_step_has_an_operation() -> None:
    """A new step of the keeper's is walked without being listed, or this fails."""
    assert len(OWN) > 15
    assert {name.split(".")[1] for name in OWN} == set(PASSED_BY)


@pytest.mark.parametrize(
    ("name", "operation"),
    [(name, operation) for name in OWN for operation in PASSED_BY[name.split(".")[1]]],
)
async def test_the_keeper_dies_at_its(own_node: RunningNode, whole: list[str], name: str, operation: str) -> None:
    """Killed at a step of its own: see ``_check_lost``."""
    node = _now(own_node)
    faults = Faults(node)
    async with node.client() as client:
        sandbox = await client.sandbox(IMAGE)
        program = await sandbox.spawn("sleep", "1000")
        with faults.armed(name, "kill"):
            part = operation.removeprefix("new ")
            doing = _new(part)(node) if part != operation else OPERATIONS[operation](client, sandbox.id, name)
            step = asyncio.ensure_future(doing)
            await asyncio.to_thread(faults.wait_passed, name)
            if part != operation:
                await step  # it holds the node until it knows that the keeper is gone
            again = await asyncio.to_thread(_repaired, node)
        await _gone(step)
    await _check_lost(again, whole, sandbox.id, program.id, name, operation)


@pytest.mark.parametrize("name", OTHERS)
async def test_the_keeper_dies_at(own_node: RunningNode, whole: list[str], name: str) -> None:
    """Killed at a step of the runtime's: the same."""
    node = _now(own_node)
    faults, runtime, operation = Faults(node), node.services()["runtime"].pid, name.split(".")[1]
    async with node.client() as client:
        sandbox = await client.sandbox(IMAGE)
        program = await sandbox.spawn("sleep", "1000")
        with faults.armed(name, "stop"):
            step = asyncio.ensure_future(OPERATIONS[operation](client, sandbox.id, name))
            await asyncio.to_thread(faults.wait_passed, name)
            await asyncio.to_thread(node.kill, "keeper")
            with contextlib.suppress(ProcessLookupError):
                os.kill(runtime, signal.SIGCONT)
            again = await asyncio.to_thread(_repaired, node)
        await _gone(step)
    await _check_lost(again, whole, sandbox.id, program.id, name, operation)


async def test_the_rarer_roads_end_with_the_keeper(own_node: RunningNode, whole: list[str], tmp_path: Path) -> None:
    """A terminal, a run of a session, an upload, a kept disk, a pause and a job, all under way: each says the truth,
    none a result; the job can be had again, and nothing of the rest is left.
    """
    node = _now(own_node)
    big = tmp_path / "big"
    await asyncio.to_thread(big.write_bytes, bytes(64 << 20))
    async with node.client() as client:
        kept = await client.sandbox(IMAGE)
        assert (await kept.stop(keep="disk")).kept_until is not None
        job = await client.job("held", lease_s=60).open()
        sandbox, paused = await job.sandbox(IMAGE), await client.sandbox(IMAGE)
        await paused.pause()
        terminal = await sandbox.spawn("cat", pty=dsec.Pty(24, 80))
        session = await sandbox.open_session(key="shell")
        under_way, go_on = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def progress(_: int) -> None:
            # In the transfer's own thread, which stands still over it.
            loop.call_soon_threadsafe(under_way.set)
            go_on.wait(60)

        run = asyncio.create_task(session.run("echo > /tmp/begun; sleep 1000", key="run"))
        upload = asyncio.create_task(sandbox.files.upload(big, "/big", progress=progress))
        await under_way.wait()
        await sandbox.run_shell("until [ -e /tmp/begun ]; do sleep 0.01; done", timeout_s=20)
        await asyncio.to_thread(node.kill, "keeper")
        go_on.set()
        again = await asyncio.to_thread(_repaired, node)
        for under in (run, upload):
            under.cancel()
            assert isinstance((await asyncio.gather(under, return_exceptions=True))[0], BaseException)
        await job.detach()
    async with again.client() as client:
        for each in (sandbox.id, paused.id):
            assert (await client.attach(each).info()).cause == "keeper"
        lost = client.attach(sandbox.id)
        with pytest.raises(dsec.OutcomeUnknown):
            await dsec.Exec(lost, terminal.id, None).wait()
        with pytest.raises((dsec.OutcomeUnknown, dsec.SandboxGone)):
            await dsec.Session(lost, session.id).run("echo > /tmp/begun; sleep 1000", key="run")
        with pytest.raises(dsec.SandboxGone):
            await lost.files.upload(big, "/big")
        assert (await client.attach(kept.id).info()).kept_until is None
        with pytest.raises(dsec.NotFound):
            await client.sandbox(IMAGE, from_disk=kept.id)
        async with client.job("held", lease_s=60) as taken:
            assert ((await taken.info()).state, (await taken.info()).live) == ("held", 0)
            assert (await (await taken.sandbox(IMAGE)).exec("true")).ok
    _check_whole(again, whole)


async def _check_lost(
    node: RunningNode, whole: list[str], sandbox_id: str, running: str, name: str, operation: str
) -> None:
    """The sandbox is lost, its execs have an unknown outcome, the node works, and nothing of before is left of it."""
    async with node.client() as client:
        lost = client.attach(sandbox_id)
        info = await lost.info()
        assert (info.state, info.cause) == ("lost", "keeper")
        with pytest.raises(dsec.OutcomeUnknown):
            await dsec.Exec(lost, running, None).wait()
        if operation in ("exec", "stdin", "kill"):
            await _check_never_a_wrong_result(lost, name, operation)
        async with client.sandbox(IMAGE) as fresh:
            assert (await fresh.exec("echo", "works")).stdout == "works\n"
        await client.stop_all(mine=True)  # a create that was recorded is finished for whoever comes with its key
    _check_whole(node, whole)


def _check_whole(node: RunningNode, whole: list[str]) -> None:
    try:
        wait_until(lambda: node.leftovers() == [] and traces(node) == whole, "nothing is left")
    except AssertionError:
        now = traces(node)
        more, less = [each for each in now if each not in whole], [each for each in whole if each not in now]
        pytest.fail(f"left behind: {node.leftovers()}; more: {more}; missing: {less}")


async def _check_never_a_wrong_result(lost: dsec.Sandbox, name: str, operation: str) -> None:
    program = dsec.Exec(lost, exec_id(lost.id, name), None)
    try:
        result = await program.wait()
    except (dsec.OutcomeUnknown, dsec.NotFound):
        return
    assert name in TOLD, f"a result of which nobody can know: {result}"
    assert (result.exit_code, result.stdout, result.stderr) == (3, "out", "err")


def _repaired(node: RunningNode) -> RunningNode:
    """``dsec up``, once the keeper is dead."""
    report = up(UpOptions(paths=node.paths))
    assert report.repaired is not None
    return RunningNode(paths=node.paths, url=report.url, token=node.token)


def _now(node: RunningNode) -> RunningNode:
    """The node as it is now: after a repair it has another port."""
    address = node.services()["apiserver"].addresses[0].removeprefix("tcp:")
    return RunningNode(paths=node.paths, url=f"http://{address}", token=node.token)


async def _gone(step: asyncio.Future[None]) -> None:
    """End a step that has lost its node. None has come to its end as if nothing had happened."""
    step.cancel()
    await asyncio.gather(step, return_exceptions=True)
