"""Giving up root, for good: as ``dsec_session::unprivileged`` does it for the Rust parts of a node.

A Python part is started as root, reads what only root may read, and becomes a user of its own before it hears
anybody: its interpreter may lie where that user could not read it.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
from pathlib import Path

from dsec.node.syscall_filter import SockFprog, loaded

__all__ = ["become_user", "become_user_with_files", "refuse_syscalls"]

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_KEEPCAPS = 8
_PR_SET_SECCOMP = 22
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION = 0x20080522
_DAC_OVERRIDE, _SETGID, _SETUID = 1 << 1, 1 << 6, 1 << 7
_libc = ctypes.CDLL(None, use_errno=True)


def become_user(uid: int) -> None:
    """Become another user without groups, without capabilities, without a way to any, and not to be looked into.

    Only while the process has one thread: what is given up here is each thread's own. Raises OSError for the step
    that the kernel refuses; RuntimeError with several threads, for ``uid`` 0, or where root could be had again.
    """
    _become(uid, files=False)


def become_user_with_files(uid: int) -> None:
    """The same, but on files: it is root there, whoever they belong to, and what it makes is root's.

    To sockets, signals, processes and everything else it is the user; of capabilities it keeps CAP_DAC_OVERRIDE.
    Raises as ``become_user``.
    """
    _become(uid, files=True)


def _become(uid: int, *, files: bool) -> None:
    threads = sum(1 for _ in Path("/proc/self/task").iterdir())
    if threads != 1 or uid == 0:
        raise RuntimeError(f"user {uid} cannot be become with {threads} threads")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_KEEPCAPS, files)
    # Those that there are: the first one that there is not ends them.
    capability = 0
    while _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    if files:
        _capset(_DAC_OVERRIDE | _SETGID | _SETUID)
        _libc.setfsgid(0)
        _libc.setfsuid(0)
        _capset(_DAC_OVERRIDE)
        _prctl(_PR_SET_KEEPCAPS, 0)
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


def _capset(capabilities: int) -> None:
    """These are permitted and in force, and no others."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    low, high = capabilities & 0xFFFFFFFF, capabilities >> 32
    if _libc.capset(header, struct.pack("=6I", low, low, 0, high, high, 0)) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "capset")


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
