"""Snapshots of sandboxes: requests and answers of ``/v1``."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

__all__ = ["SnapshotInfo", "SnapshotRequest"]


class SnapshotRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a sandbox has written is kept as it is now, for ``keep_s``. Idempotent by ``key``."""

    key: str
    keep_s: float = 3600.0
    memory: bool = False


class SnapshotInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of a sandbox's disk."""

    id: str
    sandbox_id: str
    node: str
    state: Literal["made", "removed"]
    made_at: float
    kept_until: float
    """Unix time at which it goes by itself."""
    size_bytes: int
    """What the sandbox had written."""
    frozen_s: float
    """How long the sandbox stood still for it; 0 for one that was paused."""
    partial: bool
    """Not every process could be made to stand still (one waited for the kernel)."""
    by: str
    image: str
    layers: list[str]
    args: dict[str, Any] = {}
    """Fields of SandboxArgs that make a sandbox like the one it is of, beginning with the snapshot."""
