"""A live sandbox's changes as a new layer."""

from __future__ import annotations

import time
from typing import Any

import dsec
from bench.environments.world import IMAGE, SMALL, World
from bench.record import Record

__all__ = ["measure_packing"]

_BYTES = 100_000_000
_FILES = 1_000
_ROUNDS = 5
_WRITE = """
import os, random
chance = random.Random(int(os.environ["ROUND"]))
os.makedirs("/work", exist_ok=True)
for number in range({files}):
    with open(f"/work/f{{number}}", "wb") as file:
        file.write(chance.randbytes({half}) + b"text " * ({half} // 5))
"""


async def measure_packing(world: World, record: Record) -> None:
    """Seconds of ``pack_diff`` of 100 MB of changes, whatever the scale; beside it ``tar | gzip -1`` of the same."""
    files = _FILES
    script = _WRITE.format(files=files, half=_BYTES // files // 2)
    packed, beside = [], []
    async with world.node(on_demand=True) as (_, client):
        await client.images.fetch(IMAGE, store="slow")
        for turn in range(_ROUNDS):
            async with client.sandbox(SMALL) as sandbox:
                await sandbox.exec("python3", "-c", script, env={"ROUND": str(turn)}, check=True)
                begun = time.perf_counter()
                await _pack(sandbox, f"workspace/packed-{turn}:1")
                packed.append(time.perf_counter() - begun)
                begun = time.perf_counter()
                await sandbox.run_shell("tar -C / -cf - work | gzip -1 > /tmp/changes.tar.gz", check=True)
                beside.append(time.perf_counter() - begun)
            await _starts(client, turn)
    record.add("dsec", "pack", packed, bytes=_BYTES)
    record.add("eager", "pack", beside, bytes=_BYTES)


async def _pack(sandbox: Any, tag: str) -> None:
    await sandbox.pack_diff(tag)


async def _starts(client: dsec.DSecClient, turn: int) -> None:
    """What was packed is there in a new sandbox."""
    async with client.sandbox(SMALL.replace(workspace=f"workspace/packed-{turn}:1")) as sandbox:
        said = await sandbox.run_shell("ls /work | wc -l", check=True)
        if said.stdout.split() != [str(_FILES)]:
            raise RuntimeError(f"a packed layer has other files: {said}")
