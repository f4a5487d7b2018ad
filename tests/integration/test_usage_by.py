"""Usage added up over live and stopped sandboxes, from the kernel's own counters."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

import dsec
from dsec.api.ids import new_key
from dsec.testing.node import RunningNode

from .conftest import IMAGE

pytestmark = [pytest.mark.node, pytest.mark.anyio]

BURN = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"


def of(groups: list[dsec.UsageGroup], key: str | None) -> dsec.UsageGroup:
    """The group of a key."""
    (found,) = [group for group in groups if group.key == key]
    return found


async def test_usage_by_label(client: dsec.DSecClient) -> None:
    """CPU, memory over time, wall and disk of a run's sandboxes, one stopped and one live; another run's apart."""
    run, other = new_key(), new_key()
    begun = time.monotonic()
    one = await client.sandbox(IMAGE, labels={"run": run})
    await one.run_shell(BURN + "; head -c 5000000 /dev/urandom > /root/x", check=True)
    stopped = await one.stop()
    async with client.sandbox(IMAGE, labels={"run": run}) as two, client.sandbox(IMAGE, labels={"run": other}):
        await two.run_shell(BURN, check=True)
        groups = await client.usage("label:run")
        took = time.monotonic() - begun
        used = of(groups, run)
        assert (used.sandboxes, used.live) == (2, 1)
        assert used.cpu_s > stopped.usage.cpu_s > 0
        assert 0 < used.wall_s <= 2 * took + 1
        assert used.disk_mib >= 4.7
        assert 0 < used.memory_gib_s <= used.largest_memory_mib / 1024 * (2 * took + 1)
        assert of(groups, other).sandboxes == 1
        assert of(groups, other).cpu_s < used.cpu_s
    later = of(await client.usage("label:run"), run)
    assert (later.sandboxes, later.live) == (2, 0) and later.cpu_s >= used.cpu_s


async def test_usage_by_job_and_since(client: dsec.DSecClient) -> None:
    """Sandboxes of no job are a group of their own; what ended before `since` is left out."""
    name = f"job-{new_key()[:6].replace('-', '_')}"
    async with client.job(name) as job:
        sandbox = await job.sandbox(IMAGE)
        await sandbox.run_shell(BURN, check=True)
    info = await client.attach(sandbox.id).info()
    assert info.ended_at is not None
    async with client.sandbox(IMAGE):
        groups = await client.usage("job", since=info.ended_at)
        assert of(groups, name).sandboxes == 1 and of(groups, None).live == 1
        assert name not in {group.key for group in await client.usage("job", since=info.ended_at + 0.001)}
        assert of(await client.usage("image"), IMAGE).live == 1
    with pytest.raises(dsec.InvalidArgument):
        await client.usage("colour")


async def test_the_command_line(node: RunningNode, client: dsec.DSecClient) -> None:
    """dsec usage --by label:run, as a table and as JSON."""
    run = new_key()
    async with client.sandbox(IMAGE, labels={"run": run}) as sandbox:
        await sandbox.run_shell(BURN, check=True)
        words = [str(Path(sys.executable).with_name("dsec")), "usage", "--by", "label:run", "--since", "1h"]

        def call(*more: str) -> str:
            done = subprocess.run([*words, *more], env=node.environment, capture_output=True, text=True, check=True)
            return done.stdout

        table = await asyncio.to_thread(call)
        assert run in table and "GiB s" in table
        listed = json.loads(await asyncio.to_thread(call, "--json"))
        assert [one["live"] for one in listed if one["key"] == run] == [1]
