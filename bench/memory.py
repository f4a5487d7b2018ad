"""What idle sandboxes cost in memory, read from the machine and not from a process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from bench.scenarios import together
from bench.targets import Target

__all__ = ["idle_memory", "meminfo", "per_sandbox"]

H = TypeVar("H")
_AT_ONCE = 16
_KERNEL = ("SUnreclaim", "Percpu", "PageTables", "KernelStack")
_FIELDS = (
    "MemFree",
    "MemAvailable",
    "Buffers",
    "Cached",
    "Shmem",
    "Slab",
    "SReclaimable",
    "SUnreclaim",
    "Percpu",
    "PageTables",
    "KernelStack",
    "AnonPages",
    "VmallocUsed",
)


def meminfo(text: str) -> dict[str, int]:
    """The fields of /proc/meminfo that matter here, in KiB; 0 for one that this kernel does not have."""
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name in _FIELDS:
            found[name] = int(rest.split()[0])
    return {name: found.get(name, 0) for name in _FIELDS}


def per_sandbox(before: Mapping[str, int], after: Mapping[str, int], count: int, cpus: int) -> dict[str, float]:
    """KiB for each sandbox beyond the page cache: all of it, its parts, and as a + b × CPUs.

    ``total`` is what became unfree and is not page cache: slab counts, also what the kernel calls reclaimable, since
    live sandboxes hold it. It is the whole machine's, so other work disturbs it; ``kernel`` (unreclaimable slab,
    per-CPU memory, page tables, kernel stacks) is disturbed less, and says less. b is the growth of Percpu divided by
    the CPUs. A memory group costs the more, the more superblocks the machine ever had at once since it booted (16
    bytes for each: Linux keeps room for their shrinkers in every group and never gives it back).
    """
    grown = {name: (after[name] - before[name]) / count for name in _FIELDS}
    cache = grown["Buffers"] + grown["Cached"] - grown["Shmem"]
    total = -grown["MemFree"] - cache
    b = grown["Percpu"] / cpus
    return {
        "total": round(total, 1),
        "kernel": round(sum(grown[name] for name in _KERNEL), 1),
        "a": round(total - b * cpus, 1),
        "b": round(b, 2),
        "available_lost": round(-grown["MemAvailable"], 1),
        **{f"grown_{name}": round(grown[name], 1) for name in _FIELDS if name not in ("MemFree", "MemAvailable")},
    }


async def idle_memory(target: Target[H], count: int) -> dict[str, Any]:
    """Make ``count`` sandboxes that each ran ``true`` once, and compare the machine before and after.

    ``made`` is how many sandboxes' worth of kernel objects came into being: fewer than ``count`` where the platform
    had made some in advance, whose memory is then missing from the result.
    """
    warm = [await target.create() for _ in range(2)]
    for handle in warm:
        await target.true(handle)
    held = await target.held()
    before = await _settled()
    handles: list[H] = []
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one() -> None:
        async with gate:
            handle = await target.create()
            handles.append(handle)
            await target.true(handle)

    try:
        await together(*(one() for _ in range(count)))
        after = await _settled()
        made = await target.held() - held
    finally:
        for handle in [*handles, *warm]:
            await target.stop(handle)
    cpus = os.cpu_count() or 1
    return {
        "count": count,
        "cpus": cpus,
        "made": made,
        "before_kib": before,
        "after_kib": after,
        "per_sandbox_kib": per_sandbox(before, after, count, cpus),
    }


async def _settled() -> dict[str, int]:
    """The machine's memory when writes are on disk and freed objects are back."""
    await asyncio.to_thread(os.sync)
    await asyncio.sleep(2)
    return await asyncio.to_thread(lambda: meminfo(Path("/proc/meminfo").read_text()))
