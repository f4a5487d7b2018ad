"""Ending what is left of a node whose keeper is gone, and removing what it left but its data.

Used by the repair in ``dsec up`` and as the last step of ``dsec down``. Everything is found afresh (``leaks``),
nothing is remembered.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import shutil
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from dsec.node.leaks import cgroup_processes, loop_devices, node_cgroups, node_mounts, node_processes
from dsec.node.paths import NodePaths

__all__ = ["end_processes", "sweep"]

_MNT_DETACH = 2
_LOOP_CLR_FD = 0x4C01
_POLL_S = 0.005


def sweep(paths: NodePaths, *, timeout_s: float = 10.0) -> None:
    """Leave nothing of the node but its data. What resists is for the caller to find with ``find_leaks``."""
    deadline = time.monotonic() + timeout_s
    end_processes((pid for pid, _ in node_processes(paths)), deadline)
    for cgroup in node_cgroups(paths):
        _kill_cgroup(cgroup)
    for cgroup in node_cgroups(paths):
        _remove_cgroup(cgroup, deadline)
    libc = ctypes.CDLL(None, use_errno=True)
    for point in reversed(node_mounts(paths)):
        libc.umount2(os.fsencode(point), _MNT_DETACH)
    for device in loop_devices(paths):
        _detach_loop(device)
    paths.pool_image.unlink(missing_ok=True)
    shutil.rmtree(paths.run, ignore_errors=True)


def end_processes(pids: Iterable[int], deadline: float) -> None:
    """SIGKILL each and wait until it is gone (or the deadline)."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            try:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                select.select([handle], [], [], max(0.0, deadline - time.monotonic()))
            finally:
                os.close(handle)


def _kill_cgroup(cgroup: Path) -> None:
    kill = cgroup / "cgroup.kill"
    if kill.exists():
        kill.write_text("1")
    for directory, _, files in os.walk(cgroup):
        if "freezer.state" in files:
            with contextlib.suppress(OSError):
                (Path(directory) / "freezer.state").write_text("THAWED")
    # v1 has no cgroup.kill. A fork between the list and the signal is caught in the next round, in _remove_cgroup.
    _kill_listed(cgroup)


def _kill_listed(cgroup: Path) -> set[int]:
    found = cgroup_processes(cgroup)
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return found


def _remove_cgroup(cgroup: Path, deadline: float) -> None:
    while _kill_listed(cgroup) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    while cgroup.is_dir():
        for directory, _, _ in os.walk(cgroup, topdown=False):
            with contextlib.suppress(OSError):
                Path(directory).rmdir()
        if time.monotonic() >= deadline:
            return
        if cgroup.is_dir():
            _kill_listed(cgroup)
            time.sleep(_POLL_S)


def _detach_loop(device: Path) -> None:
    with contextlib.suppress(OSError):
        handle = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.ioctl(handle, _LOOP_CLR_FD)
        finally:
            os.close(handle)
