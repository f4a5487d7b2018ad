"""Snapshots, forks and packed layers of sandboxes with a network, protected paths and the nested profile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import dsec

from .conftest import IMAGE

pytestmark = [pytest.mark.node, pytest.mark.anyio]

POLICY = dsec.Network(rules=(dsec.NetworkRule(action="allow", domain="files.example", ports=(443,)),))
PROTECTED = "/usr/lib/python3.11/email"
GUARDED = {"network": POLICY, "profile": "nested", "protected": (PROTECTED,)}
# A mount of a container's own, and what tools for containers would hide files with: nobody inside can make one.
NESTED = r"""
set -e
mkdir -p /job/upper; echo mine > /job/note; echo inner > /job/upper/made
! mknod /job/upper/gone c 0 0 2>/dev/null
unshare --user --map-root-user --mount sh -ec 'mount -t tmpfs none /mnt; echo hidden > /mnt/only-here'
ls -A /job/upper
"""
LOOKS = "cat /job/note; ls -A /job/upper /mnt"


async def guards(sandbox: dsec.Sandbox) -> tuple[str, dsec.Network | None, list[str]]:
    """What it is held by."""
    info = await sandbox.info()
    return info.profile, (await sandbox.network()).network, info.protected


@pytest.fixture
async def guarded(client: dsec.DSecClient) -> AsyncIterator[dsec.Sandbox]:
    """A sandbox with all of them, that has written something and run a container's mounts inside."""
    async with client.sandbox(IMAGE, memory_mib=256, **GUARDED) as made:  # type: ignore[arg-type]
        said = await made.run_shell(NESTED, check=True)
        assert said.stdout.split() == ["made"]
        yield made


async def test_a_copy_is_held_by_the_same(client: dsec.DSecClient, guarded: dsec.Sandbox) -> None:
    """Snapshot and fork keep profile, network and protected paths; a fork may be given others by its caller."""
    before = await guards(guarded)
    assert before == ("nested", POLICY, [PROTECTED])
    digest = (await guarded.verify_protected())[0].digest
    snapshot = await guarded.snapshot()
    try:
        async with client.sandbox(snapshot.args) as copy:
            assert await guards(copy) == before
            assert (await copy.run_shell(LOOKS)).stdout == (await guarded.run_shell(LOOKS)).stdout
            refused = await copy.run_shell(f"touch {PROTECTED}/new; echo $?")
            assert refused.stdout == "1\n"
            assert (await copy.verify_protected({PROTECTED: digest}))[0].as_expected
            # Another container's mounts work there too.
            assert (await copy.run_shell("rm -r /job; " + NESTED)).stdout.split() == ["made"]
    finally:
        await client.snapshots.remove(snapshot.id)
    async for made in guarded.fork(2):
        assert made.sandbox is not None, made.error
        assert await guards(made.sandbox) == before
        await made.sandbox.stop()
    async for made in guarded.fork(1, network="none", profile="strict", protected=()):
        assert made.sandbox is not None, made.error
        assert await guards(made.sandbox) == ("strict", None, [])
        assert (await made.sandbox.run_shell("cat /job/note")).stdout == "mine\n"
        await made.sandbox.stop()


async def test_a_layer_holds_files_only(client: dsec.DSecClient, guarded: dsec.Sandbox) -> None:
    """Nothing of profile, network and protected paths is in a packed layer: the next sandbox has what its caller
    says. A protected path, which nobody could write, adds nothing to it.
    """
    try:
        packed = await guarded.pack_diff("workspace/t-kinds:1")
        async with client.sandbox(IMAGE, workspace="workspace/t-kinds:1") as other:
            assert await guards(other) == ("default", None, [])
            assert (await other.run_shell("cat /job/note; cat /job/upper/made")).stdout == "mine\ninner\n"
            seen = await other.run_shell(f"touch {PROTECTED}/new && echo written")
            assert seen.stdout == "written\n"
        assert packed.whiteouts == 0 and packed.dropped_attributes == 0
    finally:
        await client.layers.remove("workspace/t-kinds:1")


@pytest.mark.parametrize("fields", [{"profile": "nested"}, {"network": "open"}, {"protected": (PROTECTED,)}], ids=str)
async def test_taken_while_it_is_busy(client: dsec.DSecClient, fields: dict[str, object]) -> None:
    """Each alone: a snapshot, two forks and a layer of one sandbox at once, while it writes."""
    try:
        async with client.sandbox(IMAGE, **fields) as sandbox:  # type: ignore[arg-type]
            writing = await sandbox.spawn("sh", "-c", "mkdir /job; while :; do date >> /job/log-of-dates; done")
            await sandbox.run_shell("until [ -s /job/log-of-dates ]; do :; done", check=True)

            async def forked() -> list[str]:
                return [each.sandbox.id async for each in sandbox.fork(2) if each.sandbox is not None]

            snapshot, forks, packed = await asyncio.gather(
                sandbox.snapshot(), forked(), sandbox.pack_diff("workspace/t-busy:1")
            )
            assert not snapshot.info.partial and not packed.partial and len(forks) == 2
            await writing.kill()
            for each in forks:
                copy = await client.get(each)
                assert (await copy.run_shell("test -s /job/log-of-dates")).ok
                await copy.stop()
            await client.snapshots.remove(snapshot.id)
    finally:
        await client.layers.remove("workspace/t-busy:1")
