"""What the parts of the edge share: live sandboxes, records, the queue, and how a transition is made known."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import structlog

from dsec.api.access import EVERY_PROJECT
from dsec.api.types import SandboxState, StoryEntry
from dsec.backends.contract import Backend
from dsec.backends.link import RuntimeLink
from dsec.backends.wire import Feature, NodeStats, SandboxEnd
from dsec.edge import life
from dsec.edge.admission import Admission, Need, Ticket
from dsec.edge.batch import Batch
from dsec.edge.caller import Caller, calling
from dsec.edge.capacity import Machine, capacity_of
from dsec.edge.catalogue import Catalogue
from dsec.edge.faults import fault
from dsec.edge.job_record import JobRecord
from dsec.edge.layer_users import LayerUsers
from dsec.edge.record import SandboxRecord
from dsec.edge.records import Records
from dsec.edge.snapshot_record import SnapshotRecord
from dsec.errors import DSecError, NotFound, OutcomeUnknown, SandboxGone
from dsec.images import Images
from dsec.node.config import NodeConfig

__all__ = ["Core", "gone"]

_LEAST_PENDING = 1 << 20
_log = structlog.get_logger("dsec.edge")


class Core:
    """The edge's state. Every method is synchronous: a transition is whole or has not happened."""

    def __init__(
        self,
        config: NodeConfig,
        backend: Backend,
        link: RuntimeLink,
        images: Images,
        clock: Callable[[], float],
        machine: Machine,
    ) -> None:
        self.config = config
        self.backend = backend
        self.link = link
        self.images = images
        self.clock = clock
        self.machine = machine
        self.boot_id = config.boot_id
        self._draining = str(config.paths.draining)
        self.records = Records(config.paths.node_db)
        self.catalogue = Catalogue(config.paths.catalogue_db)
        self.stats = NodeStats()
        self.features: list[Feature] = []
        self.refusal: str | None = None
        self.admission = Admission(capacity_of(config, machine, self.stats))
        self.live: dict[str, SandboxRecord] = {}
        self.kept: dict[str, SandboxRecord] = {}
        """Ended sandboxes whose disk is kept."""
        self.snapshots: dict[str, SnapshotRecord] = {}
        """Those that are kept, or about to be taken."""
        self.names: dict[tuple[str, str], str] = {}
        """Project and name of those that live or are being made → ID."""
        self.counters: Counter[tuple[str, str]] = Counter()
        self.acks = Batch(self._ack, delay_s=0.02, on_refused=self._refused("exec.ack"))
        self.forgets = Batch(self._forget, delay_s=0.02, on_refused=self._refused("sandbox.forget"))
        self.past: list[SandboxRecord] = []
        self.starting: Counter[str] = Counter()
        """Execs that a client's stream asks the runtime to start: unknown there, they may be on their way."""
        self._layer_users = LayerUsers()
        self.layers_used: dict[str, float] = {}
        """When layers were used last, as far as it is not written down."""
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._watchers: dict[str, list[Callable[[StoryEntry | None], None]]] = {}

    async def _ack(self, exec_ids: list[str]) -> None:
        await self.backend.ack_execs(exec_ids)
        fault("edge.exec.acked")

    async def _forget(self, sandbox_ids: list[str]) -> None:
        await self.backend.forget(sandbox_ids)
        fault("edge.stop.forgotten")

    def _refused(self, what: str) -> Callable[[list[str], DSecError], None]:
        def note(ids: list[str], error: DSecError) -> None:
            self.counters["refused", what] += len(ids)
            _log.warning("refused by the runtime", what=what, count=len(ids), error=error.message)

        return note

    @property
    def draining(self) -> bool:
        """Whether ``dsec down`` admits no more creates."""
        return os.path.exists(self._draining)  # noqa: PTH110  (for each create; a Path costs ten times as much)

    # Admission

    async def admitted(self, ticket: Ticket) -> None:
        """Return once the ticket is admitted; cancelled, it leaves the queue."""
        if self.admission.ask(ticket):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[ticket.id] = turn
        try:
            await turn
        except asyncio.CancelledError:
            self._waiting.pop(ticket.id, None)
            self.wake(self.admission.leave(ticket.id))
            # The turn may have come at the moment of the cancellation.
            self.release(ticket.id)
            raise

    def wake(self, tickets: list[Ticket]) -> None:
        """Let those go on whose turn has come."""
        for ticket in tickets:
            turn = self._waiting.pop(ticket.id, None)
            if turn is None or turn.done():
                self.release(ticket.id)
            else:
                turn.set_result(None)

    def release(self, sandbox_id: str) -> None:
        """Give back what a sandbox held."""
        self._used(self._layer_users.drop(sandbox_id))
        self.wake(self.admission.release(sandbox_id))

    def limit(self, job: JobRecord) -> None:
        """A job's most live sandboxes, while it has not ended."""
        most = job.max_live if job.ended_at is None else None
        self.wake(self.admission.limit((job.project, job.group), most))

    def measured(self, stats: NodeStats) -> None:
        """The runtime's counts have come."""
        self.stats = stats
        capacity = capacity_of(self.config, self.machine, stats)
        self.wake(self.admission.resize(capacity, stats.pool_pending_bytes))

    # Sandboxes

    def hold_layers(self, sandbox_id: str, layers: list[str]) -> None:
        """These layers are needed from now on, until the sandbox is dropped."""
        self._layer_users.hold(sandbox_id, layers)
        self._used(layers)

    def _used(self, layers: Iterable[str]) -> None:
        self.layers_used.update(dict.fromkeys(layers, self.clock()))

    def uses_layer(self, digest: str) -> bool:
        """Whether a sandbox that lives or is being made needs the layer."""
        return digest in self._layer_users

    def users_of(self, digest: str) -> list[str]:
        """The caller's sandboxes, kept disks and snapshots that need the layer, by ID."""
        caller = calling()
        users = sorted(each.rpartition(":")[2] for each in self._layer_users.of(digest))
        return [each for each in users if caller.project == EVERY_PROJECT or caller.sees(self._project_of(each))]

    def _project_of(self, user: str) -> str:
        """Whose a sandbox, a kept disk or a snapshot is; nobody's while it is being made."""
        snapshot = self.snapshots.get(user)
        record = self.live.get(user) or self.kept.get(user) or (None if snapshot is None else snapshot.source)
        return "" if record is None else record.project

    def find(self, id_or_name: str) -> SandboxRecord:
        """A sandbox of the caller's by ID or name, live or ended; raises NotFound (saying how it ended, where known).

        Another project's is not found either: that it exists is not the caller's to know.
        """
        caller = calling()
        record = self.live.get(id_or_name) or self.records.sandbox(id_or_name)
        if record is None:
            record = self._named(caller, id_or_name)
        if record is not None and caller.sees(record.project):
            return record
        past = self.catalogue.find(id_or_name) if record is None else None
        if past is not None and caller.sees(past.project):
            raise NotFound(
                f"the sandbox ended ({past.cause}) and its tombstone is gone", sandbox_id=past.id, cause=past.cause
            )
        raise NotFound(f"no sandbox {id_or_name[:80]!r} on this node", remedy="`dsec ps -a` lists them")

    def _named(self, caller: Caller, name: str) -> SandboxRecord | None:
        """By name: in the caller's own project first."""
        projects = [caller.home]
        if caller.project == EVERY_PROJECT:
            projects += self.records.projects_with(name)
        live = [self.live.get(self.names.get((project, name), "")) for project in projects]
        found = next((each for each in live if each is not None), None)
        if found is None:
            ended = (self.records.named(project, name) for project in projects)
            found = next((each for each in ended if each is not None), None)
        return found

    def running(self, id_or_name: str) -> SandboxRecord:
        """A sandbox that runs; raises NotFound, or SandboxGone with its cause."""
        record = self.find(id_or_name)
        if record.state is SandboxState.CREATING:
            raise NotFound("the sandbox is still being made", sandbox_id=record.id)
        if not record.is_live:
            raise gone(record)
        return record

    def add(self, record: SandboxRecord) -> None:
        """A sandbox lives (or is to be made): count it and its name."""
        self.live[record.id] = record
        self.hold_layers(record.id, record.layers)
        self.admission.hold(record.id, record.demand.need, record.whose)
        if record.name is not None:
            self.names[record.project, record.name] = record.id

    def drop(self, record: SandboxRecord) -> None:
        """A sandbox does not live any more: give its name and its share back."""
        self.live.pop(record.id, None)
        if record.name is not None and self.names.get((record.project, record.name)) == record.id:
            del self.names[record.project, record.name]
        self.release(record.id)

    def note_started(self, record: SandboxRecord, at: float, phases_us: dict[str, int]) -> None:
        """Commit that a sandbox runs; harmless when repeated."""
        if record.started(at, phases_us):
            self.records.save(record)
            if record.is_live:
                self._tell(record)

    def note_moved(
        self, record: SandboxRecord, then: SandboxState, *, at: float, cause: str, actor: str, detail: str = ""
    ) -> None:
        """Commit that a sandbox was paused or resumed; harmless when repeated."""
        if record.moved(then, at=at, cause=cause, actor=actor, detail=detail):
            self.records.save(record)
            self._tell(record)

    def note_ended(self, record: SandboxRecord, end: SandboxEnd, *, actor: str, detail: str = "") -> None:
        """Commit the end of a sandbox, then let the runtime forget it; harmless when repeated."""
        if record.ended(end, actor=actor, detail=detail):
            self._end_execs(record)
            fault("edge.stop.execs_ended")
            self.records.save(record)
            fault("edge.stop.committed")
            self.past.append(record)
            self.counters["ended", end.cause] += 1
            pending = end.usage.disk_bytes or 0
            if record.kept_until is not None:
                self.hold_disk(record)
            elif pending >= _LEAST_PENDING:
                self.admission.pending_disk_bytes += pending
            self.drop(record)
            self._tell(record)
            self._tell_over(record.id)
        self.forgets.add([record.id])

    def hold_disk(self, record: SandboxRecord) -> None:
        """Count a disk that is kept, by what was measured, and the layers below it. Counted once."""
        used = record.use.disk_bytes if record.use is not None else 0
        self.kept[record.id] = record
        self.hold_layers(_disk(record.id), record.layers)
        self.admission.hold(_disk(record.id), Need(disk_bytes=used))

    def note_disk_removed(self, sandbox_id: str) -> None:
        """Commit that a disk is kept no more; harmless when repeated."""
        record = self.kept.pop(sandbox_id, None) or self.records.sandbox(sandbox_id)
        if record is not None and record.kept_until is not None:
            record.kept_until, record.used_to_keep = None, True
            self.records.save(record)
            used = record.use.disk_bytes if record.use is not None else 0
            if used >= _LEAST_PENDING:
                self.admission.pending_disk_bytes += used
        self.release(_disk(sandbox_id))

    def hold_snapshot(self, record: SnapshotRecord) -> None:
        """Keep the layers below a snapshot, and count what it holds once that is known. Counted once."""
        own = _snapshot(record.id)
        self.snapshots[record.id] = record
        self.hold_layers(own, record.source.layers)
        if record.found is not None:
            self.admission.hold(own, Need(disk_bytes=record.found.bytes))

    def save_snapshot(self, record: SnapshotRecord) -> None:
        """Commit that a snapshot was taken; harmless when repeated."""
        self.records.snapshots.save(record)
        self.hold_snapshot(record)

    def drop_snapshot(self, record: SnapshotRecord) -> None:
        """A snapshot was not taken: as if it had not been asked for."""
        self.records.snapshots.drop(record.id)
        self.snapshots.pop(record.id, None)
        self.release(_snapshot(record.id))

    def note_snapshot_removed(self, snapshot_id: str) -> None:
        """Commit that a snapshot is kept no more; harmless when repeated. What it held is then the sandbox's."""
        record = self.snapshots.pop(snapshot_id, None)
        if record is not None:
            record.removed_at = self.clock()
            self.records.snapshots.save(record)
        self.release(_snapshot(snapshot_id))

    def note_lost(self, record: SandboxRecord, cause: str, detail: str) -> None:
        """Commit that the node lost a sandbox."""
        end = SandboxEnd(sandbox_id=record.id, cause=cause, ended_at=self.clock())
        self.note_ended(record, end, actor="edge", detail=detail)

    def _end_execs(self, record: SandboxRecord) -> None:
        lost = life.ended_state(record.cause or "lost") is SandboxState.LOST
        for each in self.records.execs(record.id, unended=True):
            error: DSecError = gone(record)
            if lost:
                error = OutcomeUnknown(
                    f"the node lost the sandbox ({record.cause}) while the exec ran",
                    sandbox_id=record.id,
                    exec_id=each.exec_id,
                    cause=record.cause,
                )
            self.records.end_exec(record.id, each.exec_id, error=error.to_wire())
        for run_id in self.records.runs.without_outcome(record.id):
            error = gone(record)
            if lost:
                error = OutcomeUnknown(
                    f"the node lost the sandbox ({record.cause}) while the run was under way",
                    sandbox_id=record.id,
                    exec_id=run_id,
                    cause=record.cause,
                )
            self.records.runs.end(record.id, run_id, error=error.to_wire())

    # Watching a story

    @contextlib.contextmanager
    def watching(self, sandbox_id: str, tell: Callable[[StoryEntry | None], None]) -> Iterator[None]:
        """Call ``tell`` for each new entry of a story, and with None after its last."""
        self._watchers.setdefault(sandbox_id, []).append(tell)
        try:
            yield
        finally:
            left = self._watchers.get(sandbox_id, [])
            if tell in left:
                left.remove(tell)
            if not left:
                self._watchers.pop(sandbox_id, None)

    async def until_over(self, record: SandboxRecord, timeout_s: float) -> None:
        """Return when the end of a sandbox is committed, or after this long."""
        over = asyncio.Event()
        with self.watching(record.id, lambda entry: over.set() if entry is None else None):
            if record.is_live:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(timeout_s):
                        await over.wait()

    def _tell(self, record: SandboxRecord) -> None:
        for tell in self._watchers.get(record.id, ()):
            tell(record.story[-1])

    def _tell_over(self, sandbox_id: str) -> None:
        for tell in self._watchers.get(sandbox_id, ()):
            tell(None)


def _disk(sandbox_id: str) -> str:
    """Under what a kept disk is counted."""
    return f"disk:{sandbox_id}"


def _snapshot(snapshot_id: str) -> str:
    """Under what a snapshot is counted."""
    return f"snapshot:{snapshot_id}"


def gone(record: SandboxRecord) -> SandboxGone:
    """The error of whoever wants something of an ended sandbox."""
    cause = record.cause or "lost"
    lost = life.ended_state(cause) is SandboxState.LOST
    return SandboxGone(
        f"the sandbox has ended: {cause}",
        sandbox_id=record.id,
        cause="lost" if lost else cause,
        reason=cause,
        exit_code=record.exit_code,
    )
