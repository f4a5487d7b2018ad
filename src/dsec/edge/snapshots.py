"""Snapshots of what live sandboxes have written: taken, counted, begun from, removed."""

from __future__ import annotations

import msgspec

from dsec.api import ids
from dsec.api.snapshots import SnapshotInfo, SnapshotRequest
from dsec.api.types import CreateRequest
from dsec.backends.contract import Snapshotting
from dsec.edge.admission import Need
from dsec.edge.caller import calling
from dsec.edge.core import Core
from dsec.edge.environment import Environment
from dsec.edge.faults import fault
from dsec.edge.kept import environment_on
from dsec.edge.record import SandboxRecord
from dsec.edge.snapshot_record import SnapshotRecord, snapshot_info
from dsec.edge.specs import whole_ms
from dsec.errors import CapacityError, DSecError, InvalidArgument, NodeError, NotFound, Unsupported

__all__ = ["Snapshots"]


class Snapshots:
    """All of the node. The runtime takes them, and its timers remove them."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._asked: set[str] = set()
        """Those that the runtime is being asked for."""

    @property
    def _backend(self) -> Snapshotting:
        backend = self._core.backend
        if not isinstance(backend, Snapshotting):
            raise Unsupported("of this kind of sandbox no snapshots are taken")
        return backend

    def adopt(self) -> None:
        """What this boot's records say is there counts again."""
        for record in self._core.records.snapshots.all():
            if record.removed_at is None:
                self._core.hold_snapshot(record)

    async def compare(self) -> None:
        """Bring records and runtime together after a time in which nobody listened."""
        records = self._core.records.snapshots
        recorded = {each.id: each for each in records.all() if each.removed_at is None}
        found = {each.snapshot_id: each for each in await self._backend.snapshots()}
        for snapshot_id, record in recorded.items():
            state = found.get(snapshot_id)
            if record.found is not None and state is None:
                self._core.note_snapshot_removed(snapshot_id)
            elif record.found is None and state is not None:
                record.found = state
                self._core.save_snapshot(record)
            elif record.found is None and snapshot_id not in self._asked:
                again = records.get(snapshot_id)
                if again is not None and again.found is None:
                    self._core.drop_snapshot(record)  # it was never taken
        unknown = [each for each in found if records.get(each) is None]
        if unknown:
            await self._backend.remove_snapshots(unknown)

    async def make(self, record: SandboxRecord, asked: SnapshotRequest, by: str) -> SnapshotRecord:
        """Take one, or find the one of this key, which may be removed by now.

        Raises SandboxGone, NotFound while it is being made, InvalidArgument, Unsupported, CapacityError, NodeError.
        """
        self._check(asked)
        own = ids.snapshot_id(record.id, ids.check_key(asked.key))
        return await self.take(own, record, keep_s=asked.keep_s, by=by)

    async def take(self, own: str, record: SandboxRecord, *, keep_s: float, by: str) -> SnapshotRecord:
        """Likewise under an ID of its own."""
        known = self._core.records.snapshots.get(own)
        if known is not None and known.found is not None:
            return known
        self._core.running(record.id)
        await self._check_room(record)
        snapshot = known or SnapshotRecord(
            id=own, by=by, source=msgspec.structs.replace(record), asked_at=self._core.clock()
        )
        # The layers below it stay, from now on.
        self._core.hold_snapshot(snapshot)
        self._core.records.snapshots.save(snapshot)
        fault("edge.snapshot.intended")
        reconnects = self._core.link.reconnects
        self._asked.add(own)
        try:
            found = await self._backend.snapshot(own, record.id, keep_ms=whole_ms(keep_s))
        except DSecError as error:
            same_link = self._core.link.connected and self._core.link.reconnects == reconnects
            if same_link or not isinstance(error, NodeError):
                self._core.drop_snapshot(snapshot)
            # Else it may have been taken: the next comparison, or the next try, finds out.
            raise
        finally:
            self._asked.discard(own)
        fault("edge.snapshot.made")
        snapshot.found = found
        self._core.save_snapshot(snapshot)
        fault("edge.snapshot.committed")
        return snapshot

    def _check(self, asked: SnapshotRequest) -> None:
        most = self._core.config.tombstone_s
        if asked.memory:
            raise Unsupported("memory=True: snapshots are of the disk")
        if not 0 < asked.keep_s <= most:
            raise InvalidArgument(f"keep_s must be above 0 and at most {most:g}, not {asked.keep_s:g}")

    async def _check_room(self, record: SandboxRecord) -> None:
        used = (await self._core.backend.usage(record.id)).disk_bytes
        if Need(disk_bytes=used).beyond(self._core.admission.room) is not None:
            raise CapacityError(
                f"the pool has no room to keep {used} bytes",
                phase="snapshot",
                sandbox_id=record.id,
                retry_after_s=1.0,
                remedy="Remove snapshots, stop sandboxes, or give the node a larger pool",
            )

    def list(self) -> list[SnapshotInfo]:
        """The caller's that are kept, the oldest first."""
        caller = calling()
        kept = [each for each in self._core.snapshots.values() if each.is_kept and caller.sees(each.source.project)]
        return [self.info(each) for each in sorted(kept, key=lambda each: each.asked_at)]

    def find(self, snapshot_id: str) -> SnapshotRecord:
        """One of the caller's that is kept, or was in the last day; raises NotFound."""
        record = self._core.records.snapshots.get(snapshot_id)
        if record is None or record.found is None or not calling().sees(record.source.project):
            raise NotFound(f"no snapshot {snapshot_id[:80]!r} on this node", remedy="`dsec snapshot ls` lists them")
        return record

    def info(self, record: SnapshotRecord) -> SnapshotInfo:
        """The API's form of one that was taken."""
        assert record.found is not None
        return snapshot_info(record, record.found)

    async def remove(self, snapshot_id: str) -> None:
        """Keep it no more, confirmed. Harmless for one that is gone already."""
        await self._backend.remove_snapshots([snapshot_id])
        fault("edge.unsnap.removed")
        self._core.note_snapshot_removed(snapshot_id)
        fault("edge.unsnap.committed")

    def environment(self, request: CreateRequest) -> Environment:
        """What a sandbox that begins with a snapshot is made of; raises NotFound, InvalidArgument."""
        record = self._core.snapshots.get(request.from_snapshot or "")
        if record is None or not record.is_kept or not calling().sees(record.source.project):
            raise NotFound(
                f"there is no snapshot {(request.from_snapshot or '')[:80]}", phase="snapshot",
                remedy="sandbox.snapshot() takes one, for keep_s",
            )  # fmt: skip
        return environment_on(record.source, request)
