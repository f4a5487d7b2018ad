"""What the edge asks of a kind of sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

import msgspec

from dsec.backends.wire import (
    ExecEnd,
    ExecState,
    Feature,
    NodeStats,
    SandboxEnd,
    SandboxFound,
    SandboxSpec,
    SandboxStarted,
    SandboxUse,
)

__all__ = ["Backend", "ExecEnded", "Fingerprint", "SandboxEnded"]


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


class Backend(Protocol):
    """Starts, finds again and ends sandboxes of one kind. All but ``events`` are safe to repeat.

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

    async def stop(self, sandbox_id: str, *, cause: str, actor: str, grace_ms: int) -> SandboxEnd:
        """End a sandbox and confirm it; raises NotFound for one that never was or is forgotten."""
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

    async def ack_execs(self, exec_ids: Sequence[str]) -> None:
        """The results of these are committed."""
        ...

    async def remove_output(self, sandbox_ids: Sequence[str]) -> None:
        """Delete what is kept of ended sandboxes."""
        ...

    async def stats(self) -> NodeStats:
        """The node's counts."""
        ...

    def events(self) -> AsyncIterator[SandboxEnded | ExecEnded]:
        """Ends as they happen, from the call on; raises NodeError when the connection breaks."""
        ...

    async def call(self, method: str, params: dict[str, Any]) -> Any:
        """A request particular to the kind (tools, layers)."""
        ...
