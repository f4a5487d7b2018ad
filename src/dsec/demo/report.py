"""What a run of the job amounts to: pure functions of its samples."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dsec.demo.verdict import Verdict

__all__ = ["JobResult", "Sample", "Timing", "concurrent_peak", "matrix", "percentile", "quantiles_ms"]


@dataclass(frozen=True)
class Timing:
    """One box: when it lived, how long its create and its first exec (of ``true``) took, and what it used.

    Seconds on the client's monotonic clock.
    """

    created_at: float
    create_s: float
    exec_s: float
    ended_at: float
    cpu_s: float
    memory_peak_mib: float
    processes: int


@dataclass(frozen=True)
class Sample:
    """One sample from start to verdict."""

    task: str
    policy: str
    expected: Verdict
    observed: Verdict
    reason: str
    patch: str
    seconds: float
    boxes: tuple[Timing, ...]

    @property
    def right(self) -> bool:
        """Whether the verdict is the one that the policy deserves."""
        return self.observed is self.expected


@dataclass(frozen=True)
class JobResult:
    """All samples of a job on one platform."""

    platform: str
    samples: tuple[Sample, ...]
    wall_s: float
    sandboxes_left: int
    parallel: int

    @property
    def right(self) -> int:
        """Samples with the verdict that they deserve."""
        return sum(sample.right for sample in self.samples)

    @property
    def processes_left(self) -> int:
        """Processes that were still there when a stop returned."""
        return sum(box.processes for sample in self.samples for box in sample.boxes)

    @property
    def ok(self) -> bool:
        """All verdicts right, none masked, nothing left behind."""
        return self.right == len(self.samples) and self.sandboxes_left == 0 and self.processes_left == 0

    def boxes(self) -> list[Timing]:
        """Every box of the job."""
        return [box for sample in self.samples for box in sample.boxes]

    def facts(self) -> dict[str, float]:
        """The figures below the matrix; times in the unit of their names."""
        boxes = self.boxes()
        create = quantiles_ms([box.create_s for box in boxes])
        execs = quantiles_ms([box.exec_s for box in boxes])
        return {
            "samples": len(self.samples),
            "right": self.right,
            "wall_s": round(self.wall_s, 2),
            "create_p50_ms": create[0],
            "create_p99_ms": create[1],
            "exec_p50_ms": execs[0],
            "exec_p99_ms": execs[1],
            "core_seconds": round(sum(box.cpu_s for box in boxes), 1),
            "peak_memory_largest_mib": round(max((box.memory_peak_mib for box in boxes), default=0.0), 1),
            "peak_memory_together_mib": round(concurrent_peak(boxes), 1),
            "sandboxes": len(boxes),
            "sandboxes_left": self.sandboxes_left,
            "processes_left": self.processes_left,
        }


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` (0 to 1) of the values do not exceed; NaN of none."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def quantiles_ms(seconds: Sequence[float]) -> tuple[float, float]:
    """p50 and p99 in milliseconds, to a hundredth."""
    return round(percentile(seconds, 0.5) * 1e3, 2), round(percentile(seconds, 0.99) * 1e3, 2)


def concurrent_peak(boxes: Sequence[Timing]) -> float:
    """The most that boxes alive at the same time can have held: the sum of their own peaks, MiB."""
    changes = [(box.created_at, box.memory_peak_mib) for box in boxes]
    changes += [(box.ended_at, -box.memory_peak_mib) for box in boxes]
    held = most = 0.0
    for _, change in sorted(changes):
        held += change
        most = max(most, held)
    return most


def matrix(samples: Sequence[Sample]) -> dict[tuple[Verdict, Verdict], int]:
    """How often each pair (expected, observed) came; every pair is there."""
    counted = Counter((sample.expected, sample.observed) for sample in samples)
    return {
        (expected, observed): counted[(expected, observed)]
        for expected in (Verdict.PASS, Verdict.FAIL)
        for observed in Verdict
    }
