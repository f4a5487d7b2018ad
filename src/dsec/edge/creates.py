"""Creating sandboxes: one attempt for each key, joined by whoever asks again, finished or undone, never half.

An attempt runs in a task of its own, so that it outlives the connection of whoever began it. Order of the acts:
check, image, admission, *intent committed*, runtime, *running committed*. A crash between the last two is finished by
``recovery``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from dsec.api import ids
from dsec.api.types import CreateRequest, SandboxState
from dsec.edge import life
from dsec.edge.admission import ASKED_AS, Ticket
from dsec.edge.attempt import Attempt, Cancelled, full, key_conflict, too_late
from dsec.edge.caller import calling
from dsec.edge.composing import composed
from dsec.edge.core import Core
from dsec.edge.demands import Demand, check_create, demand_of, egress_of
from dsec.edge.endpoints import endpoint_specs
from dsec.edge.ends import Ends
from dsec.edge.environment import Environment
from dsec.edge.faults import fault
from dsec.edge.kept import KeptDisks
from dsec.edge.layer_cache import LayerCache
from dsec.edge.record import ExecRecord, SandboxRecord, whose_of
from dsec.edge.snapshots import Snapshots
from dsec.edge.specs import canonical_create, main_exec_id, sandbox_spec, shortened
from dsec.errors import (
    CapacityError,
    Conflict,
    DeadlineExceeded,
    DSecError,
    InvalidArgument,
    NodeError,
    NotFound,
    PlatformError,
    Unsupported,
    error_from_wire,
)

__all__ = ["Creates"]

_log = structlog.get_logger("dsec.edge.creates")

_LEAVE_QUEUE_S = 5.0
_QUICK_S = 0.25
_ATTEMPT_S = 30.0
_UNDO_AGAIN_S = 0.1
_MIB = 1 << 20


class Creates:
    """All creates of the node. ``spawn`` runs an attempt in the edge's task group."""

    def __init__(
        self, core: Core, ends: Ends, kept: KeptDisks, snapshots: Snapshots, cache: LayerCache,
        spawn: Callable[[Awaitable[None]], asyncio.Task[None]],
    ) -> None:  # fmt: skip
        self._core = core
        self._snapshots = snapshots
        self._ends = ends
        self._kept = kept
        self._cache = cache
        self._spawn = spawn
        self.under_way: dict[tuple[str, str], Attempt] = {}
        """By project and key."""

    def is_under_way(self, sandbox_id: str) -> bool:
        """Whether an attempt of this process is at work on the sandbox."""
        return any(each.sandbox_id == sandbox_id for each in self.under_way.values())

    async def create(
        self, request: CreateRequest, principal: str, until_disconnected: Callable[[], Awaitable[None]]
    ) -> SandboxRecord | None:
        """The sandbox of this key, new or known; None when the caller went away meanwhile.

        Raises what the attempt raised; the same again for the same key, unless it was retryable.
        """
        ids.check_key(request.key)
        deadline = asyncio.get_running_loop().time() + max(0.0, min(request.deadline_s, 86400.0))
        body = canonical_create(request)
        project = calling().home
        attempt = self.under_way.get((project, request.key))
        if attempt is None:
            known = self._known(project, request.key, body)
            if known is not None:
                return known
            attempt = self._begin(request, principal, project, body, deadline)
        elif attempt.body != body:
            raise key_conflict(request.key)
        attempt.extend(deadline)
        return await self._wait(attempt, deadline, until_disconnected)

    def _known(self, project: str, key: str, body: bytes) -> SandboxRecord | None:
        known = self._core.records.create(project, key)
        if known is None:
            return None
        if known.cancelled:
            raise Cancelled("the create with this key was cancelled")
        if known.body != body:
            raise key_conflict(key)
        if known.error is not None:
            raise error_from_wire(known.error)
        record = self._core.live.get(known.sandbox_id or "") or self._core.records.sandbox(known.sandbox_id or "")
        if record is None:
            raise NotFound("the sandbox that this key made has been removed", sandbox_id=known.sandbox_id)
        if record.state is SandboxState.CREATING:
            raise NodeError("the sandbox is being recovered", sandbox_id=record.id, retry_after_s=0.2)
        return record

    def _begin(self, request: CreateRequest, principal: str, project: str, body: bytes, deadline: float) -> Attempt:
        sandbox_id = ids.new_sandbox_id(self._core.config.node)
        attempt = Attempt(request, principal, project, body, sandbox_id, deadline)
        self.under_way[project, request.key] = attempt
        attempt.task = self._spawn(self._run(attempt))
        return attempt

    async def _wait(
        self, attempt: Attempt, deadline: float, until_disconnected: Callable[[], Awaitable[None]]
    ) -> SandboxRecord | None:
        attempt.waiters += 1
        try:
            # Most creates take milliseconds: only the others are worth a task that watches the connection.
            await asyncio.wait({attempt.done}, timeout=_QUICK_S)
            if not attempt.done.done() and await self._watch(attempt, deadline, until_disconnected):
                return None
        finally:
            attempt.waiters -= 1
            self._maybe_leave(attempt)
        outcome = attempt.done.result()
        if isinstance(outcome, DSecError):
            raise outcome
        return outcome

    async def _watch(
        self, attempt: Attempt, deadline: float, until_disconnected: Callable[[], Awaitable[None]]
    ) -> bool:
        """Wait on; True when the caller's connection ended first. Raises DeadlineExceeded for this caller only."""
        gone: asyncio.Future[None] = asyncio.ensure_future(until_disconnected())
        # The attempt ends by itself at its own deadline; a second more lets it say why.
        left = deadline - asyncio.get_running_loop().time() + 1.0
        try:
            waited: set[asyncio.Future[Any]] = {attempt.done, gone}
            await asyncio.wait(waited, timeout=max(left, 0), return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await gone
        if attempt.done.done():
            return False
        if not gone.cancelled():
            return True
        raise too_late(attempt)

    def _maybe_leave(self, attempt: Attempt) -> None:
        if attempt.waiters == 0 and attempt.phase in ("image", "admission") and not attempt.done.done():
            asyncio.get_running_loop().call_later(_LEAVE_QUEUE_S, self._leave, attempt)

    def _leave(self, attempt: Attempt) -> None:
        if attempt.waiters == 0 and attempt.phase == "admission":
            attempt.give_up(CapacityError("the caller left the queue", phase="admission", retry_after_s=0.0))

    async def _run(self, attempt: Attempt) -> None:
        outcome: SandboxRecord | DSecError
        try:
            outcome = await self._attempt(attempt)
        except DSecError as error:
            outcome = error
        except asyncio.CancelledError:
            if attempt.given_up is None:
                self._settle(attempt, NodeError("the edge restarts", retry_after_s=0.2))
                raise
            outcome = attempt.given_up
        except Exception as error:
            _log.exception("create failed", sandbox_id=attempt.sandbox_id)
            outcome = PlatformError(f"create failed: {type(error).__name__}: {error}", phase=attempt.phase)
        attempt.in_time()
        if isinstance(outcome, DSecError):
            outcome = await self._failed(attempt, outcome)
        self._settle(attempt, outcome)

    def _settle(self, attempt: Attempt, outcome: SandboxRecord | DSecError) -> None:
        self.under_way.pop((attempt.project, attempt.request.key), None)
        code = outcome.code if isinstance(outcome, DSecError) else "ok"
        self._core.counters["created", code] += 1
        if not attempt.done.done():
            attempt.done.set_result(outcome)

    async def _attempt(self, attempt: Attempt) -> SandboxRecord:
        core, request = self._core, attempt.request
        check_create(request, core.config)
        demand = demand_of(request, core.config.overcommit)
        self._check_node(demand)
        if request.name is not None:
            self._take_name(attempt.project, request.name, attempt.sandbox_id)
        attempt.phase = "image"
        environment = await self._environment(request, attempt.deadline)
        core.hold_layers(attempt.sandbox_id, environment.layers)
        await self._cache.ensure(environment.layers)
        attempt.phase = "admission"
        self._maybe_leave(attempt)
        await self._admit(attempt, demand)
        fault("edge.create.admitted")
        attempt.phase = "start"
        record = self._record(attempt, demand, environment)
        main = _main_record(record, attempt.body)
        core.records.intend(record, attempt.body, main)
        fault("edge.create.intended")
        core.add(record)
        await self._start(record, attempt.deadline)
        return record

    def _check_node(self, demand: Demand) -> None:
        core = self._core
        if core.refusal is not None:
            raise Unsupported(f"this node cannot run containers: {core.refusal}", remedy="`dsec doctor` says more")
        if core.draining:
            raise CapacityError("the node is being taken down", phase="admission", retry_after_s=5.0)
        field = core.admission.impossible(demand.need)
        if field is not None:
            name, unit = ASKED_AS[field]
            wanted, most = getattr(demand.need, field) / unit, getattr(core.admission.capacity, field) / unit
            raise InvalidArgument(
                f"{name}: the request of {wanted:.10g} is above what this node has, {most:.10g}",
                phase="limits",
                remedy="Ask for less, or give a (request, limit) pair with a smaller request",
            )

    def _take_name(self, project: str, name: str, sandbox_id: str) -> None:
        taken = self._core.names.get((project, name))
        if taken is not None:
            raise Conflict(f"the name {name!r} is taken", sandbox_id=taken, remedy="Stop that sandbox or use another")
        self._core.names[project, name] = sandbox_id

    async def _environment(self, request: CreateRequest, deadline: float) -> Environment:
        if request.from_disk is not None:
            return self._kept.environment(request)
        if request.from_snapshot is not None:
            return self._snapshots.environment(request)
        return await composed(self._core.images, request, deadline)

    async def _admit(self, attempt: Attempt, demand: Demand) -> None:
        admission = self._core.admission
        project, group = whose_of(attempt.project, attempt.request.job, attempt.principal)
        ticket = Ticket(attempt.sandbox_id, group, demand.need, project)
        obstacle = admission.obstacle(ticket)
        if attempt.request.on_full == "raise" and obstacle is not None:
            raise full(obstacle, len(admission))
        await self._core.admitted(ticket)

    def _record(self, attempt: Attempt, demand: Demand, environment: Environment) -> SandboxRecord:
        core, request, now = self._core, attempt.request, self._core.clock()
        network, egress = egress_of(request.network, core.config)
        return SandboxRecord(
            id=attempt.sandbox_id,
            boot_id=core.boot_id,
            node=core.config.node,
            project=attempt.project,
            principal=attempt.principal,
            key=request.key,
            name=request.name,
            image=environment.image,
            image_digest=environment.image_digest,
            layers=environment.layers,
            composed=environment.composed,
            workspace=environment.workspace,
            labels=request.labels,
            own_env=request.env,
            env=environment.env,
            workdir=environment.workdir,
            user=environment.user,
            command=environment.command,
            demand=demand,
            shm_bytes=int(request.shm_mib * _MIB),
            idle_timeout_s=request.idle_timeout_s,
            lifetime_s=request.lifetime_s,
            exec_timeout_s=request.exec_timeout_s,
            endpoints=endpoint_specs(request.endpoints),
            network=network,
            egress=egress,
            profile=request.profile,
            protected=list(request.protected),
            pty=request.pty,
            stdin=request.stdin,
            main_exec_id=None if environment.command is None else main_exec_id(attempt.sandbox_id),
            job=request.job,
            from_disk=request.from_disk,
            from_snapshot=request.from_snapshot,
            story=life.advance(
                [], SandboxState.CREATING, at=now, cause="requested", actor=attempt.principal or "unknown"
            ),
        )

    async def _start(self, record: SandboxRecord, deadline: float) -> None:
        """Ask the runtime until it answers: the same ID never makes two sandboxes."""
        core, loop = self._core, asyncio.get_running_loop()
        spec = sandbox_spec(record)
        while True:
            reconnects = core.link.reconnects
            try:
                started = await core.backend.start(spec, timeout_s=_ATTEMPT_S)
            except NodeError:
                # A refusal of the runtime's own is the answer; a broken link is none.
                if core.link.connected and core.link.reconnects == reconnects:
                    raise
                await core.link.wait_up(max(deadline - loop.time(), 0.1))
                continue
            fault("edge.create.started")
            core.note_started(record, started.started_at, started.phases)
            fault("edge.create.committed")
            return

    async def finish(self, record: SandboxRecord) -> None:
        """Finish what an edge before this one began: start again by the same ID, or undo."""
        try:
            async with asyncio.timeout(_ATTEMPT_S) as limit:
                await self._start(record, limit.when() or 0.0)
        except (DSecError, TimeoutError) as error:
            _log.warning("a create could not be finished", sandbox_id=record.id, error=str(error))
            await self.undo(record)

    async def _failed(self, attempt: Attempt, error: DSecError) -> DSecError:
        """Leave nothing of a failed attempt; remember the error where the contract says so."""
        core = self._core
        record = core.live.get(attempt.sandbox_id)
        error.sandbox_id = error.sandbox_id or (record.id if record is not None else None)
        if record is not None:
            await self.undo(record)
        else:
            core.release(attempt.sandbox_id)
            name = attempt.project, attempt.request.name or ""
            if core.names.get(name) == attempt.sandbox_id:
                del core.names[name]
        # Of a job, another holder may be asking by the same key: what kept this one from it is not the key's.
        remembered = not (error.retryable or error.phase == "job" or isinstance(error, DeadlineExceeded | Cancelled))
        if remembered:
            key = attempt.request.key
            core.records.refuse_create(attempt.project, key, attempt.body, error.to_wire(), core.clock())
        return error

    async def undo(self, record: SandboxRecord) -> None:
        """Make sure that nothing of a sandbox is left, then drop its record. Repeats until the runtime answers."""
        core = self._core
        while True:
            try:
                await core.backend.stop(record.id, cause="stopped", actor="edge", grace_ms=0)
                await core.backend.forget([record.id])
                await core.backend.remove_output([record.id])
            except NotFound:
                pass
            except DSecError as error:
                if error.retryable:
                    with contextlib.suppress(NodeError):
                        await core.link.wait_up(_ATTEMPT_S)
                    await asyncio.sleep(_UNDO_AGAIN_S)
                    continue
                # Its lifetime, which the runtime keeps, ends what may be left.
                core.counters["refused", "undo"] += 1
                _log.error("a failed create could not be undone", sandbox_id=record.id, error=error.message)
            break
        core.records.undo(record)
        core.drop(record)

    # Cancelling by key

    async def cancel(self, key: str, actor: str) -> SandboxRecord | None:
        """Cancel a create: queued it leaves, made its sandbox is stopped; else the cancellation is remembered."""
        core = self._core
        ids.check_key(key)
        project = calling().home
        attempt = self.under_way.get((project, key))
        known = core.records.create(project, key)
        core.records.cancel_create(project, key, core.clock())
        if attempt is not None:
            attempt.give_up(Cancelled("the create with this key was cancelled"))
            await asyncio.wait({attempt.done})
            known = core.records.create(project, key)
        record = core.live.get((known.sandbox_id if known is not None else None) or "")
        if record is not None:
            await self._ends.stop(record, actor=actor, grace_ms=0)
        return record


def _main_record(record: SandboxRecord, body: bytes) -> ExecRecord | None:
    if record.command is None or record.main_exec_id is None:
        return None
    return ExecRecord(
        sandbox_id=record.id,
        exec_id=record.main_exec_id,
        body=body,
        argv=shortened([each.encode(errors="surrogateescape") for each in record.command]),
        started_at=record.story[0].at,
        is_main=True,
        stdin=record.stdin or record.pty is not None,
        pty=record.pty is not None,
    )
