"""Sessions of the fake runtime: each script is one line of ``FakeExec``'s programs."""

from __future__ import annotations

import asyncio
from typing import Any

from dsec.api.frames import STDERR, STDOUT
from dsec.errors import Conflict
from dsec.testing.fake_programs import FakeExec

__all__ = ["FakeSession"]


class FakeSession:
    """One session. ``scripts`` lists what was run, in order; ``hang`` waits until it is cancelled."""

    def __init__(self, shell: FakeExec) -> None:
        self.shell = shell
        self.scripts: list[bytes] = []
        self.ends: dict[str, dict[str, Any]] = {}
        self.cancelled: set[str] = set()
        self._running: dict[str, asyncio.Event] = {}

    async def run(self, run_id: str, script: bytes, *, merged: bool = False) -> dict[str, Any]:
        """RunEnd of a run, which is begun unless it is known. Raises Conflict when the shell has ended."""
        if run_id not in self.ends and run_id not in self._running:
            if self.shell.is_over:
                raise Conflict("the session is closed", phase="session")
            await self._begin(run_id, script, merged)
        elif run_id in self._running:
            await self._running[run_id].wait()
        return self.ends[run_id]

    async def _begin(self, run_id: str, script: bytes, merged: bool) -> None:
        start = {channel: len(self.shell.output[channel]) for channel in (STDOUT, STDERR)}
        self._running[run_id] = asyncio.Event()
        self.scripts.append(script)
        spec = {"exec_id": run_id, "argv": [b"", b"-c", script], "programs": [b"/bin/sh"], "stdin": False, "env": []}
        program = FakeExec(spec | {"merge_stderr": merged})
        if script == b"sleep":
            await self._running[run_id].wait()
        program.run()
        for channel, data in program.output.items():
            self.shell.output[channel] += data
        code = program.end["exit_code"] if program.end is not None else None
        cancelled = run_id in self.cancelled
        closed = script.startswith(b"exit")
        self.ends[run_id] = {
            "run_id": run_id, "ended": "cancelled" if cancelled else "exited", "exit_code": code, "signal": None,
            "oom_kills": 0, "quota_hits": [], "stdout_from": start[STDOUT], "stderr_from": start[STDERR],
            "stdout_total": len(self.shell.output[STDOUT]) - start[STDOUT],
            "stderr_total": len(self.shell.output[STDERR]) - start[STDERR],
            "started_at": self.shell.started_at, "duration_ns": 1_000_000,
            "usage": {"cpu_ns": 500_000, "memory_peak_bytes": 1 << 20}, "closed": closed,
            "merged": merged,
        }  # fmt: skip
        self._running.pop(run_id).set()
        if closed:
            self.shell.finish(code)

    def cancel(self, run_id: str) -> None:
        """End a run, or see to it that it will not begin."""
        self.cancelled.add(run_id)
        if run_id in self._running:
            self._running[run_id].set()
