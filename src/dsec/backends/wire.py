"""What crosses ``runtime.sock``, as msgspec structs: ``docs/protocols.md`` has the list.

Answers ignore unknown fields, so that a newer runtime can say more.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from dsec.api.audit import AuditEvent
from dsec.errors import ProtocolError

__all__ = [
    "EgressCount",
    "AuditRecord",
    "EgressRecord",
    "EndpointCount",
    "EndpointSpec",
    "ExecEnd",
    "ExecSpec",
    "ExecState",
    "ExecUse",
    "Feature",
    "FileReport",
    "Frozen",
    "Hello",
    "KeptDisk",
    "SnapshotState",
    "LayerLoading",
    "Loading",
    "LoadingCounts",
    "NetUsage",
    "NodeStats",
    "Proof",
    "PtySize",
    "RunEnd",
    "SandboxEnd",
    "SandboxFound",
    "SandboxSpec",
    "SandboxStarted",
    "SandboxUse",
    "answer",
]

T = TypeVar("T")


class EndpointSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One way out, its URL in parts. ``path``: empty, or without a slash at its end."""

    name: str
    tls: bool
    host: str
    port: int
    path: str
    max_connections: int
    max_bytes: int | None = None
    max_requests_per_minute: int | None = None
    closed: bool = False


class PtySize(msgspec.Struct, frozen=True, kw_only=True):
    """Size of a terminal in characters."""

    rows: int
    cols: int


class ExecSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A complete request to run a program: the runtime adds nothing from memory."""

    exec_id: str
    sandbox_id: str
    argv: list[bytes]
    programs: list[bytes] | None
    env: list[bytes]
    cwd: bytes | None
    create_cwd: bool
    user: str
    timeout_ms: int | None
    grace_ms: int
    stdin: bool
    backpressure: bool
    max_output_bytes: int
    is_main: bool
    merge_stderr: bool = False
    pty: PtySize | None = None
    script: bytes | None = None
    """Given as descriptor 9, a sealed file to be read."""


class SandboxSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox to be made. ``layers``: digests, bottom first."""

    sandbox_id: str
    layers: list[str]
    memory_bytes: int
    cpu_milli: int
    pids: int
    disk_bytes: int
    shm_bytes: int
    hostname: str
    profile: str
    idle_timeout_ms: int
    lifetime_ms: int
    main: ExecSpec | None
    job: str | None = None
    from_disk: str | None = None
    from_snapshot: str | None = None
    endpoints: list[EndpointSpec] = []
    egress: dict[str, Any] | None = None
    """A compiled network policy, ``dsec.network.EgressTable``."""
    protected: list[str] = []
    """Paths that nobody inside can change."""


class EndpointCount(msgspec.Struct, frozen=True, kw_only=True):
    """What an endpoint has done."""

    requests: int = 0
    refused: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    connections: int = 0


class EgressCount(msgspec.Struct, frozen=True, kw_only=True):
    """What a sandbox's network has done."""

    connections: int = 0
    refused: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    names: int = 0
    names_refused: int = 0


class EgressRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What was counted, how many events there were in all, and the latest of them."""

    count: EgressCount = EgressCount()
    events: int = 0
    latest: list[AuditEvent] = []


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What else a sandbox tried and did not get: how many events there were in all, and the latest of them."""

    events: int = 0
    latest: list[AuditEvent] = []


class NetUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Connections to exposed ports, and the endpoints' counts in their order."""

    inbound: int = 0
    endpoints: list[EndpointCount] = []
    egress: EgressCount | None = None


class SandboxStarted(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox that runs. ``phases``: microseconds spent on each part."""

    sandbox_id: str
    started_at: float
    slot: int = -1
    existing: bool = False
    phases: dict[str, int] = {}


class SandboxUse(msgspec.Struct, frozen=True, kw_only=True):
    """What a sandbox used; None where it is not measured."""

    cpu_ns: int = 0
    memory_bytes: int = 0
    memory_peak_bytes: int = 0
    disk_bytes: int = 0
    pids: int = 0
    pids_peak: int | None = None
    oom_kills: int = 0
    read_bytes: int | None = None
    written_bytes: int | None = None
    memory_byte_s: int = 0


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """What the runtime saw when it looked whether the sandbox was dead."""

    processes: int = 0
    waited_ns: int = 0


class SandboxEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The confirmed end of a sandbox."""

    sandbox_id: str
    cause: str
    ended_at: float
    exit_code: int | None = None
    usage: SandboxUse = SandboxUse()
    proof: Proof = Proof()
    kept_until: float | None = None
    endpoints: list[EndpointCount] = []
    egress: EgressRecord | None = None
    audit: AuditRecord | None = None


class SandboxFound(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox that the runtime knows: live, or ended and not yet forgotten."""

    sandbox_id: str
    state: str
    started_at: float = 0.0
    last_activity_at: float = 0.0
    execs_running: int = 0
    paused: bool = False
    end: SandboxEnd | None = None


class Frozen(msgspec.Struct, frozen=True, kw_only=True):
    """What a freeze came to: ``paused`` False when something entered meanwhile, ``whole`` when all stood still."""

    paused: bool
    whole: bool
    waited_ns: int = 0


class SnapshotState(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that the runtime keeps."""

    snapshot_id: str
    sandbox_id: str
    made_at: float
    kept_until: float
    bytes: int = 0
    frozen_ns: int = 0
    whole: bool = True


class KeptDisk(msgspec.Struct, frozen=True, kw_only=True):
    """The disk of an ended sandbox."""

    sandbox_id: str
    kept_until: float
    bytes: int = 0


class ExecUse(msgspec.Struct, frozen=True, kw_only=True):
    """What one exec used."""

    cpu_ns: int = 0
    memory_peak_bytes: int = 0


class _End(msgspec.Struct, frozen=True, kw_only=True):
    """How a program or a script ended."""

    ended: str
    exit_code: int | None = None
    signal: int | None = None
    oom_kills: int = 0
    quota_hits: list[str] = []
    stdout_total: int = 0
    stderr_total: int = 0
    started_at: float = 0.0
    duration_ns: int = 0
    usage: ExecUse = ExecUse()
    merged: bool = False


class ExecEnd(_End, frozen=True, kw_only=True):
    """How an exec ended."""

    exec_id: str


class RunEnd(_End, frozen=True, kw_only=True):
    """How a run of a session ended; its output are ``*_total`` bytes from ``*_from`` on of the session's streams."""

    run_id: str
    stdout_from: int = 0
    stderr_from: int = 0
    closed: bool = False


class ExecState(msgspec.Struct, frozen=True, kw_only=True):
    """An exec that the runtime knows."""

    exec_id: str
    state: str
    argv: list[bytes] = []
    started_at: float = 0.0
    stdout_total: int = 0
    stderr_total: int = 0
    end: ExecEnd | None = None


class FileReport(msgspec.Struct, frozen=True, kw_only=True):
    """A file operation that succeeded."""

    bytes: int
    size: int
    mode: int


class Feature(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel feature or tool: whether it is there, what is lost without it, how to get it."""

    name: str
    present: bool
    detail: str = ""
    lost: str = ""
    remedy: str = ""


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """Who answers on ``runtime.sock``."""

    version: int
    boot_id: str
    node: str
    capabilities: dict[str, Any] = {}


class NodeStats(msgspec.Struct, frozen=True, kw_only=True):
    """The node's counts."""

    sandboxes: int = 0
    execs: int = 0
    pool_bytes: int = 0
    pool_used_bytes: int = 0
    pool_pending_bytes: int = 0
    slots_ready: int = 0
    slots_used: int = 0
    descriptors_used: int = 0
    descriptors_limit: int = 0
    audit: dict[str, int] = {}
    """Events of sandboxes since the runtime began, by kind and reason."""


class LoadingCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What reads of layers on demand have come to since the node's holder began, of one layer or of all."""

    hits: int = 0
    """Reads that asked and whose range was there."""
    misses: int = 0
    """Reads that waited until their range was there."""
    errors: int = 0
    """Reads that ended with an I/O error."""
    waiting: int = 0
    """Reads that wait now."""
    wait_p50_us: int = 0
    wait_p99_us: int = 0
    wait_total_us: int = 0
    """How long half, 99 of 100, and all together of the misses waited."""
    requests: int = 0
    """Requests to the store; ``retries`` of them again after a failure."""
    retries: int = 0
    stored_bytes: int = 0
    """Bytes that came from the store, as stored; ``fetched_bytes``: as they are read."""
    fetched_bytes: int = 0
    corrupt: int = 0
    """Chunks whose bytes were not those of their digest; each was fetched once more."""
    failed: int = 0
    """Ranges that could not be had."""
    fetch_p50_us: int = 0
    fetch_p99_us: int = 0
    fetch_total_us: int = 0
    """How long half, 99 of 100, and all together of the requests took."""


class LayerLoading(msgspec.Struct, frozen=True, kw_only=True):
    """A layer that is open and not complete. ``layer`` numbers its files: a layer that was removed and fetched again
    has two while the former ones are in use. ``counts``: since it was opened, or the holder began.
    """

    layer: int
    digest: str
    bytes: int
    filled_bytes: int
    counts: LoadingCounts = LoadingCounts()


class Loading(msgspec.Struct, frozen=True, kw_only=True):
    """How layers are read on demand. ``counts``: of all layers, also those that are complete or closed by now."""

    on_demand: bool
    fetcher: bool = False
    """Whether one is there."""
    oldest_wait_ms: int = 0
    """How long the read has waited that waits longest."""
    counts: LoadingCounts = LoadingCounts()
    layers: list[LayerLoading] = []
    more: bool = False
    """There are more layers after these."""


def answer(raw: Any, kind: type[T]) -> T:
    """The runtime's answer as a struct; raises ProtocolError when it has another shape."""
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"the runtime's answer is no {kind.__name__}: {error}") from None
