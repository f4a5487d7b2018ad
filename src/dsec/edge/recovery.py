"""Making records and runtime agree again: at the edge's start, and whenever the link to the runtime is back.

``reconcile`` is pure and says what to do with each sandbox; ``Recovery`` does it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from enum import StrEnum

import structlog

from dsec.api.types import SandboxState
from dsec.backends.contract import SandboxEnded
from dsec.backends.wire import SandboxFound
from dsec.edge.core import Core
from dsec.edge.creates import Creates
from dsec.edge.ends import Ends
from dsec.edge.life import RUNS
from dsec.edge.pausing import Pausing
from dsec.edge.record import ExecRecord, SandboxRecord
from dsec.errors import Conflict, DSecError, InvalidArgument, NodeError, NotFound

__all__ = ["Act", "Recovery", "reconcile"]

_SWEPT_AT_ONCE = 100
_log = structlog.get_logger("dsec.edge.recovery")


class Act(StrEnum):
    """What recovery does with one sandbox."""

    NOTHING = "nothing"
    ADOPT = "adopt"
    """It runs, and its record says that it is being made."""
    END = "end"
    """It ended meanwhile."""
    FINISH = "finish"
    """It was to be made and is not there: make it."""
    UNDO = "undo"
    """Its create was cancelled."""
    LOST = "lost"
    """It ran and is not there."""
    ORPHAN = "orphan"
    """It is there and no record knows it."""
    FORGET = "forget"
    """Its end is recorded and not yet forgotten."""


def reconcile(
    recorded: dict[str, SandboxState], found: Iterable[SandboxFound], cancelled: frozenset[str] = frozenset()
) -> dict[str, Act]:
    """What to do, by sandbox ID. ``recorded``: states as recorded before the runtime was asked."""
    acts: dict[str, Act] = {}
    for each in found:
        state = recorded.get(each.sandbox_id)
        if each.end is not None:
            live = state is SandboxState.CREATING or state in RUNS
            acts[each.sandbox_id] = Act.END if live else Act.FORGET
        elif state is not SandboxState.CREATING and state not in RUNS:
            acts[each.sandbox_id] = Act.ORPHAN
        elif state is SandboxState.CREATING:
            acts[each.sandbox_id] = Act.UNDO if each.sandbox_id in cancelled else Act.ADOPT
        else:
            acts[each.sandbox_id] = Act.NOTHING
    for sandbox_id, state in recorded.items():
        if sandbox_id in acts:
            continue
        if state in RUNS:
            acts[sandbox_id] = Act.LOST
        elif state is SandboxState.CREATING:
            acts[sandbox_id] = Act.UNDO if sandbox_id in cancelled else Act.FINISH
    return acts


class Recovery:
    """Runs after each connection to the runtime."""

    def __init__(self, core: Core, creates: Creates, ends: Ends, pausing: Pausing) -> None:
        self._core = core
        self._pausing = pausing
        self._creates = creates
        self._ends = ends

    async def run(self) -> None:
        """Bring records and runtime together; raises NodeError when the link breaks again meanwhile."""
        core = self._core
        # Taken before the runtime is asked: what begins to run after that is not missing.
        recorded = {each.id: each.state for each in core.live.values() if not self._creates.is_under_way(each.id)}
        under_way = {each.sandbox_id for each in self._creates.under_way.values()}
        found = {each.sandbox_id: each for each in await core.backend.recover() if each.sandbox_id not in under_way}
        cancelled = frozenset(each for each, state in recorded.items() if self._is_cancelled(each, state))
        ended = {
            each: record.state
            for each in found
            if each not in recorded and (record := core.live.get(each) or core.records.sandbox(each)) is not None
        }
        acts = reconcile(recorded | ended, found.values(), cancelled)
        async with asyncio.TaskGroup() as tasks:
            for sandbox_id, act in acts.items():
                if act is not Act.NOTHING:
                    tasks.create_task(self._act(act, sandbox_id, found.get(sandbox_id)))
        self._pausing.compare(found.values())

    def _is_cancelled(self, sandbox_id: str, state: SandboxState) -> bool:
        if state is not SandboxState.CREATING:
            return False
        record = self._core.live[sandbox_id]
        known = self._core.records.create(record.project, record.key)
        return known is not None and known.cancelled

    async def _act(self, act: Act, sandbox_id: str, found: SandboxFound | None) -> None:
        core = self._core
        core.counters["recovered", act] += 1
        _log.info("recovering", sandbox_id=sandbox_id, act=act)
        record = core.live.get(sandbox_id)
        if act is Act.FORGET:
            core.forgets.add([sandbox_id])
        elif act is Act.ORPHAN:
            await self._end_orphan(sandbox_id)
        elif record is not None:
            await self._act_on(act, record, found)

    async def _act_on(self, act: Act, record: SandboxRecord, found: SandboxFound | None) -> None:
        core = self._core
        if act is Act.ADOPT and found is not None:
            if record.main_exec_id is None:
                core.note_started(record, found.started_at, {})
            else:  # its main process may not have begun
                await self._creates.finish(record)
        elif act is Act.END and found is not None and found.end is not None:
            core.note_started(record, found.started_at, {})
            await self._ends.note(SandboxEnded(found.end))
        elif act is Act.FINISH:
            await self._creates.finish(record)
        elif act is Act.UNDO:
            await self._creates.undo(record)
        elif act is Act.LOST:
            core.note_lost(record, "keeper", "the runtime does not have it: the keeper that held it has died")

    async def _end_orphan(self, sandbox_id: str) -> None:
        core = self._core
        try:
            await core.backend.stop(sandbox_id, cause="lost", actor="edge", grace_ms=0)
        except NotFound:
            return
        except DSecError as error:
            _log.warning("an unknown sandbox could not be ended", sandbox_id=sandbox_id, error=error.message)
            return
        core.forgets.add([sandbox_id])

    async def sweep_output(self) -> None:
        """Delete what is kept of sandboxes that no record knows: those of an earlier boot, or buried by an edge that
        died.
        """
        core = self._core
        kept = await asyncio.to_thread(os.listdir, core.config.paths.output)
        nobodys = [each for each in kept if each not in core.live and not core.records.has_ended(each)]
        for start in range(0, len(nobodys), _SWEPT_AT_ONCE):
            try:
                await core.backend.remove_output(nobodys[start : start + _SWEPT_AT_ONCE])
            except (Conflict, InvalidArgument) as error:  # one that is being ended, or no sandbox's: the next start's
                _log.warning("output of unknown sandboxes stays", error=error.message)

    async def settle_execs(self) -> None:
        """Record the results of execs that ended while nobody listened, repeat what was not acknowledged, and drop
        the intents of those that never began.
        """
        for record in list(self._core.live.values()):
            known = self._core.records.execs(record.id)
            if known:
                await self._settle(record, known)

    async def _settle(self, record: SandboxRecord, known: list[ExecRecord]) -> None:
        core = self._core
        starting = set(core.starting)
        states = {each.exec_id: each for each in await core.backend.execs(record.id)}
        for each in known:
            state = states.get(each.exec_id)
            if state is None:
                # Not one that a stream is about to start: then the runtime would not know it yet.
                if not each.is_over and not each.is_main and not {each.exec_id} & (starting | set(core.starting)):
                    core.records.drop_exec(record.id, each.exec_id)
            elif each.is_over:
                if state.state == "ended":
                    core.acks.add([each.exec_id])
            elif state.end is not None:
                self._ends.note_exec(record.id, state.end)
            elif state.state == "ended":
                await self._note_failed(record, each.exec_id)

    async def _note_failed(self, record: SandboxRecord, exec_id: str) -> None:
        """It could not begin, and whoever asked for it was not told: record why."""
        asked = {"sandbox_id": record.id, "exec_id": exec_id, "mode": "collect", "credit": {1: 0, 2: 0}}
        try:
            await self._core.backend.call("exec.attach", asked | {"offsets": {}, "max_output_bytes": 1})
        except NodeError:
            raise
        except DSecError as error:
            self._core.records.end_exec(record.id, exec_id, error=error.to_wire())
            self._core.acks.add([exec_id])
