"""How long the space of a removed sandbox stays away."""

from __future__ import annotations

import asyncio
import os
import time

from bench.environments.world import IMAGE, SMALL, World
from bench.record import Record

__all__ = ["measure_space"]

_BYTES = 1 << 30
_ROUNDS = 3
_LOOK_S = 0.05
_MOST_S = 120.0
_NEARLY = 4 << 20


async def measure_space(world: World, record: Record) -> None:
    """Seconds from the confirmed end of a sandbox that wrote until the pool is as empty as before."""
    size = world.scale.of(_BYTES, 64 << 20)
    taken = []
    async with world.node(on_demand=True) as (node, client):
        await client.images.fetch(IMAGE, store="slow")
        for _ in range(_ROUNDS):
            async with client.sandbox(SMALL) as warm:
                await warm.exec("true")
            before = node.stats()["pool_used_bytes"]
            sandbox = await client.sandbox(SMALL)
            await sandbox.run_shell(f"head -c {size} /dev/urandom > /var/big", check=True)
            # A sandbox's own sync does nothing (its overlay is volatile), and what is not on disk takes no space.
            await asyncio.to_thread(os.sync)
            grown = node.stats()["pool_used_bytes"] - before
            if grown < size // 2:
                raise RuntimeError(f"{size} bytes were written, and the pool grew by {grown}")
            await sandbox.stop()
            begun = time.perf_counter()
            # There is no event for this: the file system frees it when it likes.
            while node.stats()["pool_used_bytes"] > before + _NEARLY:
                if time.perf_counter() - begun > _MOST_S:
                    raise RuntimeError(f"the space is not back after {_MOST_S:g} s: {node.stats()}")
                await asyncio.sleep(_LOOK_S)
            taken.append(time.perf_counter() - begun)
    record.add("dsec", "space", taken, bytes=size)
