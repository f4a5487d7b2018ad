"""How execs and runs of sessions end, as the node tells it (docs/protocols.md)."""

from __future__ import annotations

from typing import Self

import msgspec

from dsec.api.types import Ended, ExecUsage
from dsec.client.results import ExecResult, Exited, Kept
from dsec.errors import ProtocolError

__all__ = ["ExecEnd", "RunEnd"]


class _Usage(msgspec.Struct, frozen=True):
    cpu_ns: int = 0
    memory_peak_bytes: int = 0


class _End(msgspec.Struct, frozen=True, kw_only=True):
    ended: Ended
    stdout_total: int
    stderr_total: int
    started_at: float
    duration_ns: int
    exit_code: int | None = None
    signal: int | None = None
    oom_kills: int = 0
    quota_hits: list[str] = []
    usage: _Usage = _Usage()
    merged: bool = False

    @classmethod
    def of(cls, end: object) -> Self:
        """From its wire form; raises ProtocolError."""
        try:
            return msgspec.convert(end, cls)
        except msgspec.ValidationError as error:
            raise ProtocolError(f"an end is malformed: {error}") from None

    def result(self, sandbox_id: str, exec_id: str, stdout: Kept, stderr: Kept) -> ExecResult:
        """With the output that came."""
        usage = self.usage
        return ExecResult(
            exit_code=self.exit_code, signal=self.signal, ended=self.ended, oom_kills=self.oom_kills,
            quota_hits=frozenset(self.quota_hits), started_at=self.started_at, duration_s=self.duration_ns / 1e9,
            usage=ExecUsage(cpu_s=usage.cpu_ns / 1e9, memory_peak_mib=usage.memory_peak_bytes / 2**20),
            sandbox_id=sandbox_id, exec_id=exec_id, merged=self.merged, stdout_kept=stdout, stderr_kept=stderr,
        )  # fmt: skip


class ExecEnd(_End, frozen=True, kw_only=True):
    """The ``end`` of an exec's stream."""

    exec_id: str

    def event(self) -> Exited:
        """The event of it."""
        return Exited(
            exit_code=self.exit_code, signal=self.signal, ended=self.ended, oom_kills=self.oom_kills,
            quota_hits=frozenset(self.quota_hits), duration_s=self.duration_ns / 1e9,
        )  # fmt: skip


class RunEnd(_End, frozen=True, kw_only=True):
    """The ``end`` of a run. ``stdout_from``, ``stderr_from``: where its output begins in the session's streams."""

    run_id: str
    stdout_from: int
    stderr_from: int
    closed: bool = False
