"""Pausing and resuming, asked for or because something enters a paused sandbox: the runtime acts, this notes it."""

from __future__ import annotations

from collections.abc import Iterable

from dsec.api.types import Paused, SandboxState
from dsec.backends.contract import Pausable, SandboxPaused, SandboxResumed
from dsec.backends.wire import SandboxFound
from dsec.edge.core import Core, gone
from dsec.edge.faults import fault
from dsec.edge.record import SandboxRecord
from dsec.errors import Conflict, NotFound, Unsupported

__all__ = ["Pausing"]

_PARTIAL = "partial: some processes could not stand still yet"


class Pausing:
    """Pauses what is asked, records what is paused or resumed by itself."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._asked: dict[str, str] = {}
        """Who asked: the runtime's event may come before its answer."""

    @property
    def _backend(self) -> Pausable:
        backend = self._core.backend
        if not isinstance(backend, Pausable):
            raise Unsupported("this kind of sandbox cannot be paused")
        return backend

    async def pause(self, record: SandboxRecord, *, actor: str) -> Paused:
        """Let a sandbox stand still, confirmed and recorded.

        Raises SandboxGone, NotFound while it is being made, Conflict when something entered it meanwhile.
        """
        self._check(record)
        actor = self._asked.setdefault(record.id, actor)
        try:
            fault("edge.pause.asked")
            found = await self._backend.freeze(record.id, cause="paused")
            fault("edge.pause.frozen")
        finally:
            self._asked.pop(record.id, None)
        if not found.paused:
            self._check(record)
            raise Conflict("something entered the sandbox while it was being paused", sandbox_id=record.id)
        event = SandboxPaused(sandbox_id=record.id, at=self._core.clock(), cause="paused", whole=found.whole)
        self._note(record, event, actor)
        return Paused(id=record.id, partial=not found.whole, waited_s=found.waited_ns / 1e9)

    async def resume(self, record: SandboxRecord, *, actor: str) -> None:
        """Let it go on, confirmed and recorded. One that is not paused stays as it is."""
        self._check(record)
        actor = self._asked.setdefault(record.id, actor)
        try:
            await self._backend.thaw(record.id)
            fault("edge.resume.thawed")
        finally:
            self._asked.pop(record.id, None)
        self._note(record, SandboxResumed(sandbox_id=record.id, at=self._core.clock(), cause="resumed"), actor)

    def _check(self, record: SandboxRecord) -> None:
        if not record.is_live:
            raise gone(record)
        if record.state is SandboxState.CREATING:
            raise NotFound("the sandbox is still being made", sandbox_id=record.id)

    # What happened by itself

    def note(self, event: SandboxPaused | SandboxResumed) -> None:
        """Record what the runtime tells."""
        record = self._core.live.get(event.sandbox_id)
        if record is not None:
            self._note(record, event, self._asked.get(record.id, "runtime"))

    def _note(self, record: SandboxRecord, event: SandboxPaused | SandboxResumed, actor: str) -> None:
        paused = isinstance(event, SandboxPaused)
        self._core.note_moved(
            record,
            SandboxState.PAUSED if paused else SandboxState.RUNNING,
            at=event.at,
            cause=event.cause,
            actor=actor,
            detail=_PARTIAL if isinstance(event, SandboxPaused) and not event.whole else "",
        )
        fault("edge.pause.committed")

    def compare(self, found: Iterable[SandboxFound]) -> None:
        """Record what happened while nobody listened."""
        for each in found:
            record = self._core.live.get(each.sandbox_id)
            if record is None or each.end is not None or record.state is SandboxState.CREATING:
                continue
            if each.paused != (record.state is SandboxState.PAUSED):
                kind = SandboxPaused if each.paused else SandboxResumed
                self._note(record, kind(sandbox_id=record.id, at=self._core.clock(), cause="found"), "runtime")
