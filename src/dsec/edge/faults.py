"""Fault points: named places where a test lets the edge die, or stand still while it kills another part.

Off unless the node's configuration says ``fault_points`` (``dsec doctor`` reports it): a pass then costs one
comparison. Nothing from inside a sandbox, and no request, can arm one: that takes a file of root's.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

__all__ = ["fault", "turn_on"]

_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
_directory: Path | None = None


def turn_on(directory: Path) -> None:
    """Look for armed points in this directory from now on."""
    global _directory
    _directory = directory


def fault(name: str) -> None:
    """Pass a fault point; armed, it takes this process with it, once.

    ``tests/integration/test_faults.py`` walks every name that it finds in the source: the second part says what is
    being done.
    """
    if _directory is not None:
        _pass(_directory, name)


def _pass(directory: Path, name: str) -> None:
    armed = directory / "armed" / name
    try:
        act = armed.read_text().strip()
        armed.rename(directory / "passed" / name)
    except FileNotFoundError:
        return
    os.kill(os.getpid(), _SIGNALS[act])
