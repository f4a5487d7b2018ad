"""What the edge remembers of one sandbox and of one exec, and how that reads as the API's types. Pure."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from dsec.api.network import Network
from dsec.api.types import (
    ComposedLayer,
    Ended,
    ExecInfo,
    ExecUsage,
    Pty,
    SandboxInfo,
    SandboxState,
    Stopped,
    StoryEntry,
    Usage,
)
from dsec.backends.wire import (
    AuditRecord,
    EgressRecord,
    EndpointCount,
    EndpointSpec,
    ExecEnd,
    ExecState,
    Proof,
    SandboxEnd,
    SandboxUse,
)
from dsec.edge import life
from dsec.edge.admission import Whose
from dsec.edge.demands import Demand

__all__ = ["ExecRecord", "SandboxRecord", "exec_info", "hostname_of", "info_of", "stopped_of", "usage_of", "whose_of"]

_MIB = 1 << 20
_GIB = 1 << 30
_HOSTNAME = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?")


class SandboxRecord(msgspec.Struct, kw_only=True):
    """A sandbox, from the intent to make it until its tombstone goes."""

    id: str
    boot_id: str
    node: str
    project: str
    principal: str
    key: str
    name: str | None
    image: str
    image_digest: str
    layers: list[str]
    labels: dict[str, str]
    own_env: dict[str, str]
    """As the caller gave it."""
    env: dict[str, str]
    """The image's under the caller's: what every exec begins with."""
    workdir: str
    user: str
    command: list[str] | None
    demand: Demand
    shm_bytes: int
    idle_timeout_s: float
    lifetime_s: float
    exec_timeout_s: float | None
    main_exec_id: str | None
    story: list[StoryEntry]
    pty: Pty | None = None
    """The main process's terminal, and whether it has a standard input."""
    stdin: bool = False
    started_at: float | None = None
    ended_at: float | None = None
    cause: str | None = None
    exit_code: int | None = None
    use: SandboxUse | None = None
    proof: Proof = Proof()
    phases_us: dict[str, int] = {}
    job: str | None = None
    from_disk: str | None = None
    from_snapshot: str | None = None
    kept_until: float | None = None
    """While its disk is kept."""
    used_to_keep: bool = False
    endpoints: list[EndpointSpec] = []
    endpoint_counts: list[EndpointCount] = []
    """What these had done in the end."""
    network: Network | None = None
    """As it was asked for; once a sandbox has had one it is never None again."""
    egress: dict[str, Any] | None = None
    """What it was compiled to."""
    egress_record: EgressRecord | None = None
    """What had come of it in the end."""
    audit_record: AuditRecord | None = None
    """What else it had tried and not got in the end."""
    profile: str = "default"
    """How it is isolated."""
    protected: list[str] = []
    """Paths that nobody inside can change."""
    ports: dict[int, str] = {}
    """Exposed ones, with their tokens."""
    composed: list[list[str]] = []
    """What was laid over the image, bottom first: the tag that was asked for, and the digest that it meant."""
    workspace: str | None = None
    """Digest of that of them which is its workspace."""

    @property
    def whose(self) -> Whose:
        """Its place in the queue of creates."""
        return whose_of(self.project, self.job, self.principal)

    @property
    def state(self) -> SandboxState:
        """Where it is in its life."""
        return SandboxState(self.story[-1].state)

    @property
    def is_live(self) -> bool:
        """Whether it is being made or runs."""
        return self.ended_at is None

    def started(self, at: float, phases_us: dict[str, int]) -> bool:
        """Note that it runs; False when that is known. One that has ended by then stays ended."""
        if self.started_at is not None:
            return False
        self.story = life.advance(self.story, SandboxState.RUNNING, at=at, cause="started", actor="edge")
        self.started_at, self.phases_us = at, phases_us
        return True

    def moved(self, then: SandboxState, *, at: float, cause: str, actor: str, detail: str = "") -> bool:
        """Note that it was paused or resumed; False when that is known, or it does not run."""
        if self.started_at is None:
            return False
        story = life.advance(self.story, then, at=at, cause=cause, actor=actor, detail=detail)
        if story is self.story:
            return False
        self.story = story
        return True

    def ended(self, end: SandboxEnd, *, actor: str, detail: str = "") -> bool:
        """Note its end; False when it had ended already, which stands."""
        then = life.ended_state(end.cause)
        story = life.advance(self.story, then, at=end.ended_at, cause=end.cause, actor=actor, detail=detail)
        if story is self.story:
            return False
        self.story, self.ended_at, self.cause = story, story[-1].at, end.cause
        self.exit_code, self.use, self.proof = end.exit_code, end.usage, end.proof
        self.kept_until, self.endpoint_counts = end.kept_until, end.endpoints
        self.egress_record, self.audit_record = end.egress, end.audit
        return True


class ExecRecord(msgspec.Struct, kw_only=True):
    """An exec: the intent, and its end or error once known."""

    sandbox_id: str
    exec_id: str
    body: bytes
    """Hash of the canonical request."""
    argv: list[bytes]
    started_at: float
    is_main: bool = False
    merge_stderr: bool = False
    stdin: bool = False
    pty: bool = False
    end: ExecEnd | None = None
    error: dict[str, object] | None = None
    """Wire form."""

    @property
    def is_over(self) -> bool:
        """Whether its outcome is recorded."""
        return self.end is not None or self.error is not None


def whose_of(project: str, job: str | None, principal: str) -> Whose:
    """Who waits together: a job's creates, or those of a principal that belong to no job."""
    return project, f"job:{job}" if job is not None else f"@{principal}"


def hostname_of(sandbox_id: str, name: str | None) -> str:
    """The name where it is a host name, else 12 characters of the ID."""
    if name is not None and _HOSTNAME.fullmatch(name):
        return name
    return sandbox_id.rpartition("-")[2][:12]


def info_of(record: SandboxRecord, use: Usage | None = None) -> SandboxInfo:
    """The API's form. ``use``: fresh numbers of a live sandbox."""
    if use is None and record.use is not None:
        use = usage_of(record, record.use, record.ended_at or record.story[-1].at)
    return SandboxInfo(
        id=record.id,
        node=record.node,
        state=record.state,
        image=record.image,
        image_digest=record.image_digest,
        layers=record.layers,
        composed=[ComposedLayer(reference=tag, digest=digest) for tag, digest in record.composed],
        backend="container",
        created_at=record.story[0].at,
        cpu=record.demand.cpu_milli / 1000,
        memory_mib=record.demand.memory_bytes / _MIB,
        disk_mib=record.demand.disk_bytes / _MIB,
        pids=record.demand.pids,
        idle_timeout_s=record.idle_timeout_s,
        lifetime_s=record.lifetime_s,
        labels=record.labels,
        name=record.name,
        job=record.job,
        principal=record.principal,
        project=record.project,
        env=record.own_env,
        workdir=record.workdir,
        user=record.user or None,
        command=record.command,
        network=record.network,
        profile=record.profile,
        protected=record.protected,
        main_exec_id=record.main_exec_id,
        started_at=record.started_at,
        ended_at=record.ended_at,
        cause=record.cause,
        exit_code=record.exit_code,
        usage=use,
        from_disk=record.from_disk,
        from_snapshot=record.from_snapshot,
        kept_until=record.kept_until,
        phases_us=record.phases_us,
    )


def usage_of(record: SandboxRecord, use: SandboxUse, at: float) -> Usage:
    """The runtime's numbers in the API's units, ``at`` a time."""
    return Usage(
        cpu_s=use.cpu_ns / 1e9,
        memory_mib=use.memory_bytes / _MIB,
        memory_peak_mib=use.memory_peak_bytes / _MIB,
        disk_mib=use.disk_bytes / _MIB,
        pids=use.pids,
        wall_s=max(0.0, at - record.started_at) if record.started_at is not None else 0.0,
        oom_kills=use.oom_kills,
        pids_peak=use.pids_peak,
        read_bytes=use.read_bytes,
        written_bytes=use.written_bytes,
        memory_gib_s=use.memory_byte_s / _GIB,
    )


def stopped_of(record: SandboxRecord) -> Stopped:
    """The confirmation of an ended sandbox."""
    ended_at = record.ended_at or record.story[-1].at
    return Stopped(
        id=record.id,
        cause=record.cause or "lost",
        ended_at=ended_at,
        processes=record.proof.processes,
        waited_s=record.proof.waited_ns / 1e9,
        usage=usage_of(record, record.use or SandboxUse(), ended_at),
        kept_until=record.kept_until,
    )


def exec_info(record: ExecRecord, state: ExecState | None = None) -> ExecInfo:
    """The API's form; ``state``: what the runtime says of a running one."""
    end = record.end or (state.end if state is not None else None)
    argv = [each.decode(errors="backslashreplace") for each in record.argv]
    if end is None:
        totals = (state.stdout_total, state.stderr_total) if state is not None else (0, 0)
        return ExecInfo(
            id=record.exec_id,
            sandbox_id=record.sandbox_id,
            argv=argv,
            started_at=record.started_at,
            error=record.error,
            stdout_total_bytes=totals[0],
            stderr_total_bytes=totals[1],
            merge_stderr=record.merge_stderr,
            stdin=record.stdin,
            pty=record.pty,
        )
    return ExecInfo(
        id=record.exec_id,
        sandbox_id=record.sandbox_id,
        argv=argv,
        started_at=end.started_at or record.started_at,
        ended=Ended(end.ended),
        exit_code=end.exit_code,
        signal=end.signal,
        stdout_total_bytes=end.stdout_total,
        stderr_total_bytes=end.stderr_total,
        duration_s=end.duration_ns / 1e9,
        oom_kills=end.oom_kills,
        quota_hits=end.quota_hits,
        usage=ExecUsage(cpu_s=end.usage.cpu_ns / 1e9, memory_peak_mib=end.usage.memory_peak_bytes / _MIB),
        merge_stderr=record.merge_stderr,
        stdin=record.stdin,
        pty=record.pty,
    )
