"""From create to tombstone: main process, names, labels, lifetimes, stops, what stays readable."""

from __future__ import annotations

import asyncio
import time

import pytest

import dsec
from dsec.api.ids import new_key
from dsec.client.results import ExecStarted, Stderr, Stdout
from dsec.testing.node import RunningNode, wait_until

from .conftest import IMAGE

pytestmark = [pytest.mark.node, pytest.mark.anyio]


async def logs_of(sandbox: dsec.Sandbox, *, follow: bool = False) -> tuple[int, bytes, bytes]:
    """(number of execs, standard output, standard error) of ``logs``."""
    started, out, err = 0, b"", b""
    async for event in sandbox.logs(follow=follow):
        if isinstance(event, ExecStarted):
            started += 1
        elif isinstance(event, Stdout):
            out += event.data
        elif isinstance(event, Stderr):
            err += event.data
    return started, out, err


async def ended(sandbox: dsec.Sandbox) -> dsec.SandboxInfo:
    """Wait for the end by following the logs, then the tombstone."""
    await logs_of(sandbox, follow=True)
    return await sandbox.info()


async def test_the_main_process_is_the_sandbox(client: dsec.DSecClient) -> None:
    """Its end stops the sandbox; its code and output are the tombstone's."""
    sandbox = await client.sandbox(IMAGE, command=["sh", "-c", "echo out; echo err >&2; exit 7"])
    info = await ended(sandbox)
    assert (info.state, info.cause, info.exit_code) == ("stopped", "main-exited", 7)
    assert await logs_of(sandbox) == (1, b"out\n", b"err\n")
    with pytest.raises(dsec.SandboxGone) as gone:
        await sandbox.exec("true")
    assert (gone.value.cause, gone.value.fault) == ("main-exited", "sandbox")


async def test_a_main_process_that_a_signal_ends(client: dsec.DSecClient) -> None:
    """There is no exit code to invent: 128 + signal is the shell's word, the exec says the signal."""
    sandbox = await client.sandbox(IMAGE, command=["sh", "-c", "kill -9 $$"])
    info = await ended(sandbox)
    (main,) = await sandbox.execs()
    assert (main.ended, main.signal, main.exit_code) == ("signalled", 9, None)
    assert info.cause == "main-exited" and info.exit_code in (None, 137)


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (["/no/such"], dsec.ExecutableNotFound),
        (["/etc/passwd"], dsec.NotExecutable),
    ],
)
async def test_a_main_process_that_cannot_run(
    node: RunningNode, client: dsec.DSecClient, command: list[str], error: type[dsec.DSecError]
) -> None:
    """The create itself fails, by the typed error; no sandbox is left."""
    with pytest.raises(error):
        await client.sandbox(IMAGE, command=command)
    assert node.live_sandboxes() == []


async def test_idle_end(client: dsec.DSecClient) -> None:
    """Without activity it ends by itself, and the story says why."""
    sandbox = await client.sandbox(IMAGE, idle_timeout_s=0.5)
    assert (await sandbox.exec("true")).ok
    info = await ended(sandbox)
    assert (info.state, info.cause) == ("stopped", "idle")
    story = await sandbox.story()
    assert [(entry.state, entry.actor) for entry in story][-1] == ("stopped", "runtime")
    with pytest.raises(dsec.SandboxGone) as gone:
        await sandbox.exec("true")
    assert (gone.value.cause, gone.value.fault) == ("idle", "caller")


async def test_a_running_exec_is_activity(client: dsec.DSecClient) -> None:
    """Idle counts from the end of the last exec, however long it ran."""
    sandbox = await client.sandbox(IMAGE, idle_timeout_s=0.5)
    assert (await sandbox.exec("sleep", "1.2")).ok
    assert (await sandbox.info()).state == "running"
    assert (await ended(sandbox)).cause == "idle"


async def test_lifetime_ends_what_runs(client: dsec.DSecClient) -> None:
    """lifetime_s always ends it: the running exec is SandboxGone(lifetime) with what it had said."""
    sandbox = await client.sandbox(IMAGE, lifetime_s=1)
    with pytest.raises(dsec.SandboxGone) as gone:
        await sandbox.run_shell("echo said; sleep 1000")
    assert (gone.value.cause, gone.value.fault) == ("lifetime", "caller")
    assert gone.value.partial is not None and gone.value.partial.stdout == "said\n"
    assert (await sandbox.info()).cause == "lifetime"


async def test_stop_is_confirmed_and_repeatable(node: RunningNode, client: dsec.DSecClient) -> None:
    """When stop returns no process is left, with proof and usage; again it gives the same answer."""
    sandbox = await client.sandbox(IMAGE)
    await sandbox.run_shell("for i in 1 2 3 4 5; do setsid -f sleep 1000; done", check=True)
    stopped = await sandbox.stop()
    assert node.sandbox_processes() == set()
    assert (stopped.id, stopped.cause, stopped.proof_of_death.processes) == (sandbox.id, "stopped", 0)
    assert stopped.usage.cpu_s > 0
    assert await sandbox.stop() == stopped


async def test_stop_with_grace(client: dsec.DSecClient) -> None:
    """With grace_s the main process may react to SIGTERM first."""
    script = "trap 'echo cleaned; exit 3' TERM; echo ready; while :; do sleep 0.02; done"
    sandbox = await client.sandbox(IMAGE, command=["sh", "-c", script])
    async for event in sandbox.logs(follow=True):
        if isinstance(event, Stdout):
            break
    await sandbox.stop(grace_s=10)
    assert (await logs_of(sandbox))[1] == b"ready\ncleaned\n"


async def test_a_quick_main_process_is_heard_whole(node: RunningNode, client: dsec.DSecClient) -> None:
    """Its sandbox has ended and is forgotten by the runtime before anybody looks: ``logs`` has all that it said."""
    sandbox = await client.sandbox(IMAGE, command=["seq", "1", "100000"])
    await asyncio.to_thread(wait_until, lambda: node.stats()["slots_used"] == 0, "the runtime has forgotten it")
    assert (await logs_of(sandbox, follow=True))[1] == b"".join(b"%d\n" % number for number in range(1, 100001))


async def test_the_tombstone_can_be_read(client: dsec.DSecClient) -> None:
    """info, story, usage, execs, logs and find(state="stopped") of a stopped one; remove drops it."""
    label = new_key()
    sandbox = await client.sandbox(IMAGE, labels={"grave": label})
    await sandbox.run_shell("echo one")
    await sandbox.run_shell("seq 1 100000; exit 4")
    await sandbox.stop()
    assert [entry.state for entry in await sandbox.story()] == ["creating", "running", "stopped"]
    times = [entry.at for entry in await sandbox.story()]
    assert times == sorted(times)
    assert [one.exit_code for one in await sandbox.execs()] == [0, 4]
    assert (await sandbox.usage()).cpu_s > 0
    started, out, _ = await logs_of(sandbox)
    assert started == 2 and out.startswith(b"one\n") and out.endswith(b"99999\n100000\n")
    assert len(out) >= 64 << 10
    assert [info.id async for info in client.find(labels={"grave": label}, state="stopped")] == [sandbox.id]
    assert [info.id async for info in client.find(labels={"grave": label})] == []
    await sandbox.remove()
    with pytest.raises(dsec.NotFound):
        await sandbox.info()
    with pytest.raises(dsec.NotFound):
        await logs_of(sandbox)


async def test_remove_of_a_running_one_needs_force(client: dsec.DSecClient) -> None:
    """Without force a Conflict and it lives on; with force it is stopped and gone."""
    sandbox = await client.sandbox(IMAGE)
    with pytest.raises(dsec.Conflict):
        await sandbox.remove()
    assert (await sandbox.exec("true")).ok
    await sandbox.remove(force=True)
    with pytest.raises(dsec.NotFound):
        await sandbox.info()


async def test_names(client: dsec.DSecClient) -> None:
    """A name is unique among the live, resolves by get, is the host name, and is free again after the end."""
    async with client.sandbox(IMAGE, name="worker-1") as first:
        assert await client.get("worker-1") == first
        assert (await first.exec("hostname")).stdout == "worker-1\n"
        with pytest.raises(dsec.Conflict) as taken:
            await client.sandbox(IMAGE, name="worker-1")
        assert taken.value.remedy
    async with client.sandbox(IMAGE, name="worker-1") as second:
        assert second != first
        assert await client.get("worker-1") == second
    with pytest.raises(dsec.NotFound):
        await client.get("no-such-name")


async def test_labels_find_and_stop_all(client: dsec.DSecClient) -> None:
    """find needs all labels to match; stop_all stops those and no others, and refuses to go without a filter."""
    batch = new_key()
    made = await client.sandboxes(
        [dsec.SandboxArgs(IMAGE, labels={"batch": batch, "n": str(n)}) for n in range(4)]
    ).all()
    ids = [one.sandbox.id for one in made if one.sandbox is not None]
    assert len(ids) == 4
    assert {info.id async for info in client.find(labels={"batch": batch})} == set(ids)
    assert [info.id async for info in client.find(labels={"batch": batch, "n": "2"})] == [ids[2]]
    report = await client.stop_all(labels={"batch": batch, "n": "2"})
    assert report.stopped == [ids[2]]
    with pytest.raises(dsec.InvalidArgument):
        await client.stop_all()
    report = await client.stop_all(mine=True)
    assert set(report.stopped) == set(ids) - {ids[2]} and report.failed == []
    assert [info.id async for info in client.find()] == []


async def test_stop_all_leaves_others_alone(node: RunningNode, client: dsec.DSecClient) -> None:
    """A sandbox that another principal made is never touched: owner is the token's principal, tokens share one."""
    token = await client.tokens.create("other", ttl_s=60)
    async with dsec.DSecClient(node.url, token.token) as other, other.sandbox(IMAGE) as theirs:
        assert (await theirs.exec("true")).ok
        assert (await client.stop_all(mine=True)).stopped == [theirs.id]
    await client.tokens.revoke(token.id)
    async with dsec.DSecClient(node.url, token.token) as revoked:
        with pytest.raises(dsec.Denied):
            await revoked.sandbox(IMAGE)


async def test_many_sandboxes(client: dsec.DSecClient) -> None:
    """n=24, each as it becomes ready; keys, indices and IDs differ; all of them work."""

    async def use(sandbox: dsec.Sandbox) -> str:
        async with asyncio.timeout(30):
            return (await sandbox.exec("cat", "/etc/hostname")).stdout

    sandboxes, keys = [], set()
    async for made in client.sandboxes(dsec.SandboxArgs(IMAGE, disk_mib=256), n=24):
        assert made.error is None and made.sandbox is not None
        sandboxes.append(made.sandbox)
        keys.add(made.key)
    assert len({one.id for one in sandboxes}) == len(keys) == 24
    hosts = await asyncio.gather(*(use(one) for one in sandboxes))
    assert len(hosts) == 24
    await asyncio.gather(*(one.stop() for one in sandboxes))


async def test_one_bad_among_many(client: dsec.DSecClient) -> None:
    """The failure of one create is in its Created; the others are made."""
    args = [dsec.SandboxArgs(IMAGE), dsec.SandboxArgs("no/such:image", pull="never"), dsec.SandboxArgs(IMAGE)]
    made = await client.sandboxes(args).all()
    assert [one.sandbox is not None for one in made] == [True, False, True]
    assert isinstance(made[1].error, dsec.ImageNotFound)
    await client.stop_all(mine=True)


async def test_create_keys(client: dsec.DSecClient) -> None:
    """A key gives the same sandbox, side by side, later, and stopped; another body is a Conflict."""
    key = new_key()
    one, two = await asyncio.gather(*(client.sandbox(IMAGE, key=key) for _ in range(2)))
    assert one == two == await client.sandbox(IMAGE, key=key)
    with pytest.raises(dsec.Conflict):
        await client.sandbox(IMAGE, key=key, memory_mib=512)
    await one.stop()
    again = await client.sandbox(IMAGE, key=key)
    assert again == one and (await again.info()).state == "stopped"


async def test_cancelled_creates_leave_nothing(node: RunningNode, client: dsec.DSecClient) -> None:
    """Creates cancelled at any moment are withdrawn: none is left, and the node is as it was."""
    tasks = [asyncio.create_task(awaited(client)) for _ in range(20)]
    for index, task in enumerate(tasks):
        await asyncio.wait([task], timeout=0.001 * index)
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    for made in results:
        if isinstance(made, dsec.Sandbox):
            await made.stop()
        else:
            assert isinstance(made, asyncio.CancelledError), made
    await asyncio.to_thread(wait_until, lambda: node.live_sandboxes() == [], "the creates are withdrawn")


async def awaited(client: dsec.DSecClient) -> dsec.Sandbox:
    """A create as a coroutine."""
    return await client.sandbox(IMAGE)


async def test_a_create_whose_deadline_is_short(node: RunningNode, client: dsec.DSecClient) -> None:
    """DeadlineExceeded or a sandbox, and nothing is left of the former."""
    for deadline_s in (0.001, 0.003, 0.006):
        try:
            sandbox = await client.sandbox(IMAGE, deadline_s=deadline_s)
        except dsec.DeadlineExceeded as error:
            assert isinstance(error, TimeoutError) and error.remedy
        else:
            await sandbox.stop()
    await asyncio.to_thread(wait_until, lambda: node.live_sandboxes() == [], "nothing is left of them")


async def test_info_says_what_was_asked(client: dsec.DSecClient) -> None:
    """Limits, times, labels, image, owner and phases; attach needs no round trip and info then knows all."""
    args = dsec.SandboxArgs(IMAGE, memory_mib=(100, 300), cpu=0.5, pids=99, disk_mib=300, labels={"a": "b"})
    before = time.time()
    async with client.sandbox(args, idle_timeout_s=77, lifetime_s=88) as sandbox:
        info = await client.attach(sandbox.id).info()
        assert (info.memory_mib, info.cpu, info.pids, info.disk_mib) == (300, 0.5, 99, 300)
        assert (info.idle_timeout_s, info.lifetime_s, info.labels) == (77, 88, {"a": "b"})
        assert (info.image, info.state, info.network, info.backend) == (IMAGE, "running", None, "container")
        assert before - 1 < info.created_at <= (info.started_at or 0) <= time.time()
        assert info.usage is not None and info.usage.wall_s > 0
        assert info.phases_us
