"""What the edge asks of a kind of sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from dsec.backends.wire import (
    ExecEnd,
    ExecState,
    Feature,
    Frozen,
    KeptDisk,
    NodeStats,
    SandboxEnd,
    SandboxFound,
    SandboxSpec,
    SandboxStarted,
    SandboxUse,
    SnapshotState,
)

__all__ = [
    "Backend",
    "DiskKeeping",
    "DiskRemoved",
    "Event",
    "ExecEnded",
    "Fingerprint",
    "FrameStream",
    "JobLost",
    "Leasing",
    "Pausable",
    "SandboxEnded",
    "SandboxPaused",
    "SandboxResumed",
    "SnapshotRemoved",
    "Snapshotting",
]


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """What this node can do of the kind: features, and why creates are refused (None: they are not)."""

    boot_id: str
    features: list[Feature]
    refusal: str | None = None


class SandboxEnded(msgspec.Struct, frozen=True):
    """A sandbox ended, by whatever cause."""

    end: SandboxEnd


class ExecEnded(msgspec.Struct, frozen=True):
    """An exec ended."""

    sandbox_id: str
    end: ExecEnd


class SandboxPaused(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox stands still."""

    sandbox_id: str
    at: float
    cause: str
    whole: bool = True


class SandboxResumed(msgspec.Struct, frozen=True, kw_only=True):
    """A paused sandbox runs again, because of a call or because something entered it."""

    sandbox_id: str
    at: float
    cause: str


class JobLost(msgspec.Struct, frozen=True, kw_only=True):
    """A lease was not renewed in time."""

    job: str
    fence: int
    at: float


class DiskRemoved(msgspec.Struct, frozen=True, kw_only=True):
    """A disk is kept no more."""

    sandbox_id: str


class SnapshotRemoved(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot is kept no more."""

    snapshot_id: str


Event = SandboxEnded | ExecEnded | SandboxPaused | SandboxResumed | JobLost | DiskRemoved | SnapshotRemoved


class FrameStream(Protocol):
    """One session or file operation, in frames as ``docs/protocols.md`` has them."""

    result: Any
    """What ``end`` said, once ``next`` has returned None."""

    async def next(self) -> list[Any] | None:
        """The next frame (data, until, item); None after ``end``; raises the stream's error."""
        ...

    def grant(self, channel: int, offset: int) -> None:
        """The other side may send up to this absolute offset."""
        ...

    async def data(self, channel: int, offset: int, data: bytes) -> None:
        """Send bytes of a channel; none end it."""
        ...

    def close(self) -> None:
        """No longer interested; ends nothing but the stream."""
        ...


class Backend(Protocol):
    """Starts, finds again and ends sandboxes of one kind. All but ``events`` are safe to repeat.

    The handle of a sandbox is its ID: ``recover`` finds by it what an edge before this one made. What a kind can do
    beyond this are Protocols of their own. ``dsec.testing.conformance`` checks an implementation.

    Every method raises NodeError (retryable) while the kind's process is away.
    """

    async def fingerprint(self) -> Fingerprint:
        """Probe the node."""
        ...

    async def start(self, spec: SandboxSpec, *, timeout_s: float) -> SandboxStarted:
        """Make a sandbox; one that exists under the ID is returned."""
        ...

    async def recover(self) -> list[SandboxFound]:
        """All sandboxes that live, and those that ended and were not forgotten."""
        ...

    async def stop(
        self, sandbox_id: str, *, cause: str, actor: str, grace_ms: int, keep_ms: int | None = None
    ) -> SandboxEnd:
        """End a sandbox and confirm it; raises NotFound for one that never was or is forgotten.

        ``keep_ms`` is only given to a kind that is DiskKeeping.
        """
        ...

    async def forget(self, sandbox_ids: Sequence[str]) -> None:
        """The ends of these are committed."""
        ...

    async def usage(self, sandbox_id: str) -> SandboxUse:
        """What a live sandbox uses."""
        ...

    async def execs(self, sandbox_id: str) -> list[ExecState]:
        """The execs of a live sandbox."""
        ...

    async def kill_exec(self, sandbox_id: str, exec_id: str, *, signal: int | None, grace_ms: int) -> None:
        """Signal an exec, or (``signal`` None) end it and confirm. An unknown ID is remembered."""
        ...

    async def resize_exec(self, sandbox_id: str, exec_id: str, *, rows: int, cols: int) -> None:
        """Give an exec's terminal another size."""
        ...

    async def ack_execs(self, exec_ids: Sequence[str]) -> None:
        """The results of these are committed."""
        ...

    async def remove_output(self, sandbox_ids: Sequence[str]) -> None:
        """Delete what is kept of ended sandboxes."""
        ...

    async def stats(self) -> NodeStats:
        """The node's counts."""
        ...

    def events(self) -> AsyncIterator[Event]:
        """What happens as it happens, from the call on; raises NodeError when the connection breaks."""
        ...

    def stream(self, method: str, params: dict[str, Any]) -> FrameStream:
        """Open ``exec.start``, ``exec.attach``, ``output.tail``, ``file.read`` or ``file.write``.

        An ``exec.start`` whose ID is known starts nothing: it is an attachment from offset 0.
        """
        ...

    async def call(self, method: str, params: dict[str, Any]) -> Any:
        """A request particular to the kind (tools, layers)."""
        ...


@runtime_checkable
class Pausable(Protocol):
    """A kind whose sandboxes can stand still. What enters a paused one resumes it."""

    async def freeze(self, sandbox_id: str, *, cause: str) -> Frozen:
        """Let every process stand still; those that cannot within the bound do as soon as they can."""
        ...

    async def thaw(self, sandbox_id: str) -> bool:
        """Let it go on; whether it was paused."""
        ...


@runtime_checkable
class Leasing(Protocol):
    """A kind that ends (or pauses) the sandboxes of a job whose lease is over, whatever else is dead."""

    async def lease(self, job: str, *, fence: int, lease_ms: int, on_lost: Literal["stop", "pause"]) -> None:
        """The lease lasts from now on for so long; raises Fenced when a newer holder is known."""
        ...

    async def end_job(self, job: str) -> None:
        """No lease any more; raises Conflict while a sandbox of the job lives."""
        ...


@runtime_checkable
class DiskKeeping(Protocol):
    """A kind that can keep what an ended sandbox wrote, and begin another with a copy of it."""

    async def disks(self) -> list[KeptDisk]:
        """All that are kept."""
        ...

    async def remove_disks(self, sandbox_ids: Sequence[str]) -> None:
        """Keep these no more. Harmless for those that are not kept."""
        ...


@runtime_checkable
class Snapshotting(Protocol):
    """A kind that can keep what a live sandbox has written, as it is at one moment, and begin others with copies."""

    async def snapshot(self, snapshot_id: str, sandbox_id: str, *, keep_ms: int) -> SnapshotState:
        """Take one; one that exists under the ID is returned. Raises NotFound, SandboxGone, CapacityError."""
        ...

    async def snapshots(self) -> list[SnapshotState]:
        """All that are kept."""
        ...

    async def remove_snapshots(self, snapshot_ids: Sequence[str]) -> None:
        """Keep these no more, confirmed. Harmless for those that are not kept."""
        ...
