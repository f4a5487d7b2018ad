"""dsec under load: many execs, much output, a tree of many processes, parts that die. Nothing is asserted."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dsec
from bench.record import Record
from bench.scenarios import together
from bench.targets import DsecTarget
from dsec.node.keeper_client import KeeperControl
from dsec.node.paths import NodePaths

__all__ = ["QUICK", "Load", "kill_tree", "measure_load", "readopt", "stream", "throughput"]

_MIB = 1 << 20
_LOOK_S = 0.02


@dataclass(frozen=True)
class Load:
    """How much of each."""

    sandboxes: int = 200
    seconds: float = 20.0
    parallel: int = 64
    mib: int = 200
    tree: int = 10_000
    readopt: int = 500


QUICK = Load(20, 3.0, 16, 50, 500, 20)
"""A look."""


async def measure_load(target: DsecTarget, record: Record, only: frozenset[str], load: Load) -> None:
    """Run those of the scenarios that are asked for; raises RuntimeError when one was not as it should be."""
    if "throughput" in only:
        rate, samples = await throughput(target, load.sandboxes, load.seconds, load.parallel)
        record.add("dsec", "throughput", samples, per_second=rate, sandboxes=load.sandboxes, parallel=load.parallel)
    if "stream" in only:
        facts, quiet, beside = await stream(target, load.mib)
        record.add("dsec", "stream", beside, quiet_s=quiet, **facts)
    if "tree" in only:
        record.add("dsec", "tree", [await kill_tree(target, load.tree)], processes=load.tree)
    if "readopt" in only:
        for part in ("edge", "runtime"):
            taken = await readopt(target, load.readopt, part)
            record.add("dsec", f"readopt {part}", [taken], sandboxes=load.readopt)


def _paths() -> NodePaths:
    root = os.environ.get("DSEC_ROOT")
    return NodePaths(os.environ.get("DSEC_NODE", "local"), Path(root) if root else None)


def _pids() -> dict[str, int]:
    """The node's parts and this client, by name."""
    with KeeperControl(_paths().keeper_socket) as keeper:
        found = {service.name: service.pid for service in keeper.services()}
        return found | {"keeper": keeper.pid, "client": os.getpid()}


def _rss_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


@contextlib.asynccontextmanager
async def _sandboxes(target: DsecTarget, count: int) -> AsyncIterator[list[dsec.Sandbox]]:
    made: list[dsec.Sandbox] = []
    turn = asyncio.Semaphore(16)

    async def one() -> None:
        async with turn:
            made.append(await target.create())

    try:
        await together(*(one() for _ in range(count)))
        yield made
    finally:
        await together(*(each.stop() for each in made))


async def throughput(target: DsecTarget, sandboxes: int, seconds: float, parallel: int) -> tuple[float, list[float]]:
    """``true`` over and over in all sandboxes in turn: execs a second (usage and OOM facts too), times of each."""
    taken: list[float] = []
    async with _sandboxes(target, sandboxes) as made:
        await together(*(target.true(each) for each in made))
        begun = time.perf_counter()

        async def work(first: int) -> None:
            turn = first
            while time.perf_counter() - begun < seconds:
                at = time.perf_counter()
                result = await made[turn % sandboxes].exec("true")
                if not result.ok or result.oom_kills or result.usage is None:
                    raise RuntimeError(f"`true` failed: {result}")
                taken.append(time.perf_counter() - at)
                turn += parallel

        await together(*(work(first) for first in range(parallel)))
        return len(taken) / (time.perf_counter() - begun), taken


async def stream(target: DsecTarget, mib: int) -> tuple[dict[str, Any], list[float], list[float]]:
    """Output of one exec as fast as it comes, with ``true`` in another sandbox beside it.

    Facts (MiB/s, memory of each part before and at its highest), and times of ``true`` without and with the stream.
    """
    async with _sandboxes(target, 2) as (one, other):
        await target.true(other)
        quiet = [await _timed(target, other) for _ in range(100)]
        pids = _pids()
        before = {name: _rss_kib(pid) for name, pid in pids.items()}
        highest = dict(before)
        beside: list[float] = []
        over = asyncio.Event()

        async def watch() -> None:
            while not over.is_set():
                for name, pid in pids.items():
                    highest[name] = max(highest[name], _rss_kib(pid))
                await asyncio.sleep(_LOOK_S)

        async def others() -> None:
            while not over.is_set():
                beside.append(await _timed(target, other))

        async def read() -> float:
            total, begun = 0, time.perf_counter()
            program = await one.spawn("head", "-c", str(mib * _MIB), "/dev/zero", backpressure=True)
            try:
                async for event in program.events():
                    if isinstance(event, dsec.Stdout):
                        total += len(event.data)
            finally:
                over.set()
            if total != mib * _MIB:
                raise RuntimeError(f"{total} bytes of {mib * _MIB} came")
            return time.perf_counter() - begun

        seconds, _, _ = await together(read(), _as_float(watch()), _as_float(others()))
        facts = {"mib": mib, "mib_per_second": mib / seconds, "before_kib": before, "highest_kib": highest}
        return facts, quiet, beside


async def _as_float(work: Any) -> float:
    await work
    return 0.0


async def _timed(target: DsecTarget, sandbox: dsec.Sandbox) -> float:
    begun = time.perf_counter()
    await target.true(sandbox)
    return time.perf_counter() - begun


async def kill_tree(target: DsecTarget, processes: int) -> float:
    """Seconds from the request to the confirmed death of an exec with so many processes."""
    args = target.args.replace(pids=(4, processes + 500), memory_mib=(4, 16 * 1024))
    async with target.client.sandbox(args) as sandbox:
        # A few layers deep, so that it is a tree and not a row.
        script = "for i in $(seq $1); do (for j in $(seq 100); do sleep 10000 & done; wait) & done; wait"
        program = await sandbox.spawn("sh", "-c", script, "tree", str(processes // 100))
        while (await sandbox.usage()).pids < processes:  # noqa: ASYNC110  (there is no event to wait for)
            await asyncio.sleep(_LOOK_S)
        begun = time.perf_counter()
        await program.kill(grace_s=0)
        taken = time.perf_counter() - begun
        if (await sandbox.usage()).pids > 10:
            raise RuntimeError("processes of a killed exec are left")
        return taken


async def readopt(target: DsecTarget, sandboxes: int, part: str) -> float:
    """Seconds from the SIGKILL of a part until the API has answered for every live sandbox."""
    async with _sandboxes(target, sandboxes) as made:
        pid = _pids()[part]
        os.kill(pid, signal.SIGKILL)
        begun = time.perf_counter()
        await asyncio.to_thread(_wait_gone, pid)
        states = await together(*(_alive(each, part) for each in made))
        taken = time.perf_counter() - begun
        if not all(states):
            raise RuntimeError(f"{states.count(False)} of {sandboxes} sandboxes did not survive the {part}")
        await together(*(target.true(each) for each in made[:16]))
        return taken


def _wait_gone(pid: int) -> None:
    while Path(f"/proc/{pid}").exists():
        time.sleep(0.001)


async def _alive(sandbox: dsec.Sandbox, part: str) -> bool:
    """Whether it runs; of the runtime's death only what asks the runtime says anything."""
    if part == "runtime":
        await sandbox.usage()
    return (await sandbox.info()).state == "running"
