"""Fault points of a node whose settings have ``fault_points = true``: which there are, arming one, seeing it pass."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from dsec.testing.node import RunningNode, wait_until

__all__ = ["SETTINGS", "Faults", "fault_names"]

SETTINGS = "fault_points = true\n"
_POINT = re.compile(r'\bfault!?\("([a-z_]+\.[a-z_]+\.[a-z_]+)"\)')


def fault_names(checkout: Path) -> list[str]:
    """Every fault point in the source of the node's programs, sorted; a new one is found without being listed."""
    sources = [*(checkout / "crates").rglob("src/**/*.rs"), *(checkout / "src" / "dsec").rglob("*.py")]
    return sorted({name for source in sources for name in _POINT.findall(source.read_text())})


class Faults:
    """The points of one node."""

    def __init__(self, node: RunningNode) -> None:
        self._node = node

    @contextlib.contextmanager
    def armed(self, name: str, act: Literal["kill", "stop"]) -> Iterator[None]:
        """The next process that comes to the point is killed, or stopped; disarmed at the end."""
        self._passed(name).unlink(missing_ok=True)
        directory = self._directory(name)
        partial = directory / "new"
        partial.write_text(act)
        partial.chmod(0o644)
        partial.rename(directory / "armed" / name)
        try:
            yield
        finally:
            (directory / "armed" / name).unlink(missing_ok=True)

    def was_passed(self, name: str) -> bool:
        """Whether a process came to the point since it was armed."""
        return self._passed(name).exists()

    def wait_passed(self, name: str) -> None:
        """Return once a process has come to the point."""
        wait_until(lambda: self.was_passed(name), f"{name} is passed", timeout_s=20)

    def go_on(self, name: str) -> None:
        """Let the process that stands still at the point go on."""
        part = name.partition(".")[0]
        pid = self._node.services()[part].pid
        wait_until(lambda: _state(pid) == "T", f"{part} stands still")
        os.kill(pid, signal.SIGCONT)

    def _directory(self, name: str) -> Path:
        paths = self._node.paths
        own = {"proxy": paths.proxy_faults, "fetcher": paths.fetcher_faults}
        return own.get(name.partition(".")[0], paths.faults)

    def _passed(self, name: str) -> Path:
        return self._directory(name) / "passed" / name


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
