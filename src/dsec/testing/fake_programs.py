"""What runs in a fake sandbox: a handful of programs as coroutines."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from dsec.api.frames import STDERR, STDOUT
from dsec.errors import ExecutableNotFound

__all__ = ["FakeExec"]


class FakeExec:
    """One exec: its request, its output so far, its end.

    Programs: ``true``, ``false``, ``echo WORDS``, ``err WORDS``, ``exit N``, ``cat`` (its standard input),
    ``bytes N``, ``env`` (what it was given), ``pwd``, ``sleep`` (until killed, or ``finish`` is called). A shell
    script is one such line, whose ``echo`` may end with ``>&2``. Everything else is not found.
    """

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.exec_id: str = spec["exec_id"]
        self.started_at = time.time()
        self.output: dict[int, bytearray] = {STDOUT: bytearray(), STDERR: bytearray()}
        self.input = bytearray()
        self.input_over = not spec["stdin"]
        self.end: dict[str, Any] | None = None
        self.gone: dict[str, Any] | None = None
        """Wire form of the error, when its sandbox ended first."""
        self.acked = False
        self.changed = asyncio.Event()
        self.words: list[bytes] = list(spec["argv"]) if spec["programs"] is None else _line(spec["argv"][2])
        if self.words[0] not in _PROGRAMS:
            raise ExecutableNotFound(f"no such program: {self.words[0]!r}", path=self.words[0].decode())

    @property
    def is_over(self) -> bool:
        """Whether it has ended, by itself or with its sandbox."""
        return self.end is not None or self.gone is not None

    @property
    def _is_merged(self) -> bool:
        return bool(self.spec.get("merge_stderr") or self.spec.get("pty"))

    def tell(self) -> None:
        """Wake those who read it."""
        self.changed.set()
        self.changed = asyncio.Event()

    def run(self) -> None:
        """Do what can be done now: the whole program, unless it waits for input or for its end."""
        name, words = self.words[0], self.words[1:]
        if name == b"echo":
            self._write(STDOUT, b" ".join(words) + b"\n")
        elif name == b"err":
            self._write(STDERR, b" ".join(words) + b"\n")
        elif name == b"bytes":
            whole, rest = divmod(int(words[0]), 251)
            self._write(STDOUT, bytes(range(251)) * whole + bytes(range(rest)))
        elif name == b"env":
            self._write(STDOUT, b"\n".join(sorted(self.spec["env"])) + b"\n")
        elif name == b"pwd":
            self._write(STDOUT, (self.spec["cwd"] or b"/") + b"\n")
        if name == b"cat" and not self.input_over:
            return
        if name != b"sleep":
            self.finish(int(words[0]) if name == b"exit" else int(name == b"false"))

    def take_input(self, offset: int, data: bytes) -> None:
        """Bytes of its standard input; empty bytes end it."""
        if offset < len(self.input):
            data = data[len(self.input) - offset :] if data else data
        self.input += data
        if not data:
            self.input_over = True
        if self.words[0] == b"cat" and not self.is_over:
            self._write(STDOUT, data)
            if self.input_over:
                self.finish(0)

    def _write(self, channel: int, data: bytes) -> None:
        if self._is_merged:
            channel = STDOUT
        self.output[channel] += data
        self.tell()

    def finish(self, exit_code: int | None, *, ended: str = "exited", signal: int | None = None) -> None:
        """End it."""
        if self.is_over:
            return
        self.end = {
            "exec_id": self.exec_id,
            "ended": ended,
            "exit_code": exit_code,
            "signal": signal,
            "oom_kills": 0,
            "quota_hits": [],
            "stdout_total": len(self.output[STDOUT]),
            "stderr_total": len(self.output[STDERR]),
            "started_at": self.started_at,
            "duration_ns": 1_000_000,
            "usage": {"cpu_ns": 500_000, "memory_peak_bytes": 1 << 20},
            "merged": self._is_merged,
        }
        self.tell()

    def lose(self, wire: dict[str, Any]) -> None:
        """Its sandbox ended first."""
        if not self.is_over:
            self.gone = wire
            self.tell()

    def state(self) -> dict[str, Any]:
        """ExecState."""
        return {
            "exec_id": self.exec_id,
            "state": "ended" if self.is_over else "running",
            "argv": self.spec["argv"],
            "started_at": self.started_at,
            "stdout_total": len(self.output[STDOUT]),
            "stderr_total": len(self.output[STDERR]),
            "end": self.end,
        }


def _line(script: bytes) -> list[bytes]:
    words = script.split() or [b"true"]
    return [b"err", *words[1:-1]] if words[0] == b"echo" and words[-1] == b">&2" else words


_PROGRAMS = frozenset({b"true", b"false", b"echo", b"err", b"exit", b"cat", b"bytes", b"env", b"pwd", b"sleep"})
