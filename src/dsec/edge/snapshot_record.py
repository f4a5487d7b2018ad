"""What the edge remembers of a snapshot, and how that reads. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from dsec.api.snapshots import SnapshotInfo
from dsec.backends.wire import EndpointSpec, SnapshotState
from dsec.edge.record import SandboxRecord

__all__ = ["SnapshotRecord", "args_like", "snapshot_info"]

_MIB = 1 << 20


class SnapshotRecord(msgspec.Struct, kw_only=True):
    """A snapshot, from the intent to take it until a day after it is gone."""

    id: str
    by: str
    source: SandboxRecord
    """The sandbox as it was then."""
    asked_at: float
    found: SnapshotState | None = None
    """What the runtime says of it; None before it is taken."""
    removed_at: float | None = None

    @property
    def is_kept(self) -> bool:
        """Whether it is there."""
        return self.found is not None and self.removed_at is None


def snapshot_info(record: SnapshotRecord, found: SnapshotState) -> SnapshotInfo:
    """The API's form."""
    return SnapshotInfo(
        id=record.id,
        sandbox_id=record.source.id,
        node=record.source.node,
        state="made" if record.removed_at is None else "removed",
        made_at=found.made_at,
        kept_until=found.kept_until,
        size_bytes=found.bytes,
        frozen_s=found.frozen_ns / 1e9,
        partial=not found.whole,
        by=record.by,
        image=record.source.image,
        layers=record.source.layers,
        args=args_like(record.source) | {"from_snapshot": record.id},
    )


def args_like(record: SandboxRecord) -> dict[str, Any]:
    """Fields of SandboxArgs: the same limits, variables, ways out and isolation; no name, and no main process."""
    demand = record.demand
    return {
        "image": record.image,
        "cpu": (demand.need.cpu_milli / 1000, demand.cpu_milli / 1000),
        "memory_mib": (demand.need.memory_bytes / _MIB, demand.memory_bytes / _MIB),
        "disk_mib": (demand.need.disk_bytes / _MIB, demand.disk_bytes / _MIB),
        "pids": (demand.need.pids, demand.pids),
        "shm_mib": record.shm_bytes / _MIB,
        "env": record.own_env,
        "workdir": record.workdir,
        "user": record.user,
        "idle_timeout_s": record.idle_timeout_s,
        "lifetime_s": record.lifetime_s,
        "exec_timeout_s": record.exec_timeout_s,
        "labels": record.labels,
        "endpoints": {each.name: _endpoint(each) for each in record.endpoints},
        "network": "none" if record.network is None else msgspec.to_builtins(record.network),
        "profile": record.profile,
        "protected": record.protected,
    }


def _endpoint(spec: EndpointSpec) -> dict[str, Any]:
    host = f"[{spec.host}]" if ":" in spec.host else spec.host
    return {
        "url": f"{'https' if spec.tls else 'http'}://{host}:{spec.port}{spec.path}",
        "max_connections": spec.max_connections,
        "max_bytes": spec.max_bytes,
        "max_requests_per_minute": spec.max_requests_per_minute,
    }
