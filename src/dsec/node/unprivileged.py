"""Giving up root, for good: as ``dsec_session::unprivileged`` does it for the Rust parts of a node.

A Python part is started as root, reads what only root may read, and becomes a user of its own before it hears
anybody: its interpreter may lie where that user could not read it.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from pathlib import Path

from dsec.node.syscall_filter import SockFprog, loaded

__all__ = ["become_user", "refuse_syscalls"]

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_SECCOMP = 22
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_libc = ctypes.CDLL(None, use_errno=True)


def become_user(uid: int) -> None:
    """Become another user without groups, without capabilities, without a way to any, and not to be looked into.

    Only while the process has one thread: what is given up here is each thread's own. Raises OSError for the step
    that the kernel refuses; RuntimeError with several threads, for ``uid`` 0, or where root could be had again.
    """
    threads = sum(1 for _ in Path("/proc/self/task").iterdir())
    if threads != 1 or uid == 0:
        raise RuntimeError(f"user {uid} cannot be become with {threads} threads")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    # Those that there are: the first one that there is not ends them.
    capability = 0
    while _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    _prctl(_PR_SET_DUMPABLE, 0)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)  # the change of user has taken it away
    if capability == 0 or os.getresuid() != (uid, uid, uid) or _can_be_root():
        raise RuntimeError("root could be had again")


def refuse_syscalls() -> None:
    """Have only those system calls that ``syscall_filter`` leaves, for good; after ``become_user``.

    Raises OSError, and Unsupported for an architecture that has no list.
    """
    program, keep = loaded()
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program)
    del keep


def _can_be_root() -> bool:
    try:
        os.setuid(0)
    except PermissionError:
        return False
    return True


def _prctl(option: int, value: int, program: SockFprog | None = None) -> None:
    third = ctypes.c_ulong(0) if program is None else ctypes.byref(program)
    if _libc.prctl(option, ctypes.c_ulong(value), third, ctypes.c_ulong(0), ctypes.c_ulong(0)) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), f"prctl {option}")
