"""Snapshots and forks of the SDK over a fake node."""

from __future__ import annotations

import pytest

import dsec
from dsec.client.client import DSecClient
from dsec.sync import DSecClient as DSecClientSync
from dsec.testing.fake_node import FakeNode

pytestmark = pytest.mark.anyio


async def test_snapshots_are_taken_listed_and_removed(client: DSecClient) -> None:
    """The same key is the same snapshot; its arguments make a sandbox."""
    sandbox = await client.sandbox("image", env={"A": "1"})
    one = await sandbox.snapshot(key="k")
    assert (await sandbox.snapshot(key="k")).id == one.id != (await sandbox.snapshot()).id
    assert one.args.image == "image" and one.args.from_snapshot == one.id and one.args.env == {"A": "1"}
    assert one.args.endpoints["llm"] == dsec.Endpoint("http://127.0.0.1:1")
    assert (await client.snapshots.get(one.id)).id == one.id
    assert len(await client.snapshots.list()) == 2
    await client.snapshots.remove(one.id)
    with pytest.raises(dsec.NotFound):
        await client.snapshots.get(one.id)
    with pytest.raises(dsec.InvalidArgument):
        await client.snapshots.get("sb-fake-x")


async def test_a_fork_gives_each_as_it_is_ready_and_leaves_no_snapshot(fake: FakeNode, client: DSecClient) -> None:
    """All begin with the same snapshot, like their parent but for what is said; one that fails is an item."""
    sandbox = await client.sandbox("image", labels={"role": "parent"})
    fake.edge.fail_next("POST /v1/sandboxes", dsec.InvalidArgument("not this one"))
    made = await sandbox.fork(4, labels={"role": "child"}).all()
    assert [each.index for each in made] == [0, 1, 2, 3]
    failed = [each for each in made if each.error is not None]
    assert len(failed) == 1 and isinstance(failed[0].error, dsec.InvalidArgument)
    children = [each.sandbox for each in made if each.sandbox is not None]
    assert all(child.labels == {"role": "child"} for child in children)
    assert fake.edge.snapshots == {}


async def test_a_fork_of_the_same_key_gives_the_same_sandboxes(fake: FakeNode, client: DSecClient) -> None:
    """Also after the snapshot is gone; and leaving the iteration withdraws what was not taken."""
    sandbox = await client.sandbox("image")
    first = [made.sandbox async for made in sandbox.fork(2, key="again")]
    again = [made.sandbox async for made in sandbox.fork(2, key="again")]
    assert set(first) == set(again)
    ready = aiter(sandbox.fork(3))
    taken = await anext(ready)
    await ready.aclose()
    assert taken.sandbox is not None and fake.edge.snapshots == {}
    with pytest.raises(dsec.InvalidArgument):
        sandbox.fork(0)


def test_plain_python_forks_too(fake: FakeNode) -> None:
    """The blocking face has both."""
    with DSecClientSync(fake.url, fake.token) as client:
        sandbox = client.sandbox("image")
        assert sandbox.snapshot().info.sandbox_id == sandbox.id
        children = [made.sandbox for made in sandbox.fork(2)]
        assert len({child.id for child in children if child is not None}) == 2
        assert len(client.snapshots.list()) == 1


async def test_packing_says_what_is_asked(client: DSecClient) -> None:
    """Residue, description and commands go with it; the answer has where it comes from."""
    sandbox = await client.sandbox("image")
    made = await sandbox.pack_diff("workspace/w:1", description="d", commands=("a", "b"), key="k")
    assert (made.reference, made.provenance.description, made.provenance.commands) == (
        "workspace/w:1",
        "d",
        ["a", "b"],
    )
    with pytest.raises(dsec.InvalidArgument):
        await sandbox.pack_diff("workspace/w:1", key="not a key")
