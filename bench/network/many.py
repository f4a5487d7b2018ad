"""Many sandboxes on one node, each with a policy that no other has."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import dsec
from bench.network.world import LABELS, World
from bench.scenarios import together

__all__ = ["measure_many"]

_AT_ONCE = 16
_REACH = """
for name; do
  if exec 3<>"/dev/tcp/$name/80"; then
    printf 'GET / HTTP/1.1\\r\\nHost: %s\\r\\nConnection: close\\r\\n\\r\\n' "$name" >&3
    mapfile -t lines <&3; echo "${lines[-1]}"; exec 3<&- 3>&-
  else
    echo none
  fi
done 2>/dev/null
"""


async def measure_many(world: World, args: dsec.SandboxArgs, count: int) -> dict[str, Any]:
    """All live at once; each reaches its own name, and its neighbour's not, before and after every policy moved on.

    Raises RuntimeError where one reaches anything else.
    """
    proxy = _proxy(world)
    before = _rss_kib(proxy)
    begun = time.perf_counter()
    sandboxes = await _each(count, lambda index: world.client.sandbox(args.replace(network=_only(index))))
    created_s = time.perf_counter() - begun
    try:
        begun = time.perf_counter()
        await _each(count, lambda index: _reaches(world, sandboxes[index], index))
        reached_s = time.perf_counter() - begun
        taken = await _each(count, lambda index: _change(sandboxes[index], index + count))
        changed_s = time.perf_counter() - begun - reached_s
        await _each(count, lambda index: _reaches(world, sandboxes[index], index + count))
        memory = _rss_kib(proxy)
    finally:
        await world.client.stop_all(labels=LABELS)
    return {
        "samples_s": taken,
        "count": count,
        "created_s": created_s,
        "reached_s": reached_s,
        "changed_s": changed_s,
        "proxy_kib": memory,
        "proxy_kib_each": (memory - before) / count,
    }


def _only(index: int) -> dsec.Network:
    return dsec.Network(rules=(dsec.NetworkRule(action="allow", domain=World.name(index), ports=(80,)),))


async def _reaches(world: World, sandbox: dsec.Sandbox, index: int) -> None:
    """Its own name leads to its own address; the next one's name to nothing."""
    done = await sandbox.exec("bash", "-c", _REACH, "reach", World.name(index), World.name(index + 1))
    wanted = [world.address(index), "none"]
    if done.stdout.split() != wanted:
        raise RuntimeError(f"sandbox {index} reached {done.stdout.split()}, not {wanted}: {done.stderr[-200:]}")


async def _change(sandbox: dsec.Sandbox, index: int) -> float:
    begun = time.perf_counter()
    await sandbox.set_network(_only(index))
    return time.perf_counter() - begun


async def _each(count: int, work: Any) -> list[Any]:
    """``work`` for each number, some at once."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def one(index: int) -> Any:
        async with slots:
            return await work(index)

    return await together(*(one(index) for index in range(count)))


def _proxy(world: World) -> int:
    return world.node.services()["proxy"].pid


def _rss_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("VmRSS:")), 0)
