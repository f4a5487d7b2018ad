"""Whether this machine can hold a node at all: each refusal is one sentence and what to do."""

from __future__ import annotations

import os
import platform
import re
import sys

from dsec.errors import Denied, DSecError, Unsupported

__all__ = ["OLDEST_KERNEL", "check_machine", "is_machine_fault", "kernel_version"]

OLDEST_KERNEL = (6, 15)
"""Overlay on detached mounts is the youngest feature that has no fallback yet."""
_PHASE = "machine"


def kernel_version(release: str) -> tuple[int, int]:
    """(major, minor) of a kernel release such as ``6.18.3-amd64``; (0, 0) when it is none."""
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def check_machine(
    *, system: str = sys.platform, uid: int | None = None, release: str | None = None, action: str = "dsec up"
) -> None:
    """Pass, or raise Unsupported (not Linux, kernel too old) or Denied (not root)."""
    if system != "linux":
        raise Unsupported(
            f"a node runs on Linux only, and this is {system}",
            phase=_PHASE,
            remedy="Run it on a Linux machine and set DSEC_URL and DSEC_TOKEN here",
        )
    if (os.geteuid() if uid is None else uid) != 0:
        raise Denied(f"`{action}` needs root", phase=_PHASE, remedy=f"Run `sudo {action}`")
    found = kernel_version(platform.release() if release is None else release)
    if found < OLDEST_KERNEL:
        raise Unsupported(
            f"Linux {found[0]}.{found[1]} is too old: a node needs {OLDEST_KERNEL[0]}.{OLDEST_KERNEL[1]} or newer",
            phase=_PHASE,
            remedy="Install a newer kernel (`dsec doctor` lists what is missing)",
        )


def is_machine_fault(error: DSecError) -> bool:
    """Whether the machine, not the call, is what has to change: the CLI exits with 3."""
    return error.phase == _PHASE
