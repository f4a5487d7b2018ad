"""System calls that a running process of the node is made to make, as if something had subverted it."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["Subverted", "subverted"]

_STEP, _GETREGS, _SETREGS, _DETACH, _SEIZE, _INTERRUPT = 9, 12, 13, 17, 0x4206, 0x4207
_SYSCALL = b"\x0f\x05"
_BELOW = 1024
"""Bytes under the top of its stack: nothing of its own is there."""
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long


class _Registers(ctypes.Structure):
    """``struct user_regs_struct`` of x86-64."""

    _fields_ = tuple(
        (name, ctypes.c_ulonglong)
        for name in (
            *("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi"),
            *("orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs"),
        )
    )


class Subverted:
    """A process's first thread, stopped; each call is made with the process's own rights and filter."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._memory = os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC)
        self._saved = _Registers()
        _ptrace(_GETREGS, pid, ctypes.addressof(self._saved))
        self._syscall = self._find()
        self._text = self._saved.rsp - _BELOW
        self._before = self._read(self._text, 256)

    def call(self, number: int, *arguments: int | bytes) -> int:
        """What the call gives: negative is an errno. Bytes, at most 200 in all, are passed by address."""
        place, values = self._text, []
        for argument in arguments:
            if isinstance(argument, bytes):
                self._write(place, argument + b"\0")
                values.append(place)
                place += len(argument) + 1
            else:
                values.append(argument)
        now = _Registers.from_buffer_copy(self._saved)
        names = ("rdi", "rsi", "rdx", "r10", "r8", "r9")
        for name, value in zip(names, values + [0] * (6 - len(values)), strict=True):
            setattr(now, name, value & 0xFFFFFFFFFFFFFFFF)
        now.rax, now.rip, now.orig_rax = number, self._syscall, 0xFFFFFFFFFFFFFFFF
        _ptrace(_SETREGS, self._pid, ctypes.addressof(now))
        _ptrace(_STEP, self._pid, 0)
        stopped = _stopped(self._pid)
        assert stopped == signal.SIGTRAP, signal.Signals(stopped)
        _ptrace(_GETREGS, self._pid, ctypes.addressof(now))
        return ctypes.c_longlong(now.rax).value

    def release(self) -> None:
        """Let it go on where it was."""
        self._write(self._text, self._before)
        _ptrace(_SETREGS, self._pid, ctypes.addressof(self._saved))
        os.close(self._memory)

    def _find(self) -> int:
        """Where its own code has the instruction that calls the kernel."""
        for line in Path(f"/proc/{self._pid}/maps").read_text().splitlines():
            span, modes, *_ = line.split()
            if modes == "r-xp" and "[vsyscall]" not in line:
                start, end = (int(each, 16) for each in span.split("-"))
                found = self._read(start, end - start).find(_SYSCALL)
                if found >= 0:
                    return start + found
        raise AssertionError("no code that calls the kernel")

    def _read(self, at: int, length: int) -> bytes:
        return os.pread(self._memory, length, at)

    def _write(self, at: int, data: bytes) -> None:
        assert os.pwrite(self._memory, data, at) == len(data)


@contextmanager
def subverted(pid: int) -> Iterator[Subverted]:
    """Stop a process, have calls made in its place, and let it go on as if nothing had been. Only root may."""
    _ptrace(_SEIZE, pid, 0)
    try:
        _ptrace(_INTERRUPT, pid, 0)
        _stopped(pid)
        held = Subverted(pid)
        try:
            yield held
        finally:
            held.release()
    finally:
        _ptrace(_DETACH, pid, 0)


def _stopped(pid: int) -> int:
    found, status = os.waitpid(pid, 0x40000000)  # __WALL: it is no child
    assert found == pid and os.WIFSTOPPED(status), status
    return os.WSTOPSIG(status)


def _ptrace(request: int, pid: int, data: int) -> None:
    arguments = (ctypes.c_long(request), ctypes.c_long(pid), ctypes.c_void_p(0), ctypes.c_void_p(data))
    if _libc.ptrace(*arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), f"ptrace {request:#x}")
