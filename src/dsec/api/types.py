"""Requests and answers of ``/v1``, as msgspec structs. Units are in the names.

Requests refuse unknown fields; answers ignore them, so that a newer server can say more.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

import msgspec

from dsec.api.network import Network
from dsec.errors import InvalidArgument

__all__ = [
    "Backend",
    "ComposedLayer",
    "CreateRequest",
    "Ended",
    "Endpoint",
    "EndpointInfo",
    "ExecInfo",
    "ExecUsage",
    "FileWritten",
    "KillRequest",
    "Limit",
    "NetworkRequest",
    "Paused",
    "PortInfo",
    "PortRequest",
    "Pty",
    "ResizeRequest",
    "SandboxInfo",
    "SandboxState",
    "Status",
    "StopFailure",
    "StopFilter",
    "StopReport",
    "StopRequest",
    "Stopped",
    "StoryEntry",
    "Usage",
    "UsageGroup",
    "VersionInfo",
]

Backend = Literal["container", "microvm", "vm"]
Limit = float | tuple[float, float]
"""A number is the limit; a pair is (request, limit)."""


class Pty(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A terminal and its size in characters."""

    rows: int = 24
    cols: int = 80

    def __post_init__(self) -> None:
        if not (1 <= self.rows <= 65535 and 1 <= self.cols <= 65535):
            raise InvalidArgument(f"a terminal has 1 to 65535 rows and columns, not {self.rows} × {self.cols}")


class Ended(StrEnum):
    """How an exec ended."""

    EXITED = "exited"
    SIGNALLED = "signalled"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"


class SandboxState(StrEnum):
    """``creating → running ⇄ paused → stopped``, and ``lost`` when the node lost it."""

    CREATING = "creating"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"
    LOST = "lost"


class Endpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One way out of a sandbox, to a URL on the trusted side, and what may go there. None: no such limit.

    ``url``: http or https, without user, query or fragment; what the sandbox asks for is appended to its path.
    ``max_bytes``: of request and answer bodies together, for as long as the sandbox lives.
    """

    url: str
    max_connections: int = 64
    max_bytes: int | None = None
    max_requests_per_minute: int | None = None


class CreateRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of SandboxArgs, and how the call itself behaves."""

    image: str
    key: str
    deadline_s: float = 120.0
    on_full: Literal["wait", "raise"] = "wait"
    pull: Literal["missing", "always", "never"] = "missing"
    backend: str = "container"
    workspace: str | None = None
    toolkits: tuple[str, ...] = ()
    cpu: Limit = 2
    memory_mib: Limit = 1024
    disk_mib: Limit = 10240
    pids: Limit = 4096
    shm_mib: float = 64
    env: dict[str, str] = {}
    workdir: str | None = None
    user: str | None = None
    command: Literal["image"] | list[str] | None = None
    pty: Pty | None = None
    stdin: bool = False
    network: Any = "none"
    endpoints: dict[str, str | Endpoint] = {}
    mounts: tuple[str, ...] = ()
    idle_timeout_s: float = 900
    lifetime_s: float = 14400
    exec_timeout_s: float | None = None
    qos: str = "latency"
    profile: str = "default"
    protected: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    name: str | None = None
    job: str | None = None
    from_disk: str | None = None
    """A stopped sandbox whose disk is kept: the new one begins with a copy of what it had written."""
    from_snapshot: str | None = None
    """A snapshot: the new sandbox begins with a copy of it."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a sandbox has used so far; None where the node does not measure it."""

    cpu_s: float
    memory_mib: float
    memory_peak_mib: float
    disk_mib: float
    pids: int
    wall_s: float
    oom_kills: int
    pids_peak: int | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None
    memory_gib_s: float = 0.0
    """Memory times time, sampled every 10 s."""


class UsageGroup(msgspec.Struct, frozen=True, kw_only=True):
    """What sandboxes of one kind used together, live and ended; ``key`` None: those without the label or job."""

    key: str | None
    sandboxes: int = 0
    live: int = 0
    cpu_s: float = 0.0
    memory_gib_s: float = 0.0
    """Memory times time, sampled every 10 s."""
    wall_s: float = 0.0
    disk_mib: float = 0.0
    """On disk now, or at the end."""
    read_bytes: int | None = None
    written_bytes: int | None = None
    oom_kills: int = 0
    largest_memory_mib: float = 0.0


class ComposedLayer(msgspec.Struct, frozen=True, kw_only=True):
    """A layer that was laid over a sandbox's image: as it was asked for, and the digest that this meant then."""

    reference: str
    digest: str


class SandboxInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox as its node knows it; ``cause``, ``ended_at`` and ``exit_code`` once it has ended."""

    id: str
    node: str
    state: SandboxState
    image: str
    image_digest: str
    layers: list[str]
    backend: str
    created_at: float
    cpu: float
    memory_mib: float
    disk_mib: float
    pids: int
    idle_timeout_s: float
    lifetime_s: float
    labels: dict[str, str] = {}
    name: str | None = None
    job: str | None = None
    principal: str = ""
    project: str = "default"
    env: dict[str, str] = {}
    workdir: str | None = None
    user: str | None = None
    command: list[str] | None = None
    main_exec_id: str | None = None
    network: Network | None = None
    """What it may reach; None: nothing but itself."""
    profile: str = "default"
    protected: list[str] = []
    """Paths that nobody inside can change."""
    started_at: float | None = None
    ended_at: float | None = None
    cause: str | None = None
    exit_code: int | None = None
    usage: Usage | None = None
    from_disk: str | None = None
    from_snapshot: str | None = None
    kept_until: float | None = None
    """While its disk is kept, after its end."""
    phases_us: dict[str, int] = {}
    composed: list[ComposedLayer] = []
    """Workspace and toolkits over the image, bottom first; ``layers`` has the digests of all layers."""


class StoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One transition: when, what, why, by whom."""

    at: float
    state: str
    cause: str
    actor: str
    detail: str = ""


class ExecUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What one exec used, from its own cgroup."""

    cpu_s: float
    memory_peak_mib: float


class ExecInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An exec: over when it has ``ended`` or has an ``error`` (wire form: its sandbox ended first, or nobody knows).

    ``argv`` is text, undecodable bytes escaped.
    """

    id: str
    sandbox_id: str
    argv: list[str]
    started_at: float
    ended: Ended | None = None
    error: dict[str, Any] | None = None
    exit_code: int | None = None
    signal: int | None = None
    stdout_total_bytes: int = 0
    stderr_total_bytes: int = 0
    duration_s: float | None = None
    oom_kills: int = 0
    quota_hits: list[str] = []
    usage: ExecUsage | None = None
    merge_stderr: bool = False
    stdin: bool = False
    pty: bool = False


class StopRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``keep`` is nothing, or disk: what it wrote stays for ``keep_s``."""

    grace_s: float = 0.0
    keep: str = "nothing"
    keep_s: float = 3600


class Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """A confirmed stop. ``processes`` (0) were left when the node looked, after ``waited_s``."""

    id: str
    cause: str
    ended_at: float
    processes: int
    waited_s: float
    usage: Usage
    kept_until: float | None = None


class Paused(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox that stands still. ``partial``: some processes had not done so after ``waited_s``; they will."""

    id: str
    partial: bool
    waited_s: float


class StopFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """At least one filter is required; only sandboxes of the token's principal are touched."""

    labels: dict[str, str] | None = None
    job: str | None = None
    mine: bool = False


class StopFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox that could not be stopped, and the error in wire form."""

    id: str
    error: dict[str, Any]


class StopReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a stop of many did."""

    stopped: list[str]
    failed: list[StopFailure] = []


class KillRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``signal`` None: SIGTERM to the leader's process group, everything killed after ``grace_s``, confirmed."""

    signal: int | None = None
    grace_s: float = 2.0


class ResizeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The new size of an exec's terminal."""

    pty: Pty


class FileWritten(msgspec.Struct, frozen=True, kw_only=True):
    """A file after it was replaced."""

    path: str
    bytes: int
    mode: int


class PortRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A port of the sandbox."""

    port: int


class NetworkRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A network policy in any of its forms, in place of the present one."""

    network: Any


class PortInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An exposed port. Requests go to the API's own address, with ``host`` as Host and the token in a header."""

    port: int
    host: str
    """``PORT-ID.DOMAIN``, the domain ``localhost`` unless the node has one for ports; the API's port may follow."""
    token: str
    token_header: str
    """Name of the header; a link's query parameter and the cookie have it with underscores."""


class EndpointInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint and what it has done."""

    name: str
    address: str
    """Where it is inside."""
    url: str
    closed: bool
    max_connections: int
    max_bytes: int | None = None
    max_requests_per_minute: int | None = None
    requests: int = 0
    refused: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    connections: int = 0


class VersionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What this server is and can do."""

    version: str
    api: str
    capabilities: list[str]
    node: str


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """A node at a glance: its parts, what it has and what is used."""

    node: str
    version: str
    boot_id: str
    parts: list[dict[str, Any]]
    sandboxes: dict[str, int]
    queued: int
    requests: dict[str, float]
    capacity: dict[str, float]
    stats: dict[str, Any]
    features: list[dict[str, Any]]
    reader: str = "whole"
    """How layers of stores are read: ``filled`` as they are read, or ``whole`` before."""
    reader_why: str = ""
    loading: dict[str, int] = {}
    """Where they are read on demand and the holder answers: its counts of those reads since it began."""
