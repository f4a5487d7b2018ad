"""Containers: the contract over ``runtime.sock``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal

import msgspec

from dsec.backends.contract import (
    DiskRemoved,
    Event,
    ExecEnded,
    Fingerprint,
    JobLost,
    SandboxEnded,
    SandboxPaused,
    SandboxResumed,
    SnapshotRemoved,
)
from dsec.backends.link import RuntimeLink, Stream
from dsec.backends.wire import (
    ExecEnd,
    ExecState,
    Feature,
    Frozen,
    Hello,
    KeptDisk,
    NodeStats,
    SandboxEnd,
    SandboxFound,
    SandboxSpec,
    SandboxStarted,
    SandboxUse,
    SnapshotState,
    answer,
)
from dsec.errors import ProtocolError

__all__ = ["ContainerBackend"]

_VERSION = 1
_NEEDED = frozenset(
    {
        "cgroups",
        "id-mapped mounts",
        "overlay on detached mounts",
        "network namespaces",
        "EROFS from files",
        "btrfs simple quota",
        "mkfs.btrfs",
        "seccomp filter",
    }
)
"""What the runtime probes and containers cannot do without until there are fallbacks."""
_STOP_TIMEOUT_S = 60.0
_PROBE_TIMEOUT_S = 60.0
_SNAPSHOT_TIMEOUT_S = 120.0
"""Writing out gigabytes takes its time; the sandbox runs meanwhile."""


class ContainerBackend:
    """Containers of this node, made by its runtime."""

    def __init__(self, link: RuntimeLink) -> None:
        self._link = link

    async def fingerprint(self) -> Fingerprint:
        """See the contract. Raises ProtocolError when the runtime speaks another version."""
        hello = answer(await self._link.call("hello", {"version": _VERSION}), Hello)
        if hello.version != _VERSION:
            raise ProtocolError(f"the runtime speaks version {hello.version}, the edge {_VERSION}")
        probed = await self._link.call("probe", {}, timeout_s=_PROBE_TIMEOUT_S)
        features = answer(probed.get("features", []), list[Feature])
        missing = [each for each in features if each.name in _NEEDED and not each.present]
        refusal = "; ".join(f"{each.name}: {each.detail} ({each.lost})" for each in missing)
        return Fingerprint(boot_id=hello.boot_id, features=features, refusal=refusal or None)

    async def start(self, spec: SandboxSpec, *, timeout_s: float) -> SandboxStarted:
        """See the contract."""
        params = msgspec.structs.asdict(spec)
        params["main"] = None if spec.main is None else msgspec.structs.asdict(spec.main)
        params["endpoints"] = [msgspec.structs.asdict(each) for each in spec.endpoints]
        return answer(await self._link.call("sandbox.create", params, timeout_s=timeout_s), SandboxStarted)

    async def recover(self) -> list[SandboxFound]:
        """See the contract."""
        found = await self._link.call("sandbox.list", {})
        return answer(found["sandboxes"], list[SandboxFound])

    async def stop(
        self, sandbox_id: str, *, cause: str, actor: str, grace_ms: int, keep_ms: int | None = None
    ) -> SandboxEnd:
        """See the contract."""
        params = {
            "sandbox_id": sandbox_id,
            "cause": cause,
            "actor": actor,
            "grace_ms": grace_ms,
            "keep_ms": keep_ms,
        }
        timeout_s = _STOP_TIMEOUT_S + grace_ms / 1000
        return answer(await self._link.call("sandbox.stop", params, timeout_s=timeout_s), SandboxEnd)

    async def forget(self, sandbox_ids: Sequence[str]) -> None:
        """See the contract."""
        await self._link.call("sandbox.forget", {"sandbox_ids": list(sandbox_ids)})

    async def usage(self, sandbox_id: str) -> SandboxUse:
        """See the contract."""
        return answer(await self._link.call("sandbox.usage", {"sandbox_id": sandbox_id}), SandboxUse)

    async def execs(self, sandbox_id: str) -> list[ExecState]:
        """See the contract."""
        found = await self._link.call("exec.list", {"sandbox_id": sandbox_id})
        return [answer(_argv_as_bytes(each), ExecState) for each in found["execs"]]

    async def kill_exec(self, sandbox_id: str, exec_id: str, *, signal: int | None, grace_ms: int) -> None:
        """See the contract."""
        params = {
            "sandbox_id": sandbox_id,
            "exec_id": exec_id,
            "signal": signal,
            "grace_ms": grace_ms,
            "cause": "cancelled",
        }
        await self._link.call("exec.kill", params, timeout_s=_STOP_TIMEOUT_S + grace_ms / 1000)

    async def resize_exec(self, sandbox_id: str, exec_id: str, *, rows: int, cols: int) -> None:
        """See the contract."""
        size = {"rows": rows, "cols": cols}
        await self._link.call("exec.resize", {"sandbox_id": sandbox_id, "exec_id": exec_id, "size": size})

    async def ack_execs(self, exec_ids: Sequence[str]) -> None:
        """See the contract."""
        await self._link.call("exec.ack", {"exec_ids": list(exec_ids)})

    async def remove_output(self, sandbox_ids: Sequence[str]) -> None:
        """See the contract."""
        await self._link.call("output.remove", {"sandbox_ids": list(sandbox_ids)})

    async def stats(self) -> NodeStats:
        """See the contract."""
        return answer(await self._link.call("stats", {}), NodeStats)

    async def events(self) -> AsyncIterator[Event]:
        """See the contract."""
        stream = self._link.stream("events", {})
        try:
            while (frame := await stream.next()) is not None:
                event = _event(frame[2])
                if event is not None:
                    yield event
        finally:
            stream.close()

    async def freeze(self, sandbox_id: str, *, cause: str) -> Frozen:
        """See Pausable."""
        return answer(await self._link.call("sandbox.freeze", {"sandbox_id": sandbox_id, "cause": cause}), Frozen)

    async def thaw(self, sandbox_id: str) -> bool:
        """See Pausable."""
        return bool((await self._link.call("sandbox.thaw", {"sandbox_id": sandbox_id}))["resumed"])

    async def lease(self, job: str, *, fence: int, lease_ms: int, on_lost: Literal["stop", "pause"]) -> None:
        """See Leasing."""
        params = {"job": job, "fence": fence, "lease_ms": lease_ms, "on_lost": on_lost}
        await self._link.call("job.lease", params)

    async def end_job(self, job: str) -> None:
        """See Leasing."""
        await self._link.call("job.end", {"job": job})

    async def disks(self) -> list[KeptDisk]:
        """See DiskKeeping."""
        return answer((await self._link.call("disk.list", {}))["disks"], list[KeptDisk])

    async def remove_disks(self, sandbox_ids: Sequence[str]) -> None:
        """See DiskKeeping."""
        await self._link.call("disk.remove", {"sandbox_ids": list(sandbox_ids)})

    async def snapshot(self, snapshot_id: str, sandbox_id: str, *, keep_ms: int) -> SnapshotState:
        """See Snapshotting."""
        params = {"snapshot_id": snapshot_id, "sandbox_id": sandbox_id, "keep_ms": keep_ms}
        return answer(await self._link.call("snapshot.make", params, timeout_s=_SNAPSHOT_TIMEOUT_S), SnapshotState)

    async def snapshots(self) -> list[SnapshotState]:
        """See Snapshotting."""
        return answer((await self._link.call("snapshot.list", {}))["snapshots"], list[SnapshotState])

    async def remove_snapshots(self, snapshot_ids: Sequence[str]) -> None:
        """See Snapshotting."""
        await self._link.call("snapshot.remove", {"snapshot_ids": list(snapshot_ids)})

    def stream(self, method: str, params: dict[str, Any]) -> Stream:
        """See the contract."""
        return self._link.stream(method, params)

    async def call(self, method: str, params: dict[str, Any]) -> Any:
        """See the contract."""
        return await self._link.call(method, params)


_PLAIN: dict[str, type[SandboxPaused | SandboxResumed | JobLost | DiskRemoved | SnapshotRemoved]] = {
    "sandbox.paused": SandboxPaused,
    "sandbox.resumed": SandboxResumed,
    "job.lost": JobLost,
    "disk.removed": DiskRemoved,
    "snapshot.removed": SnapshotRemoved,
}


def _event(raw: dict[str, Any]) -> Event | None:
    kind = raw.get("type")
    if kind == "sandbox.ended":
        return SandboxEnded(answer(raw.get("end"), SandboxEnd))
    if kind == "exec.ended":
        return ExecEnded(str(raw.get("sandbox_id")), answer(raw.get("end"), ExecEnd))
    plain = _PLAIN.get(str(kind))
    return None if plain is None else answer(raw, plain)


def _argv_as_bytes(raw: dict[str, Any]) -> dict[str, Any]:
    argv = [each.encode(errors="surrogateescape") if isinstance(each, str) else each for each in raw.get("argv", [])]
    return raw | {"argv": argv}
