"""One fuzzer of libFuzzer's kind, as a process: its options, and what it says at its end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec

__all__ = ["BUILD", "ROOT", "Outcome", "run"]

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "fuzz"
"""What fuzzers find: a corpus of each target, and inputs that show defects."""


class Outcome(msgspec.Struct, frozen=True):
    """How it went."""

    target: str
    seconds: int
    executions: int | None
    coverage: int | None
    """Edges reached, as the fuzzer counts them; comparable for one target and one kind of fuzzer."""
    defects: int


def run(language: str, name: str, command: list[str], seconds: int, environment: dict[str, str]) -> Outcome:
    """Fuzz a target for so long; what shows a defect is on standard error, its input in ``build/fuzz``."""
    found = BUILD / language / name
    found.mkdir(parents=True, exist_ok=True)
    options = [
        f"-max_total_time={seconds}", "-rss_limit_mb=1024", "-malloc_limit_mb=64", "-timeout=20",
        "-print_final_stats=1", f"-artifact_prefix={found}-", str(found), str(ROOT / "fuzz" / "corpus" / name),
    ]  # fmt: skip
    ran = subprocess.run(
        [*command, *options], stderr=subprocess.PIPE, text=True, errors="replace", env=os.environ | environment
    )
    executions = re.search(r"number_of_executed_units: (\d+)", ran.stderr)
    reached = re.findall(r" cov: (\d+)", ran.stderr)
    if ran.returncode != 0:
        print(ran.stderr[-6000:], file=sys.stderr)
    return Outcome(
        f"{language}:{name}",
        seconds,
        int(executions[1]) if executions else None,
        int(reached[-1]) if reached else None,
        int(ran.returncode != 0),
    )
