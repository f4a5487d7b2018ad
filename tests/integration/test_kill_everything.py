"""Everything that a burst of creates over layers read on demand needs is killed in its middle, the store too.

``SOAK_BURST`` is the number of sandboxes, ``SOAK_SEED`` chooses who is killed when (``make soak``).
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dsec
from dsec.testing.node import RunningNode, private_node, wait_until
from dsec.testing.seaweed import Seaweed, seaweed

IMAGE = "dsec/debian:12"
SANDBOXES = int(os.environ.get("SOAK_BURST", "100"))
SEED = int(os.environ.get("SOAK_SEED", "1"))
pytestmark = [pytest.mark.node, pytest.mark.anyio, pytest.mark.timeout(300 + 2 * SANDBOXES)]
VICTIMS = ("holder", "fetcher", "edge", "apiserver", "runtime", "store")
KILLS_EACH = 2
WORKSPACES = 8
TOOLKIT = "toolkit/burst:1"
LABELS = {"burst": "killed"}
SMALL: dict[str, Any] = {"cpu": (0.01, 2), "memory_mib": (4, 512), "disk_mib": (1, 64), "pids": (4, 64)}
"""So that all fit on the node at once."""
READ = "cat /opt/burst/part* /work/part* | sha256sum"


@pytest.fixture(scope="module")
def server() -> Iterator[Seaweed]:
    """SeaweedFS, which is killed and started again as it was."""
    with seaweed() as running:
        yield running


@pytest.fixture(scope="module")
def own(server: Seaweed, store: Path) -> Iterator[RunningNode]:
    """A node that reads layers on demand, whose parts are killed."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment().items():
            patch.setenv(name, value)
        settings = f'reader = "filled"\n[stores.bucket]\nurl = "s3://{server.bucket}/b"\nendpoint = "{server.s3}"\n'
        with private_node(store, settings=settings) as running:
            yield running


class _Progress:
    """How far the burst is, for whoever waits for it to be somewhere."""

    def __init__(self) -> None:
        self._steps = 0
        self._moved = asyncio.Condition()

    async def step(self) -> None:
        """One sandbox more is made, or has read."""
        async with self._moved:
            self._steps += 1
            self._moved.notify_all()

    async def reaches(self, steps: int) -> None:
        """Return once so many steps have been made."""
        async with self._moved:
            await self._moved.wait_for(lambda: self._steps >= steps)


def _tree(folder: Path, chance: random.Random, parts: int) -> list[bytes]:
    """Files of many sizes, some of them compressible; their bytes in the order of their names."""
    folder.mkdir(parents=True)
    contents = []
    for number in range(parts):
        raw = chance.randbytes(chance.randrange(1, 700_000))
        content = raw if number % 3 else raw[:100] * (len(raw) // 100 + 1)
        (folder / f"part{number:03}").write_bytes(content)
        contents.append(content)
    return contents


async def _published(client: dsec.DSecClient, folder: Path, chance: random.Random) -> dict[str, str]:
    """Layers in the store, and here without their data; of each workspace what a sandbox with it must read."""
    tool = _tree(folder / "tool", chance, 12)
    await _elsewhere(client, folder / "tool", TOOLKIT, "/opt/burst")
    expected = {}
    for number in range(WORKSPACES):
        tag = f"workspace/burst-{number}:1"
        own = _tree(folder / tag, chance, 24)
        await _elsewhere(client, folder / tag, tag, "/work")
        expected[tag] = hashlib.sha256(b"".join([*tool, *own])).hexdigest()
    return expected


async def _elsewhere(client: dsec.DSecClient, folder: Path, tag: str, at: str) -> None:
    await client.layers.build(folder, tag, at=at)
    await client.layers.push(tag)
    await client.layers.remove(tag)
    await client.layers.pull(tag)


async def _kill(own: RunningNode, server: Seaweed, progress: _Progress, chance: random.Random) -> list[str]:
    """Kill each victim some times, at moments of the burst that the seed says; only the store is started again."""
    order = list(VICTIMS) * KILLS_EACH
    chance.shuffle(order)
    moments = sorted(chance.sample(range(2 * SANDBOXES), len(order)))
    for moment, victim in zip(moments, order, strict=True):
        await progress.reaches(moment)
        # Not always right after a step, but anywhere between two.
        await asyncio.sleep(chance.random() * 0.03)
        if victim == "store":
            await asyncio.to_thread(server.process.kill)
            server.process.start()
        else:
            await asyncio.to_thread(_kill_part, own, victim)
    return order


def _kill_part(own: RunningNode, part: str) -> None:
    wait_until(lambda: own.services()[part].pid != 0, f"{part} runs", timeout_s=60)
    own.kill(part)


async def test_a_burst_outlives_everybody(own: RunningNode, server: Seaweed, tmp_path: Path) -> None:
    """Holder, fetcher, edge, apiserver, runtime and the store are killed twice each while sandboxes are made and read
    what is not there yet: all of them are made, once, every byte that they read is right, then and afterwards, and
    nothing is left. Nobody but the killed store's own keeper starts anything.
    """
    chance = random.Random(SEED)
    progress = _Progress()
    async with own.client() as client:
        expected = await _published(client, tmp_path, chance)
        tags = list(expected)

        async def one(number: int) -> dsec.Sandbox:
            tag = tags[number % len(tags)]
            args = dsec.SandboxArgs(IMAGE, workspace=tag, toolkits=(TOOLKIT,), labels=LABELS, **SMALL)
            sandbox = await client.sandbox(args, key=f"burst-{number}")
            await progress.step()
            said = await sandbox.exec("sh", "-c", READ)
            assert (said.exit_code, said.stderr, said.stdout.split()[0]) == (0, "", expected[tag])
            await progress.step()
            return sandbox

        killing = asyncio.create_task(_kill(own, server, progress, chance))
        made = await asyncio.gather(*(one(number) for number in range(SANDBOXES)))
        assert sorted(await killing) == sorted(VICTIMS * KILLS_EACH)

        live = [info async for info in client.find(labels=LABELS, state="running")]
        assert sorted(info.id for info in live) == sorted(each.id for each in made)
        assert len({each.id for each in made}) == SANDBOXES
        again = await asyncio.gather(*(each.exec("sh", "-c", READ) for each in made))
        read = [each.stdout.split()[0] for each in again]
        assert read == [expected[tags[number % len(tags)]] for number in range(SANDBOXES)]
        await asyncio.gather(*(each.stop() for each in made))
        for tag in (TOOLKIT, *tags):
            layer = own.paths.layers / (await client.layers.get(tag)).digest
            wait_until(lambda: not (layer / "filled").exists(), f"{tag} is complete", timeout_s=60)  # noqa: B023
            assert (await client.layers.verify(tag)).faults == []
    wait_until(lambda: own.leftovers() == [], "nothing is left", timeout_s=30)
