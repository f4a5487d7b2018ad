"""The sandboxes of the fake runtime: what lives, what has ended, and the events that tell of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from dsec.errors import NotFound, SandboxGone
from dsec.testing.fake_programs import FakeExec
from dsec.testing.fake_sessions import FakeSession

__all__ = ["FakeSandbox", "FakeSandboxes"]


class FakeSandbox:
    """A sandbox in memory."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.started_at = time.time()
        self.execs: dict[str, FakeExec] = {}
        self.sessions: dict[str, FakeSession] = {}
        self.files: dict[bytes, tuple[bytes, int]] = {}
        self.end: dict[str, Any] | None = None
        self.paused = False
        self.net: dict[str, Any] | None = None
        self.audit: list[dict[str, Any]] = []
        """Events, numbered from 0."""


class FakeSandboxes:
    """All of them, the leases of their jobs, the disks and the snapshots that are kept."""

    def __init__(self) -> None:
        self.sandboxes: dict[str, FakeSandbox] = {}
        self.forgotten: dict[str, FakeSandbox] = {}
        self.killed_before: set[str] = set()
        self.leases: dict[str, dict[str, Any]] = {}
        self.disks: dict[str, dict[str, Any]] = {}
        self.snapshots: dict[str, dict[str, Any]] = {}
        self._subscribers: list[Callable[[dict[str, Any]], None]] = []

    def subscribe(self, tell: Callable[[dict[str, Any]], None]) -> None:
        """Take the place of the one subscriber of events."""
        self._subscribers[:] = [tell]

    def tell(self, event: dict[str, Any]) -> None:
        """Tell the subscriber."""
        for tell in self._subscribers:
            tell(event)

    def exec_ended(self, sandbox_id: str, found: FakeExec) -> None:
        """Tell of the end of an exec, and of its sandbox when it was the main process."""
        self.tell({"type": "exec.ended", "sandbox_id": sandbox_id, "end": found.end})
        if found.spec["is_main"] and found.end is not None:
            self.end_sandbox(sandbox_id, "main-exited", exit_code=found.end["exit_code"])

    def finish_exec(self, sandbox_id: str, exec_id: str, exit_code: int = 0) -> None:
        """End a ``sleep``."""
        found = self.sandboxes[sandbox_id].execs[exec_id]
        found.finish(exit_code)
        self.exec_ended(sandbox_id, found)

    def end_sandbox(self, sandbox_id: str, cause: str, *, exit_code: int | None = None) -> dict[str, Any]:
        """End a sandbox: SandboxEnd."""
        sandbox = self.sandboxes[sandbox_id]
        if sandbox.end is None:
            sandbox.end = {
                "sandbox_id": sandbox_id,
                "cause": cause,
                "ended_at": time.time(),
                "exit_code": exit_code,
                "usage": self.use(),
                "proof": {"processes": 0, "waited_ns": 1000},
                "kept_until": self.disks.get(sandbox_id, {}).get("kept_until"),
                "endpoints": [{"requests": 3, "sent_bytes": 10}] if sandbox.spec.get("endpoints") else [],
                "audit": {"events": len(sandbox.audit), "latest": sandbox.audit} if sandbox.audit else None,
            }
            gone = SandboxGone(f"the sandbox has ended: {cause}", sandbox_id=sandbox_id, cause=cause).to_wire()
            for each in sandbox.execs.values():
                each.lose(gone)
            self.tell({"type": "sandbox.ended", "end": sandbox.end})
        return sandbox.end

    def lose_all(self) -> None:
        """The keeper has died: nothing is left."""
        self.sandboxes.clear()

    def lose_job(self, job: str) -> None:
        """The time of a lease is over."""
        lease = self.leases[job]
        for sandbox_id, each in self.sandboxes.items():
            if each.spec.get("job") == job and each.end is None:
                if lease["on_lost"] == "stop":
                    self.end_sandbox(sandbox_id, "lease")
                else:
                    self.freeze(sandbox_id, "lease")
        self.tell({"type": "job.lost", "job": job, "fence": lease["fence"], "at": time.time()})

    @staticmethod
    def use() -> dict[str, Any]:
        """Usage."""
        return {
            "cpu_ns": 1_000_000, "memory_bytes": 4096, "memory_peak_bytes": 8192, "disk_bytes": 4096, "pids": 1,
            "pids_peak": 3, "oom_kills": 0, "read_bytes": None, "written_bytes": None, "memory_byte_s": 8192,
        }  # fmt: skip

    def find(self, sandbox_id: str) -> FakeSandbox:
        """A sandbox; raises NotFound."""
        found = self.sandboxes.get(sandbox_id)
        if found is None:
            raise NotFound("no such sandbox", sandbox_id=sandbox_id)
        return found

    def live(self, sandbox_id: str) -> FakeSandbox:
        """A live sandbox; raises NotFound or SandboxGone."""
        found = self.find(sandbox_id)
        if found.end is not None:
            cause = found.end["cause"]
            raise SandboxGone(f"the sandbox has ended: {cause}", sandbox_id=sandbox_id, cause=cause)
        return found

    def find_exec(self, sandbox_id: str, exec_id: str) -> FakeExec:
        """An exec; raises NotFound."""
        found = self.find(sandbox_id).execs.get(exec_id)
        if found is None:
            raise NotFound("no such exec", sandbox_id=sandbox_id, exec_id=exec_id)
        return found

    def session(self, sandbox_id: str, session_id: str) -> FakeSession:
        """A session of a live sandbox; raises NotFound, SandboxGone."""
        found = self.live(sandbox_id).sessions.get(session_id)
        if found is None:
            raise NotFound("no such session", sandbox_id=sandbox_id, exec_id=session_id)
        return found

    def kept(self, sandbox_id: str, exec_id: str) -> FakeExec:
        """An exec of a live sandbox or of a forgotten one whose output is kept."""
        forgotten = self.forgotten.get(sandbox_id)
        if forgotten is not None and exec_id in forgotten.execs:
            return forgotten.execs[exec_id]
        return self.find_exec(sandbox_id, exec_id)

    def resume(self, sandbox_id: str, cause: str) -> bool:
        """Let a sandbox go on; whether it was paused."""
        sandbox = self.live(sandbox_id)
        if not sandbox.paused:
            return False
        sandbox.paused = False
        told = {"sandbox_id": sandbox_id, "at": time.time(), "cause": cause}
        self.tell({"type": "sandbox.resumed"} | told)
        return True

    def freeze(self, sandbox_id: str, cause: str) -> None:
        """Let a sandbox stand still."""
        sandbox = self.live(sandbox_id)
        if not sandbox.paused:
            sandbox.paused = True
            told = {"sandbox_id": sandbox_id, "at": time.time(), "cause": cause, "whole": True}
            self.tell({"type": "sandbox.paused"} | told)

    def begin(self, params: dict[str, Any]) -> FakeExec:
        """Start an exec; one that is known is returned. Raises SandboxGone, ExecutableNotFound."""
        sandbox = self.live(params["sandbox_id"])
        known = sandbox.execs.get(params["exec_id"])
        if known is not None:
            return known
        self.resume(params["sandbox_id"], "exec")
        found = FakeExec(params)
        sandbox.execs[found.exec_id] = found
        if found.exec_id in self.killed_before:
            found.finish(None, ended="cancelled")
        else:
            found.run()
        if found.end is not None:
            self.exec_ended(params["sandbox_id"], found)
        return found
