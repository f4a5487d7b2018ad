"""Execs of the fake edge: a few programs that behave like their names, and their output as streams of frames."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from dsec.api import frames
from dsec.api.frames import CHUNK_BYTES, STDERR, STDIN, STDOUT
from dsec.errors import DSecError, ExecutableNotFound, SandboxGone

__all__ = ["FakeExec", "OutStream", "argv_of"]

_STDIN_CREDIT = 256 * 1024
SendFrame = Callable[[bytes], Awaitable[None]]


def argv_of(params: dict[str, Any]) -> list[str]:
    """The program of an ``exec`` open; a shell's script is split into words and not interpreted further."""
    if params.get("shell") is not None:
        return shlex.split(params["shell"])
    return [bytes(word).decode("utf-8", "surrogateescape") for word in params["argv"]]


class FakeExec:
    """One exec. Programs: true false exit echo err cat spew hang gone; anything else is not found."""

    def __init__(self, sandbox_id: str, exec_id: str, argv: list[str], *, merged: bool = False) -> None:
        self.merged = merged
        self.sandbox_id = sandbox_id
        self.exec_id = exec_id
        self.argv = argv
        self.output: dict[int, bytearray] = {STDOUT: bytearray(), STDERR: bytearray()}
        self.stdin = bytearray()
        self.stdin_closed = False
        self.stdin_taken = 0
        self.started_at = time.time()
        self.end: dict[str, Any] | None = None
        self.error: DSecError | None = None
        self.killed = asyncio.Event()
        self.signals: list[int] = []
        self.version = 0
        self._changed = asyncio.Event()
        self._cause = "cancelled"

    def start(self) -> None:
        """Begin; raises ExecutableNotFound."""
        if self.argv[0] not in ("true", "false", "exit", "echo", "err", "cat", "spew", "hang", "gone"):
            raise ExecutableNotFound(
                f"no such program: {self.argv[0]}", sandbox_id=self.sandbox_id, path=self.argv[0]
            )
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        program, words = self.argv[0], self.argv[1:]
        code = 0
        if program == "false":
            code = 1
        elif program == "exit":
            code = int(words[0])
        elif program == "echo":
            self.write(STDOUT, " ".join(words).encode() + b"\n")
        elif program == "err":
            self.write(STDERR, " ".join(words).encode("utf-8", "surrogateescape") + b"\n")
        elif program == "spew":
            self.write(STDOUT, bytes(range(256)) * (int(words[0]) // 256) + bytes(int(words[0]) % 256))
        elif program == "cat":
            await self._cat()
        elif program in ("hang", "gone"):
            for word in words:
                self.write(STDOUT, word.encode() + b"\n")
            await self.killed.wait()
        self.finish(code)

    async def _cat(self) -> None:
        while not self.killed.is_set():
            seen = self.version
            if len(self.stdin) > self.stdin_taken:
                taken = bytes(self.stdin[self.stdin_taken :])
                self.stdin_taken += len(taken)
                self.write(STDOUT, taken)
            elif self.stdin_closed:
                return
            else:
                await self.change(seen)

    def write(self, channel: int, data: bytes) -> None:
        """More output."""
        self.output[STDOUT if self.merged else channel] += data
        self.changed()

    def kill(self, cause: str) -> None:
        """End it now."""
        self._cause = cause
        self.killed.set()
        self.changed()

    def finish(self, code: int) -> None:
        """Write the end down."""
        killed = self.killed.is_set()
        if killed and self._cause not in ("cancelled", "timeout"):
            self.error = SandboxGone(
                f"the sandbox ended ({self._cause})", sandbox_id=self.sandbox_id, cause=self._cause
            )
        self.end = {
            "exec_id": self.exec_id,
            "ended": self._cause if killed else "exited",
            "exit_code": None if killed else code,
            "signal": 15 if killed else None,
            "oom_kills": 0,
            "quota_hits": [],
            "stdout_total": len(self.output[STDOUT]),
            "stderr_total": len(self.output[STDERR]),
            "started_at": self.started_at,
            "duration_ns": int((time.time() - self.started_at) * 1e9),
            "usage": {"cpu_ns": 1_000_000, "memory_peak_bytes": 1 << 20},
            "merged": self.merged,
        }
        self.changed()

    def take_stdin(self, offset: int, data: bytes) -> None:
        """Input at an absolute offset; what is there already is not taken twice."""
        if not data:
            self.stdin_closed = True
        elif offset <= len(self.stdin):
            self.stdin += data[len(self.stdin) - offset :]
        self.changed()

    def changed(self) -> None:
        """Wake every stream that waits."""
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def change(self, since: int) -> None:
        """Wait for output, input, credit, a kill or the end later than version ``since``."""
        if self.version == since:
            await self._changed.wait()


class OutStream:
    """One open of ``exec`` or ``attach``: sends an exec's frames as credit allows."""

    def __init__(self, number: int, target: FakeExec, params: dict[str, Any], send: SendFrame) -> None:
        self._number = number
        self.exec = target
        self._mode = params["mode"]
        offsets = params.get("offsets") or {}
        self._at = {channel: int(offsets.get(channel, 0)) for channel in (STDOUT, STDERR)}
        credit = params.get("credit") or {}
        self._credit = {c: int(credit.get(c, self._at[c] + (1 << 20))) for c in (STDOUT, STDERR)}
        self._max = int(params.get("max_output_bytes") or 10 << 20)
        self._send = send
        self.sent = 0

    def grant(self, channel: int, offset: int) -> None:
        """Credit from the client."""
        self._credit[channel] = max(self._credit[channel], offset)
        self.exec.changed()

    async def take_stdin(self, offset: int, data: bytes) -> None:
        """Input from the client, and credit back."""
        self.exec.take_stdin(offset, data)
        await self._send(frames.until_frame(self._number, STDIN, len(self.exec.stdin) + _STDIN_CREDIT))

    async def run(self) -> None:
        """Send everything until the end."""
        if self._mode == "detach":
            await self._send(frames.end_frame(self._number, {"started_at": self.exec.started_at}))
            return
        await self._send(frames.item_frame(self._number, {"started_at": self.exec.started_at}))
        while self._mode == "collect" and self.exec.end is None:
            await self.exec.change(self.exec.version)
        if self._mode == "collect":
            for channel in (STDOUT, STDERR):
                await self._collected(channel)
        else:
            seen = self.exec.version
            while not await self._step():
                await self.exec.change(seen)
                seen = self.exec.version
        await self._finish()

    async def _step(self) -> bool:
        over = self.exec.end is not None
        for channel in (STDOUT, STDERR):
            await self._up_to(channel, len(self.exec.output[channel]))
        return over and all(self._at[c] == len(self.exec.output[c]) for c in (STDOUT, STDERR))

    async def _up_to(self, channel: int, end: int) -> None:
        end = min(end, self._credit[channel])
        while self._at[channel] < end:
            start = self._at[channel]
            piece = bytes(self.exec.output[channel][start : min(end, start + CHUNK_BYTES)])
            self._at[channel] += len(piece)
            self.sent += len(piece)
            await self._send(frames.data_frame(self._number, channel, start, piece))

    async def _collected(self, channel: int) -> None:
        total, half = len(self.exec.output[channel]), self._max // 2
        parts = [(0, total)] if total <= self._max else [(0, half), (total - (self._max - half), total)]
        for start, end in parts:
            self._at[channel] = max(self._at[channel], start)
            while self._at[channel] < end:
                seen = self.exec.version
                await self._up_to(channel, end)
                if self._at[channel] < end:
                    await self.exec.change(seen)

    async def _finish(self) -> None:
        if self.exec.error is not None:
            await self._send(frames.error_frame(self._number, self.exec.error.to_wire()))
        else:
            await self._send(frames.end_frame(self._number, msgspec.to_builtins(self.exec.end)))
