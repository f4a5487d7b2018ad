"""Ending sandboxes and execs, and noting ends that happened by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import structlog

from dsec.api.types import StopFailure, StopReport
from dsec.backends.contract import DiskRemoved, ExecEnded, JobLost, SandboxEnded, SnapshotRemoved
from dsec.backends.wire import ExecEnd, RunEnd, answer
from dsec.edge.core import Core
from dsec.edge.faults import fault
from dsec.edge.kept import KeptDisks
from dsec.edge.pausing import Pausing
from dsec.edge.record import SandboxRecord
from dsec.errors import Conflict, DSecError, NotFound

__all__ = ["Ends"]

_log = structlog.get_logger("dsec.edge.ends")
_STOPS_AT_ONCE = 32


class Ends:
    """Stops what is asked, records what ends."""

    def __init__(self, core: Core, pausing: Pausing, kept: KeptDisks) -> None:
        self._core = core
        self._kept = kept
        self.on_other: Callable[[JobLost | DiskRemoved | SnapshotRemoved], None] = lambda _: None
        """Told what concerns no single live sandbox."""
        self._pausing = pausing
        self._asked: dict[str, str] = {}
        """Who asked for the stop of a sandbox: the runtime's event may come before its answer."""

    async def stop(
        self, record: SandboxRecord, *, actor: str, grace_ms: int, keep_ms: int | None = None
    ) -> SandboxRecord:
        """End a sandbox, confirmed and recorded; one that has ended stays as it is."""
        core = self._core
        if not record.is_live:
            return record
        actor = self._asked.setdefault(record.id, actor)
        try:
            fault("edge.stop.asked")
            end = await core.backend.stop(record.id, cause="stopped", actor=actor, grace_ms=grace_ms, keep_ms=keep_ms)
            fault("edge.stop.ended")
            await self._settle_execs(record)
            core.note_ended(record, end, actor=actor)
        except NotFound:
            # Ended by itself and recorded while the request was on its way; else the node has lost it.
            if record.is_live:
                core.note_lost(record, "runtime", "the runtime does not know the sandbox")
        finally:
            self._asked.pop(record.id, None)
        return record

    async def stop_many(self, records: Iterable[SandboxRecord], *, actor: str) -> StopReport:
        """End many at once; failures are reported, not raised."""
        turn = asyncio.Semaphore(_STOPS_AT_ONCE)
        stopped: list[str] = []
        failed: list[StopFailure] = []

        async def one(record: SandboxRecord) -> None:
            async with turn:
                try:
                    await self.stop(record, actor=actor, grace_ms=0)
                    stopped.append(record.id)
                except DSecError as error:
                    failed.append(StopFailure(id=record.id, error=error.to_wire()))

        async with asyncio.TaskGroup() as tasks:
            for record in records:
                tasks.create_task(one(record))
        return StopReport(stopped=stopped, failed=failed)

    async def delete(self, record: SandboxRecord, *, actor: str, force: bool) -> None:
        """Drop a tombstone with its output; a live sandbox is stopped first when ``force``, else Conflict."""
        if record.is_live:
            if not force:
                raise Conflict("the sandbox runs", sandbox_id=record.id, remedy="Stop it first, or force")
            await self.stop(record, actor=actor, grace_ms=0)
        await self.bury([record.id])

    async def bury(self, sandbox_ids: list[str]) -> None:
        """Drop tombstones: the output first, so that a crash in between only repeats it.

        Raises NodeError while the runtime is away; the tombstones stay then.
        """
        if self._core.past:
            await self.flush_past()
        await self._kept.remove(sandbox_ids)
        await self._core.backend.forget(sandbox_ids)  # what is committed may still wait in the batch
        await self._core.backend.remove_output(sandbox_ids)
        fault("edge.remove.output")
        self._core.records.remove(sandbox_ids)
        fault("edge.remove.committed")

    async def flush_past(self) -> None:
        """Bring ended sandboxes into the catalogue."""
        past, self._core.past = self._core.past, []
        if not past:
            return
        try:
            await asyncio.to_thread(self._core.catalogue.add, past)
        except BaseException:
            self._core.past = past + self._core.past
            raise
        self._core.records.note_catalogued(past[-1].id)

    # What happened by itself

    async def watch(self) -> None:
        """Record ends as the runtime tells of them, until the connection breaks."""
        async for event in self._core.backend.events():
            if isinstance(event, SandboxEnded):
                await self.note(event)
            elif isinstance(event, ExecEnded):
                self.note_exec(event.sandbox_id, event.end)
            elif isinstance(event, JobLost | DiskRemoved | SnapshotRemoved):
                self.on_other(event)
            else:
                self._pausing.note(event)

    async def note(self, event: SandboxEnded) -> None:
        """Record the end of a sandbox, its execs' first."""
        record = self._core.live.get(event.end.sandbox_id)
        if record is None:
            if self._core.records.has_ended(event.end.sandbox_id):
                self._core.forgets.add([event.end.sandbox_id])
            return
        await self._settle_execs(record)
        actor = self._asked.get(record.id) if event.end.cause == "stopped" else None
        self._core.note_ended(record, event.end, actor=actor or _actor(event.end.cause))

    def note_exec(self, sandbox_id: str, end: ExecEnd) -> None:
        """Record the result of an exec once, and let the runtime know that it is committed."""
        self._core.records.end_exec(sandbox_id, end.exec_id, end=end)
        self._core.acks.add([end.exec_id])

    async def _settle_execs(self, record: SandboxRecord) -> None:
        """Execs that ended before their sandbox did have a result of their own, not the sandbox's end."""
        core = self._core
        await self._settle_runs(record)
        if not core.records.execs(record.id, unended=True):
            return
        try:
            states = await core.backend.execs(record.id)
        except DSecError as error:
            _log.warning("execs of an ended sandbox are not known", sandbox_id=record.id, error=error.message)
            return
        for state in states:
            if state.end is not None:
                core.records.end_exec(record.id, state.exec_id, end=state.end)

    async def _settle_runs(self, record: SandboxRecord) -> None:
        """The same for runs of sessions, which nobody may have waited for."""
        core = self._core
        if not core.records.runs.without_outcome(record.id):
            return
        try:
            found = await core.backend.call("session.runs", {"sandbox_id": record.id})
        except DSecError as error:
            _log.warning("runs of an ended sandbox are not known", sandbox_id=record.id, error=error.message)
            return
        for end in answer(found["runs"], list[RunEnd]):
            core.records.runs.end(record.id, end.run_id, end=end)


def _actor(cause: str) -> str:
    return {"idle": "runtime", "lifetime": "runtime", "lease": "runtime", "main-exited": "sandbox"}.get(cause, "node")
