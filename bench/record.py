"""What is kept of a run: where it ran, how it was started, and every raw sample."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Record", "hardware", "load"]


@dataclass
class Record:
    """One run. ``results`` is by target, then by scenario: raw samples, and the facts beside them."""

    command: str
    hardware: dict[str, Any]
    commit: str
    started_at: float
    results: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)

    def add(self, target: str, scenario: str, samples_s: Sequence[float] = (), **facts: Any) -> None:
        """Keep a scenario's raw samples (seconds) and facts."""
        rounded = [round(each, 6) for each in samples_s]
        self.results.setdefault(target, {})[scenario] = {**facts, "samples_s": rounded}

    def save(self, directory: Path, *, prefix: str = "") -> Path:
        """Write it as JSON under the time of its start, ``prefix`` before it."""
        directory.mkdir(parents=True, exist_ok=True)
        name = time.strftime("%Y%m%d-%H%M%S", time.gmtime(self.started_at))
        path = directory / f"{prefix}{name}.json"
        path.write_text(json.dumps(vars(self), indent=1) + "\n")
        return path


def load(path: Path) -> Record:
    """A record that was saved."""
    return Record(**json.loads(path.read_text()))


def start(command: str) -> Record:
    """A record that begins now."""
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return Record(command, hardware(), done.stdout.strip(), time.time())


def hardware() -> dict[str, Any]:
    """The machine: processor, CPUs, memory, kernel."""
    model = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory_kib = int(Path("/proc/meminfo").read_text().split()[1])
    return {
        "processor": model or platform.machine(),
        "cpus": os.cpu_count() or 1,
        "memory_gib": round(memory_kib / (1 << 20), 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_at_start": round(os.getloadavg()[0], 2),
    }
