"""Snapshots and forks: of one moment, exact, copied on write, gone when they are removed or their time is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import dsec
from dsec.node.local_calls import RuntimeCalls
from dsec.testing.node import RunningNode

from .conftest import IMAGE

pytestmark = [pytest.mark.node, pytest.mark.anyio]

WRITER = """
i=0
while [ ! -e /root/over ]; do
    i=$((i+1)); echo $i > /root/a.new; sync /root/a.new; mv /root/a.new /root/a
    echo $i > /root/b.new; sync /root/b.new; mv /root/b.new /root/b
done
"""
WROTE = """
set -e
echo kept > /root/note; chmod 4750 /root/note; chown 33:34 /root/note; chmod 4750 /root/note
ln /root/note /root/hard; ln -s note /root/link; truncate -s 1G /root/sparse; echo end >> /root/sparse
rm -r /usr/share/doc; rm -r /etc/apt; mkdir /etc/apt; echo mine > /etc/apt/mine
python3 - <<END
import os
open(b"/root/n\\xff\\n", "w").close()
os.setxattr("/root/note", "user.x", b"y")
END
"""
LOOKS = r"""
set -e
stat -c '%n %a %u %g %h' /root/note; cat /root/link; stat -c '%s' /root/sparse; tail -n1 /root/sparse | tr -d '\0'
test ! -e /usr/share/doc; ls /etc/apt
python3 -c 'import os; print(sorted(os.listdir(b"/root")), os.getxattr("/root/hard", "user.x"))'
"""


@pytest.fixture(autouse=True)
async def no_snapshot_left(node: RunningNode, client: dsec.DSecClient) -> AsyncIterator[None]:
    """Each test's snapshots go with it, from the pool too."""
    yield
    for each in await client.snapshots.list():
        await client.snapshots.remove(each.id)
    assert found(node) == []


def found(node: RunningNode) -> list[str]:
    """The snapshots that the runtime keeps."""
    with RuntimeCalls(node.paths.runtime_socket) as runtime:
        return [str(one["snapshot_id"]) for one in runtime.call("snapshot.list", {})["snapshots"]]


async def test_a_copy_has_all_of_it(client: dsec.DSecClient, sandbox: dsec.Sandbox) -> None:
    """Modes, owners, links, holes, attributes, odd names, deletions and replaced directories, at any later time."""
    await sandbox.run_shell(WROTE, check=True)
    before = await sandbox.run_shell(LOOKS, check=True)
    snapshot = await sandbox.snapshot()
    assert not snapshot.info.partial and snapshot.info.size_bytes > 0
    await sandbox.run_shell("rm -r /root/note /root/link /etc/apt", check=True)
    for _ in range(2):
        async with client.sandbox(snapshot.args) as copy:
            assert (await copy.run_shell(LOOKS, check=True)).stdout == before.stdout
            await copy.run_shell("rm /root/note", check=True)
            assert (await copy.info()).from_snapshot == snapshot.id


async def test_it_is_of_one_moment(client: dsec.DSecClient, sandbox: dsec.Sandbox) -> None:
    """Of two files written in turn, each flushed, no snapshot shows the second ahead of the first."""
    writer = await sandbox.spawn(shell=WRITER)
    seen = []
    for _ in range(6):
        snapshot = await sandbox.snapshot()
        async with client.sandbox(snapshot.args) as copy:
            looked = await copy.run_shell("cat /root/a /root/b")
            seen.append([int(word) for word in looked.stdout.split()])
        await client.snapshots.remove(snapshot.id)
    await sandbox.write("/root/over", b"")
    assert (await writer.wait()).ok
    pairs = [pair for pair in seen if len(pair) == 2]
    assert len(pairs) >= 4 and all(a - b in (0, 1) for a, b in pairs), seen
    assert pairs == sorted(pairs) and pairs[0] != pairs[-1]


async def test_much_that_is_dirty_is_written_out_before(client: dsec.DSecClient, sandbox: dsec.Sandbox) -> None:
    """100 MB that were just written are in it, and the sandbox stood still only for a moment."""
    await sandbox.run_shell(
        "head -c 100000000 /dev/urandom > /root/big; sha256sum < /root/big > /root/sum", check=True
    )
    snapshot = await sandbox.snapshot()
    assert snapshot.info.frozen_s < 0.5  # 0.05 on a quiet machine
    async with client.sandbox(snapshot.args) as copy:
        assert (await copy.run_shell("sha256sum < /root/big | cmp - /root/sum")).ok


async def test_a_paused_one_stays_paused(client: dsec.DSecClient, sandbox: dsec.Sandbox) -> None:
    """And one that runs goes on."""
    program = await sandbox.spawn(shell="while :; do echo x >> /root/out; done")
    await sandbox.snapshot()
    assert (await sandbox.info()).state == "running"
    await sandbox.pause()
    snapshot = await sandbox.snapshot()
    assert (await sandbox.info()).state == "paused" and snapshot.info.frozen_s == 0
    assert [entry.state for entry in await sandbox.story()] == ["creating", "running", "paused"]
    await program.kill(grace_s=0)


async def test_its_sandbox_can_write_as_much_again(client: dsec.DSecClient) -> None:
    """What a snapshot holds does not count against what is written in its place; beyond its limit it is refused."""
    async with client.sandbox(IMAGE, disk_mib=40) as sandbox:
        await sandbox.run_shell("head -c 25000000 /dev/urandom > /root/big; sync", check=True)
        await sandbox.snapshot()
        again = await sandbox.run_shell("head -c 25000000 /dev/urandom > /root/other && rm /root/big && sync")
        assert again.ok, again.stderr
        much = await sandbox.run_shell("head -c 60000000 /dev/urandom > /root/more && sync")
        assert not much.ok and "disk" in much.quota_hits


async def test_it_goes_in_time(node: RunningNode, client: dsec.DSecClient, sandbox: dsec.Sandbox) -> None:
    """After keep_s nothing of it is left, and nobody had to ask."""
    snapshot = await sandbox.snapshot(keep_s=1)
    async with asyncio.timeout(30):
        while (await client.snapshots.get(snapshot.id)).info.state != "removed":  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert found(node) == [] and snapshot.id not in node.subvolumes()
    with pytest.raises(dsec.NotFound):
        await client.sandbox(snapshot.args)


@pytest.mark.parametrize("parts", [["runtime"], ["edge"], ["runtime", "edge"]])
async def test_it_survives_restarts(node: RunningNode, client: dsec.DSecClient, parts: list[str]) -> None:
    """A new runtime and a new edge have it, also when its sandbox has ended."""
    async with client.sandbox(IMAGE) as sandbox:
        await sandbox.run_shell("echo kept > /root/note", check=True)
        snapshot = await sandbox.snapshot()
    for part in parts:
        node.kill(part)
    async with client.sandbox(snapshot.args) as copy:
        assert (await copy.run_shell("cat /root/note")).stdout == "kept\n"
    assert found(node) == [snapshot.id]


async def test_eight_forks_are_independent(node: RunningNode, client: dsec.DSecClient, sandbox: dsec.Sandbox) -> None:
    """Each begins with the parent's files of one moment and sees nothing of what the others write."""
    await sandbox.run_shell("echo parent > /root/who; echo base > /root/base", check=True)
    made = await sandbox.fork(8, labels={"role": "child"}, memory_mib=256).all()
    children = [each.sandbox for each in made if each.sandbox is not None]
    assert [each.error for each in made] == [None] * 8

    async def work(number: int, child: dsec.Sandbox) -> tuple[str, Any]:
        await child.run_shell(f"echo {number} > /root/who; rm /root/base; echo x > /root/own-{number}", check=True)
        return (await child.run_shell("cat /root/who; ls /root")).stdout, await child.info()

    try:
        found_in = await asyncio.gather(*(work(number, child) for number, child in enumerate(children)))
    finally:
        await asyncio.gather(*(child.stop() for child in children))
    for number, (said, info) in enumerate(found_in):
        assert said == f"{number}\nown-{number}\nwho\n"
        assert info.labels == {"role": "child"} and info.memory_mib == 256
    assert (await sandbox.run_shell("cat /root/who; ls /root")).stdout == "parent\nbase\nwho\n"
    assert found(node) == []


async def test_a_fork_can_be_asked_again(client: dsec.DSecClient, sandbox: dsec.Sandbox) -> None:
    """The same key gives the same sandboxes, also after the first asking is over."""
    first = await sandbox.fork(2, key="fork-1").all()
    again = await sandbox.fork(2, key="fork-1").all()
    ids = [[each.sandbox.id for each in made if each.sandbox is not None] for made in (first, again)]
    assert ids[0] == ids[1] and len(ids[0]) == 2
    for each in first:
        assert each.sandbox is not None
        await each.sandbox.stop()


async def test_what_cannot_be_taken(client: dsec.DSecClient) -> None:
    """Of a sandbox that has ended, and with a time that makes no sense."""
    sandbox = await client.sandbox(IMAGE)
    with pytest.raises(dsec.InvalidArgument):
        await sandbox.snapshot(keep_s=-1)
    await sandbox.stop()
    with pytest.raises(dsec.SandboxGone):
        await sandbox.snapshot()
    with pytest.raises(dsec.SandboxGone):
        await sandbox.fork(2).all()
