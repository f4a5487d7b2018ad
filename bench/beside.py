"""``python -m bench.beside CHECKOUT``: creates and execs of this checkout beside those of another one, in turns.

Each has a node and an interpreter of its own; whose turn it is changes every few sandboxes, and who begins changes
with every round, so that what else the machine does meets both. Both must be built. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from bench import record

_WORKER = Path(__file__).with_name("beside_worker.py")
_STEPS = ("create", "exec")


class _Side:
    """A worker that waits for its turn."""

    def __init__(self, name: str, asked: IO[str], told: IO[str]) -> None:
        self.name = name
        self.samples: dict[str, list[float]] = {step: [] for step in _STEPS}
        self._asked = asked
        self._told = told

    def turn(self, sandboxes: int, execs: int, *, kept: bool) -> None:
        """Let it make so many sandboxes, with so many execs in each after the first."""
        self._asked.write(f"{sandboxes} {execs}\n")
        self._asked.flush()
        answer: dict[str, Any] = json.loads(self._told.readline() or "{}")
        for step in _STEPS:
            if step not in answer:
                raise RuntimeError(f"the worker of {self.name} is gone")
            if kept:
                self.samples[step] += answer[step]


@contextmanager
def _side(checkout: Path) -> Iterator[_Side]:
    """A worker of this checkout, with its node up until the end."""
    argv = [str(checkout / ".venv/bin/python"), str(_WORKER)]
    with subprocess.Popen(argv, cwd=checkout, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        yield _Side(checkout.name, worker.stdin, worker.stdout)
        worker.stdin.close()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.beside", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("other", type=Path, help="a checkout with its .venv and its programs built")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--sandboxes", type=int, default=5, help="made by each side in a round")
    parser.add_argument("--execs", type=int, default=10, help="more execs in each sandbox")
    parser.add_argument("--out", type=Path, default=Path("bench/results"), help="where the JSON goes")
    return parser.parse_args()


def _line(step: str, here: list[float], there: list[float]) -> str:
    mine, theirs = (1000 * statistics.median(each) for each in (here, there))
    return f"| {step} | {theirs:.2f} | {mine:.2f} | {mine - theirs:+.2f} | {len(here)} |"


def main() -> int:
    """The exit code."""
    asked = _arguments()
    kept = record.start(shlex.join(["python", "-m", "bench.beside", asked.other.name]))
    with ExitStack() as both:
        sides = [both.enter_context(_side(each)) for each in (Path.cwd(), asked.other.absolute())]
        for number in range(-2, asked.rounds):
            for side in sides if number % 2 else reversed(sides):
                side.turn(asked.sandboxes, asked.execs, kept=number >= 0)
        here, there = sides
    for name, side in (("here", here), ("there", there)):
        for step, samples in side.samples.items():
            kept.add(name, step, samples)
    print(f"raw samples: {kept.save(asked.out, prefix='beside-')}", file=sys.stderr)
    print("| p50, ms | there | here | more | samples each |\n|---|---|---|---|---|")
    for step in _STEPS:
        print(_line(step, here.samples[step], there.samples[step]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
