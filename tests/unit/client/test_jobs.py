"""A job as its holder has it: signs of life, the number on every request, refusal once another holds it."""

from __future__ import annotations

import pickle

import pytest

import dsec
from dsec.client import owned
from dsec.client.client import DSecClient
from dsec.errors import NodeError
from dsec.testing.fake_node import FakeNode

pytestmark = pytest.mark.anyio


async def until(fake: FakeNode, count: int) -> None:
    """Wait for signs of life."""
    import asyncio

    async with asyncio.timeout(10):
        while len(fake.edge.beats) < count:  # noqa: ASYNC110  (the other side lives in another thread)
            await asyncio.sleep(0.01)


async def test_signs_of_life_go_on_until_the_end(fake: FakeNode, client: DSecClient) -> None:
    """Every third of the lease, also after one that failed; none after the end, which stops the job's sandboxes."""
    async with client.job("train", lease_s=0.3) as job:
        sandbox = await job.sandbox("image")
        await until(fake, 2)
        fake.edge.fail_next("POST /v1/jobs/train/heartbeat", *[NodeError("away") for _ in range(3)])
        await until(fake, len(fake.edge.beats) + 2)
        assert set(fake.edge.beats) == {("train", job.fence)} and job.lost_by is None
    assert fake.edge.sandboxes[sandbox.id].state == "stopped"
    with pytest.raises(dsec.InvalidArgument):
        client.job("other").sandbox("image")


async def test_an_older_holder_is_refused_everywhere(fake: FakeNode, client: DSecClient) -> None:
    """Its creates, its sandboxes' handles, a pickled one too, and its signs of life, which then end."""
    old = await client.job("train", lease_s=0.3).open()
    sandbox = await old.sandbox("image")
    handle = pickle.dumps(sandbox)
    async with client.job("train") as new:
        assert new.fence > old.fence
        for call in (old.sandbox("image"), sandbox.stop(), sandbox.info(), old.stop_all(), old.info()):
            with pytest.raises(dsec.Fenced):
                await call
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("DSEC_TOKEN", fake.token)
            restored = pickle.loads(handle)
            with pytest.raises(dsec.Fenced):
                await restored.info()
            await restored._client.close()
        with pytest.raises(dsec.Fenced):
            await sandbox.exec("true")
        beating = old._beating
        assert beating is not None
        await beating
        assert isinstance(old.lost_by, dsec.Fenced)
        assert [info.id async for info in new.find()] == [sandbox.id]
        assert (await new.attach(sandbox.id).exec("true")).ok
        await old.detach()


async def test_a_fenced_holders_block_ends_quietly(fake: FakeNode, client: DSecClient) -> None:
    """Its sandboxes are the other's: leaving the block stops nothing and raises nothing."""
    async with client.job("train") as old:
        sandbox = await old.sandbox("image")
        new = await client.job("train").open()
    assert fake.edge.sandboxes[sandbox.id].state == "running"
    await new.stop()
    assert fake.edge.sandboxes[sandbox.id].state == "stopped"


async def test_a_process_that_leaves_without_cleaning_up_ends_its_job(fake: FakeNode, client: DSecClient) -> None:
    """The second Ctrl-C's way out ends the job in its holder's name; a zombie's way out ends nothing."""
    job = await client.job("train").open()
    sandbox = await job.sandbox("image")
    assert owned.stop_owned() == 0
    assert fake.edge.sandboxes[sandbox.id].state == "stopped"
    zombie = await client.job("train").open()
    left = await zombie.sandbox("image")
    new = await client.job("train").open()
    owned.disown(new._owned)  # type: ignore[arg-type]
    owned.stop_owned()
    assert fake.edge.sandboxes[left.id].state == "running"
    for each in (job, zombie, new):
        await each.detach()


@pytest.mark.parametrize("name", ["", "a/b", "a b", "-x", "x" * 65])
async def test_bad_names(client: DSecClient, name: str) -> None:
    """A job's name is checked before anything is sent."""
    with pytest.raises(dsec.InvalidArgument):
        client.job(name)
    with pytest.raises(dsec.InvalidArgument):
        client.job("x", on_lost="explode")  # type: ignore[arg-type]
