"""Where the time of a create and of an exec goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import dsec
from bench.targets import DsecTarget
from dsec.demo.report import percentile

__all__ = ["breakdown", "measure_phases"]


async def measure_phases(target: DsecTarget, count: int) -> dict[str, list[float]]:
    """Samples in milliseconds of each step, from ``count`` sandboxes made one after the other.

    ``runtime.*`` are the phases that the node reports of each create; the rest is the client's clock. The two
    questions that the apiserver, and the edge behind it, answer from memory tell what the way there and back costs.
    """
    found: dict[str, list[float]] = {}

    def note(name: str, milliseconds: float) -> None:
        found.setdefault(name, []).append(milliseconds)

    for _ in range(count):
        begun = time.perf_counter()
        await target.client.version()
        note("HTTP to the apiserver", (time.perf_counter() - begun) * 1e3)
        begun = time.perf_counter()
        sandbox = await target.create()
        note("create", (time.perf_counter() - begun) * 1e3)
        await _measure_exec(sandbox, note)
        begun = time.perf_counter()
        info = await sandbox.info()
        note("HTTP to the edge", (time.perf_counter() - begun) * 1e3)
        for phase, microseconds in info.phases_us.items():
            note(f"runtime.{phase}", microseconds / 1e3)
        begun = time.perf_counter()
        await sandbox.stop()
        note("stop", (time.perf_counter() - begun) * 1e3)
    return found


async def _measure_exec(sandbox: dsec.Sandbox, note: Callable[[str, float], None]) -> None:
    for name in ("first exec", "second exec"):
        begun = time.perf_counter()
        result = await sandbox.exec("true")
        note(name, (time.perf_counter() - begun) * 1e3)
        note(f"{name}: program", result.duration_s * 1e3)


def breakdown(samples: Mapping[str, Sequence[float]]) -> list[tuple[str, float, float]]:
    """(step, p50, p99) in milliseconds, in the order in which a request meets them."""
    order = ["HTTP to the apiserver", "HTTP to the edge", "create"]
    order += sorted(name for name in samples if name.startswith("runtime."))
    order += ["first exec", "first exec: program", "second exec", "second exec: program", "stop"]
    return [
        (name, round(percentile(samples[name], 0.5), 3), round(percentile(samples[name], 0.99), 3))
        for name in order
        if name in samples
    ]
