"""Creates: retried by key within the deadline, withdrawn when cancelled, stopped at the end of ``async with``."""

from __future__ import annotations

import asyncio

import pytest

import dsec
from dsec.client import owned
from dsec.client.client import DSecClient
from dsec.testing.fake_node import FakeNode

pytestmark = pytest.mark.anyio
CREATE = "POST /v1/sandboxes"


async def test_async_with_stops_the_sandbox(fake: FakeNode, client: DSecClient) -> None:
    """At the end of the block the sandbox is stopped, also when the block raised, and that error comes out."""
    async with client.sandbox("image", labels={"a": "b"}, memory_mib=512) as sandbox:
        assert sandbox.labels == {"a": "b"} and sandbox.backend == "container"
    assert fake.edge.sandboxes[sandbox.id].state == "stopped"
    with pytest.raises(RuntimeError, match="mine"):
        async with client.sandbox("image") as other:
            raise RuntimeError("mine")
    assert fake.edge.sandboxes[other.id].state == "stopped"


async def test_the_end_of_a_gone_sandbox_is_quiet(client: DSecClient) -> None:
    """A sandbox that was stopped or removed inside its block does not disturb the block's end."""
    async with client.sandbox("image") as sandbox:
        await sandbox.stop()
        await sandbox.remove()


async def test_a_full_node_is_waited_for(fake: FakeNode, client: DSecClient) -> None:
    """With on_full="wait" a CapacityError is retried under the same key, honouring retry_after_s."""
    full = dsec.CapacityError("full", retry_after_s=0.05)
    fake.edge.fail_next(CREATE, full, full, dsec.NodeError("restarting"))
    loop = asyncio.get_running_loop()
    began = loop.time()
    sandbox = await client.sandbox("image", key="k")
    assert loop.time() - began >= 0.1
    assert list(fake.edge.by_key) == ["k"] and sandbox.id in fake.edge.sandboxes
    assert len([request for request in fake.edge.requests if request[:2] == ("POST", "/v1/sandboxes")]) == 4


async def test_on_full_raise_does_not_wait(fake: FakeNode, client: DSecClient) -> None:
    """With on_full="raise" the first CapacityError comes out, retryable and the node's."""
    fake.edge.fail_next(CREATE, dsec.CapacityError("full", retry_after_s=9))
    with pytest.raises(dsec.CapacityError) as raised:
        await client.sandbox("image", on_full="raise")
    assert raised.value.retryable and raised.value.retry_after_s == 9 and raised.value.is_infra


async def test_the_deadline_ends_the_waiting(fake: FakeNode, client: DSecClient) -> None:
    """When the next retry would come after the deadline, the last CapacityError comes out at once."""
    fake.edge.fail_next(CREATE, dsec.CapacityError("full", retry_after_s=60))
    with pytest.raises(dsec.CapacityError):
        await client.sandbox("image", deadline_s=1)


async def test_a_silent_node_is_a_deadline_exceeded_and_withdrawn(
    fake: FakeNode, client: DSecClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A create that is not answered in time raises DeadlineExceeded and withdraws the key that the SDK had made."""
    monkeypatch.setattr("dsec.client.creating._ANSWER_S", 0.05)
    fake.edge.hold(CREATE)
    creating = client.sandbox("image", deadline_s=0.1)
    with pytest.raises(dsec.DeadlineExceeded) as raised:
        await creating
    assert isinstance(raised.value, TimeoutError)
    assert fake.edge.cancelled == [creating.key]


async def test_a_cancelled_create_is_withdrawn(fake: FakeNode, client: DSecClient) -> None:
    """Cancelling a create sends a delete by its key before the cancellation comes back."""
    fake.edge.hold(CREATE)
    task = asyncio.create_task(_create(client, key="mine/1"))
    await asyncio.to_thread(fake.do, fake.edge.until_held(CREATE))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert fake.edge.cancelled == ["mine/1"]


async def _create(client: DSecClient, key: str) -> dsec.Sandbox:
    return await client.sandbox("image", key=key)


async def test_a_key_gives_the_same_sandbox_and_another_body_a_conflict(client: DSecClient) -> None:
    """Two creates with one key are one sandbox; with another body it is a Conflict."""
    first = await client.sandbox("image", key="k")
    assert (await client.sandbox("image", key="k")).id == first.id
    with pytest.raises(dsec.Conflict):
        await client.sandbox("other", key="k")


async def test_many_come_as_they_are_ready(client: DSecClient) -> None:
    """sandboxes() gives each Created once, with its place and key; all() gives them in the order asked."""
    args = dsec.SandboxArgs("image")
    seen = [made async for made in client.sandboxes(args, n=20)]
    assert sorted(made.index for made in seen) == list(range(20))
    assert len({made.sandbox.id for made in seen if made.sandbox is not None}) == 20
    listed = await client.sandboxes([args, args.replace(memory_mib=2048)], keys=["a", "b"]).all()
    assert [(made.index, made.key) for made in listed] == [(0, "a"), (1, "b")]


async def test_the_failure_of_one_leaves_the_others(fake: FakeNode, client: DSecClient) -> None:
    """One create's error is in its Created; the rest succeed."""
    fake.edge.fail_next(CREATE, dsec.ImageNotFound("no such image"))
    made = await client.sandboxes(dsec.SandboxArgs("image"), n=5).all()
    errors = [one.error for one in made if one.error is not None]
    assert [type(error) for error in errors] == [dsec.ImageNotFound]
    assert len([one for one in made if one.sandbox is not None]) == 4


async def test_leaving_the_iteration_leaves_nothing(fake: FakeNode, client: DSecClient) -> None:
    """What was not taken from sandboxes() is withdrawn or stopped."""
    many = client.sandboxes(dsec.SandboxArgs("image"), n=8)
    ready = aiter(many)
    taken = await anext(ready)
    await ready.aclose()
    assert taken.sandbox is not None
    live = [info.id for info in fake.edge.sandboxes.values() if info.state == "running"]
    assert live == [taken.sandbox.id]


async def test_at_most_so_many_are_in_flight(fake: FakeNode) -> None:
    """max_creates_in_flight bounds the creates that are sent at once; the rest wait their turn."""
    async with DSecClient(fake.url, fake.token, max_creates_in_flight=3) as client:
        fake.edge.hold(CREATE)
        task = asyncio.create_task(client.sandboxes(dsec.SandboxArgs("image"), n=10).all())
        await asyncio.to_thread(fake.do, fake.edge.until_held(CREATE))
        with pytest.raises(dsec.DeadlineExceeded, match="no create could be sent"):
            await client.sandbox("image", deadline_s=0.2)
        assert len([request for request in fake.edge.requests if request[0] == "POST"]) == 3
        fake.edge._holds[CREATE]  # still held
        fake.do(_release(fake))
        assert all(made.sandbox is not None for made in await task)


async def _release(fake: FakeNode) -> None:
    fake.edge.release(CREATE)


async def test_the_second_ctrl_c_stops_what_is_owned(fake: FakeNode, client: DSecClient) -> None:
    """stop_owned ends, without an event loop, an open block's sandbox and a create in flight; others stay."""
    kept = await client.sandbox("image")
    block = client.sandbox("image")
    sandbox = await block.__aenter__()
    fake.edge.hold(CREATE)
    task = asyncio.create_task(_create(client, key="flying"))
    await asyncio.to_thread(fake.do, fake.edge.until_held(CREATE))
    assert await asyncio.to_thread(owned.stop_owned, 5.0) == 0
    assert fake.edge.sandboxes[sandbox.id].state == "stopped"
    assert fake.edge.sandboxes[kept.id].state == "running"
    assert fake.edge.cancelled == ["flying"]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_finding_and_stopping_many(fake: FakeNode, client: DSecClient) -> None:
    """find and stop_all go by labels; stop_all needs a filter; get resolves a name."""
    one = await client.sandbox("image", labels={"run": "1"}, name="first")
    await client.sandbox("image", labels={"run": "2"})
    assert [info.id async for info in client.find(labels={"run": "1"})] == [one.id]
    assert (await client.get("first")).id == one.id
    with pytest.raises(dsec.NotFound):
        await client.get("nobody")
    with pytest.raises(dsec.InvalidArgument):
        await client.stop_all()
    assert (await client.stop_all(labels={"run": "1"})).stopped == [one.id]
    assert [info.id async for info in client.find(state="stopped")] == [one.id]


async def test_the_papers_form(client: DSecClient) -> None:
    """The paper's minimal session runs as it is printed there, but for its network rules."""
    args = dsec.DSecContainerRunArgs(
        container_image="image", memory_limit_mb=4096, cpu_cores_limit=4, ttl_running_stop=300, init_user="root"
    )
    sandbox = await client.run_container(args, timeout=120)
    info = await sandbox.info()
    assert (info.memory_mib, info.cpu, info.idle_timeout_s, info.user) == (4096, 4, 300, "root")
    result = await sandbox.run_shell("echo hello world")
    assert result.stdout == "hello world\n"
    await sandbox.stop()
