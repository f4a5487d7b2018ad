"""What the job prints: a live table on a terminal, a line for each sample elsewhere, then the result."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from dsec.demo.policies import POLICIES, Case, Policy
from dsec.demo.report import JobResult, Sample, matrix
from dsec.demo.verdict import Verdict

__all__ = ["Board", "as_json", "print_result"]

NOT_COVERED = (
    "Not covered yet: code that subverts its own test process from within (a patched package that makes pytest "
    "report what it likes)."
)


class Board:
    """Shows samples as they move; a context manager. Give ``on_stage`` to the job."""

    def __init__(self, console: Console, planned: Sequence[tuple[Case, Policy]], title: str) -> None:
        self._console = console
        self._planned = planned
        self._title = title
        self._stages: list[str] = ["waiting"] * len(planned)
        self._started = time.monotonic()
        self._live: Live | None = None

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        if self._console.is_terminal:
            self._live = Live(console=self._console, get_renderable=self._table, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def on_stage(self, index: int, stage: str) -> None:
        """Note that a sample reached a stage."""
        self._stages[index] = stage
        if self._live is None and stage in list(Verdict):
            case, policy = self._planned[index]
            done = sum(each in list(Verdict) for each in self._stages)
            took = time.monotonic() - self._started
            self._console.print(
                f"{took:6.1f} s  {done:3d}/{len(self._stages)}  {case.task.name:22} {policy.name:18} {stage}",
                highlight=False,
            )

    def _table(self) -> Table:
        done = sum(stage in list(Verdict) for stage in self._stages)
        took = time.monotonic() - self._started
        table = Table(title=f"{self._title}: {done} of {len(self._stages)} graded, {took:.0f} s")
        table.add_column("task")
        policies = [policy for policy in POLICIES if any(policy == planned[1] for planned in self._planned)]
        for policy in policies:
            table.add_column(policy.name, justify="center")
        names = list(dict.fromkeys(case.task.name for case, _ in self._planned))
        for name in names:
            table.add_row(name, *(self._cell(name, policy) for policy in policies))
        return table

    def _cell(self, task: str, policy: Policy) -> str:
        marks = [
            _mark(stage, policy.expected)
            for (case, each), stage in zip(self._planned, self._stages, strict=True)
            if case.task.name == task and each == policy
        ]
        return " ".join(marks)


def _mark(stage: str, expected: Verdict) -> str:
    if stage == "waiting":
        return "[dim]·[/dim]"
    if stage in ("agent", "grading"):
        return "[cyan]agent[/cyan]" if stage == "agent" else "[blue]grading[/blue]"
    colour = "green" if stage == expected else "red"
    return f"[{colour}]{stage}[/{colour}]"


def print_result(console: Console, results: Sequence[JobResult]) -> None:
    """The confusion matrix and the figures of each platform, and every sample that was not as expected."""
    for result in results:
        console.print()
        console.print(_matrix_table(result))
    console.print()
    console.print(_facts_table(results))
    for result in results:
        for sample in result.samples:
            if not sample.right:
                console.print(
                    f"{result.platform}: {sample.task}, {sample.policy}: expected {sample.expected}, "
                    f"observed {sample.observed}: {sample.reason}",
                    markup=False,
                    highlight=False,
                )
    for result in results:
        console.print(
            f"{result.platform}: {result.right} of {len(result.samples)} verdicts as expected", highlight=False
        )
    console.print(NOT_COVERED, highlight=False)


def _matrix_table(result: JobResult) -> Table:
    counted = matrix(result.samples)
    table = Table(title=f"{result.platform}: expected (rows) and observed (columns)")
    table.add_column("")
    for observed in Verdict:
        table.add_column(str(observed), justify="right")
    for expected in (Verdict.PASS, Verdict.FAIL):
        table.add_row(str(expected), *(str(counted[(expected, observed)]) for observed in Verdict))
    return table


_LABELS = {
    "wall_s": "wall time, s",
    "create_p50_ms": "create p50, ms",
    "create_p99_ms": "create p99, ms",
    "exec_p50_ms": "first exec of `true` p50, ms",
    "exec_p99_ms": "first exec of `true` p99, ms",
    "core_seconds": "core-seconds",
    "peak_memory_largest_mib": "peak memory, largest sandbox, MiB",
    "peak_memory_together_mib": "peak memory, all at once at most, MiB",
    "sandboxes": "sandboxes used",
    "sandboxes_left": "sandboxes left behind",
    "processes_left": "processes left behind",
}


def _facts_table(results: Sequence[JobResult]) -> Table:
    table = Table()
    table.add_column("")
    facts = [result.facts() for result in results]
    for result in results:
        table.add_column(result.platform, justify="right")
    for key, label in _LABELS.items():
        table.add_row(label, *(f"{each[key]:g}" for each in facts))
    return table


def as_json(results: Sequence[JobResult]) -> dict[str, Any]:
    """The results as plain values."""
    return {
        "ok": all(result.ok for result in results),
        "platforms": [
            {
                "platform": result.platform,
                "parallel": result.parallel,
                "facts": result.facts(),
                "matrix": {f"{e}/{o}": count for (e, o), count in matrix(result.samples).items()},
                "samples": [_sample(sample) for sample in result.samples],
            }
            for result in results
        ],
    }


def _sample(sample: Sample) -> dict[str, Any]:
    return {
        "task": sample.task,
        "policy": sample.policy,
        "expected": str(sample.expected),
        "observed": str(sample.observed),
        "reason": sample.reason,
        "patch": sample.patch,
        "seconds": round(sample.seconds, 3),
    }
