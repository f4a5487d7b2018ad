"""Requests and answers of ``/v1``, as msgspec structs. Units are in the names.

Requests refuse unknown fields; answers ignore them, so that a newer server can say more.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

import msgspec

from dsec.api.network import Network
from dsec.api.packing import Provenance
from dsec.errors import InvalidArgument

__all__ = [
    "Backend",
    "ChangedFile",
    "ComposedLayer",
    "CreateRequest",
    "Ended",
    "Endpoint",
    "EndpointInfo",
    "ExecInfo",
    "ExecUsage",
    "FileWritten",
    "ImageConfig",
    "ImageInfo",
    "ImageFetchRequest",
    "ImageProgress",
    "ImagePushRequest",
    "ImagePushed",
    "HeartbeatRequest",
    "HiddenFile",
    "ImportRequest",
    "JobInfo",
    "JobRequest",
    "JobState",
    "KillRequest",
    "LayerCheckRequest",
    "LayerChecked",
    "LayerClash",
    "LayerCollectRequest",
    "LayerCollected",
    "LayerDetail",
    "LayerDiffRequest",
    "LayerDifferences",
    "LayerEnvironment",
    "LayerEvictRequest",
    "LayerEvicted",
    "LayerInfo",
    "LayerPullRequest",
    "LayerPushRequest",
    "LayerPushed",
    "LayerVerified",
    "LayerVerifyRequest",
    "Limit",
    "Paused",
    "NetworkRequest",
    "PortInfo",
    "PortRequest",
    "Pty",
    "ResizeRequest",
    "SandboxInfo",
    "StoreInfo",
    "StoredImage",
    "StoredTag",
    "SandboxState",
    "Status",
    "StopFailure",
    "StopFilter",
    "StopReport",
    "StopRequest",
    "Stopped",
    "StoryEntry",
    "TokenCreated",
    "TokenInfo",
    "TokenRequest",
    "Usage",
    "UsageGroup",
    "VersionInfo",
]

Backend = Literal["container", "microvm", "vm"]
Limit = float | tuple[float, float]
"""A number is the limit; a pair is (request, limit)."""


class _Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    pass


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


class CreateRequest(_Request, frozen=True, kw_only=True):
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


class Usage(_Answer, frozen=True, kw_only=True):
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


class UsageGroup(_Answer, frozen=True, kw_only=True):
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


class ComposedLayer(_Answer, frozen=True, kw_only=True):
    """A layer that was laid over a sandbox's image: as it was asked for, and the digest that this meant then."""

    reference: str
    digest: str


class SandboxInfo(_Answer, frozen=True, kw_only=True):
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


class StoryEntry(_Answer, frozen=True, kw_only=True):
    """One transition: when, what, why, by whom."""

    at: float
    state: str
    cause: str
    actor: str
    detail: str = ""


class ExecUsage(_Answer, frozen=True, kw_only=True):
    """What one exec used, from its own cgroup."""

    cpu_s: float
    memory_peak_mib: float


class ExecInfo(_Answer, frozen=True, kw_only=True):
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


class StopRequest(_Request, frozen=True, kw_only=True):
    """``keep`` is nothing, or disk: what it wrote stays for ``keep_s``."""

    grace_s: float = 0.0
    keep: str = "nothing"
    keep_s: float = 3600


class Stopped(_Answer, frozen=True, kw_only=True):
    """A confirmed stop. ``processes`` (0) were left when the node looked, after ``waited_s``."""

    id: str
    cause: str
    ended_at: float
    processes: int
    waited_s: float
    usage: Usage
    kept_until: float | None = None


class Paused(_Answer, frozen=True, kw_only=True):
    """A sandbox that stands still. ``partial``: some processes had not done so after ``waited_s``; they will."""

    id: str
    partial: bool
    waited_s: float


class StopFilter(_Request, frozen=True, kw_only=True):
    """At least one filter is required; only sandboxes of the token's principal are touched."""

    labels: dict[str, str] | None = None
    job: str | None = None
    mine: bool = False


class StopFailure(_Answer, frozen=True, kw_only=True):
    """A sandbox that could not be stopped, and the error in wire form."""

    id: str
    error: dict[str, Any]


class StopReport(_Answer, frozen=True, kw_only=True):
    """What a stop of many did."""

    stopped: list[str]
    failed: list[StopFailure] = []


class JobState(StrEnum):
    """``held``; ``lost`` once its lease is over; ``ended`` by its holder or by ``dsec job stop``."""

    HELD = "held"
    LOST = "lost"
    ENDED = "ended"


class JobRequest(_Request, frozen=True, kw_only=True):
    """Take a job. ``holder`` is random for each holder: the same one asking again keeps its number."""

    name: str
    holder: str
    lease_s: float = 60.0
    on_lost: Literal["stop", "pause"] = "stop"
    max_live: int | None = None


class HeartbeatRequest(_Request, frozen=True, kw_only=True):
    """A sign of life of the holder with that fencing number."""

    fence: int


class JobInfo(_Answer, frozen=True, kw_only=True):
    """A job. ``live`` and ``queued``: its sandboxes that live, and its creates that wait for room."""

    name: str
    state: JobState
    fence: int
    principal: str
    lease_s: float
    on_lost: str
    acquired_at: float
    expires_at: float
    max_live: int | None = None
    lost_at: float | None = None
    ended_at: float | None = None
    live: int = 0
    queued: int = 0
    project: str = "default"


class KillRequest(_Request, frozen=True, kw_only=True):
    """``signal`` None: SIGTERM to the leader's process group, everything killed after ``grace_s``, confirmed."""

    signal: int | None = None
    grace_s: float = 2.0


class ResizeRequest(_Request, frozen=True, kw_only=True):
    """The new size of an exec's terminal."""

    pty: Pty


class FileWritten(_Answer, frozen=True, kw_only=True):
    """A file after it was replaced."""

    path: str
    bytes: int
    mode: int


class PortRequest(_Request, frozen=True, kw_only=True):
    """A port of the sandbox."""

    port: int


class NetworkRequest(_Request, frozen=True, kw_only=True):
    """A network policy in any of its forms, in place of the present one."""

    network: Any


class PortInfo(_Answer, frozen=True, kw_only=True):
    """An exposed port. Requests go to the API's own address, with ``host`` as Host and the token in a header."""

    port: int
    host: str
    """``PORT-ID.DOMAIN``, the domain ``localhost`` unless the node has one for ports; the API's port may follow."""
    token: str
    token_header: str
    """Name of the header; a link's query parameter and the cookie have it with underscores."""


class EndpointInfo(_Answer, frozen=True, kw_only=True):
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


class ImageConfig(_Answer, frozen=True, kw_only=True):
    """What an OCI image says of its programs."""

    env: list[str] = []
    user: str = ""
    workdir: str = ""
    entrypoint: list[str] = []
    cmd: list[str] = []


class ImageInfo(_Answer, frozen=True, kw_only=True):
    """An image as imported. ``digest`` is its configuration's, Docker's image ID; registries know another."""

    reference: str
    digest: str
    layers: list[str]
    """Digests of what a sandbox mounts, the bottom one first."""
    size_bytes: int
    created_at: float
    config: ImageConfig
    parts: list[str] = []
    """Digests of the layers that it came as, where some of them were made one."""


class ImageProgress(_Answer, frozen=True, kw_only=True):
    """A step of an import or build. ``total`` is 0 while unknown."""

    phase: str
    done: int = 0
    total: int = 0
    unit: str = "bytes"
    detail: str = ""


class ImportRequest(_Request, frozen=True, kw_only=True):
    """``source``: ``docker://REF`` or a bare reference. The client's own files are sent as a tar body instead."""

    source: str
    reference: str | None = None
    pull: Literal["missing", "always", "never"] = "always"


class ImagePushRequest(_Request, frozen=True, kw_only=True):
    """``store`` None: the node's default. ``move``: also when the reference means another image there."""

    reference: str
    store: str | None = None
    move: bool = False


class ImageFetchRequest(_Request, frozen=True, kw_only=True):
    """An image from a store, not from a registry; ``store`` None: the node's default."""

    reference: str
    store: str | None = None


class ImagePushed(_Answer, frozen=True, kw_only=True):
    """What publishing an image did; sizes are of all its layers."""

    reference: str
    digest: str
    store: str
    size_bytes: int
    stored_bytes: int
    sent_bytes: int
    registry_bytes: int | None = None
    """What its layers were as a registry's compressed blobs; None where they came from an archive."""


class StoredImage(_Answer, frozen=True, kw_only=True):
    """An image of a store."""

    reference: str
    digest: str
    layers: list[str]
    at: float
    by: str


class LayerEnvironment(_Answer, frozen=True, kw_only=True):
    """What a layer's tag brings to the environment of the sandboxes that it is in, below what the caller gives."""

    env: dict[str, str] = {}
    path_prepend: list[str] = []
    """Directories before those of PATH, in this order."""
    path_append: list[str] = []


class LayerInfo(_Answer, frozen=True, kw_only=True):
    """A layer: its digest, its tag, its bytes."""

    digest: str
    size_bytes: int
    reference: str | None = None
    created_at: float = 0.0
    environment: LayerEnvironment = LayerEnvironment()
    local_bytes: int = 0
    """What it takes on this node: 0 for one that was evicted, and is fetched again when it is needed."""
    used_at: float = 0.0
    """When a sandbox had it last; 0 for never."""
    stores: list[str] = []
    """The node's stores that are known to have it."""


class LayerDetail(_Answer, frozen=True, kw_only=True):
    """A layer of this node and who needs it."""

    digest: str
    size_bytes: int
    metadata_bytes: int
    data_bytes: int
    local_bytes: int
    """What of its data is on this node: all of it, but for a layer that is read on demand, or was evicted."""
    here: bool = True
    """False: it was evicted, and is fetched again when it is needed."""
    used_at: float = 0.0
    """When a sandbox had it last; 0 for never."""
    stores: list[str] = []
    """The node's stores that are known to have it."""
    references: list[str] = []
    images: list[str] = []
    sandboxes: list[str] = []
    environment: LayerEnvironment = LayerEnvironment()
    """Of the tag that was asked for."""
    provenance: Provenance | None = None
    """Where it comes from, if it was packed from a sandbox."""


class LayerPushRequest(_Request, frozen=True, kw_only=True):
    """``store`` None: the node's default. ``move``: also when the tag means another layer there."""

    reference: str
    store: str | None = None
    move: bool = False
    mend: bool = False
    """Write anew what the store holds of the layer: for one that was found damaged there."""


class LayerPushed(_Answer, frozen=True, kw_only=True):
    """What a push did."""

    reference: str
    digest: str
    store: str
    size_bytes: int
    stored_bytes: int
    """What the store holds for the layer, each chunk once, compressed."""
    sent_bytes: int
    """What had to be written now."""


class LayerPullRequest(_Request, frozen=True, kw_only=True):
    """``reference``: a tag, ``@sha256:DIGEST``, or both. ``move``: also when the tag means another layer here."""

    reference: str
    store: str | None = None
    move: bool = False


class LayerVerifyRequest(_Request, frozen=True, kw_only=True):
    """``store`` None: this node's own copy, all of which is read; of a store's, with ``deep`` only."""

    reference: str
    store: str | None = None
    deep: bool = False


class LayerVerified(_Answer, frozen=True, kw_only=True):
    """``faults``: what is wrong, in words; empty when nothing is."""

    digest: str
    faults: list[str] = []


class LayerEvictRequest(_Request, frozen=True, kw_only=True):
    """A layer of this node, by tag or digest."""

    reference: str


class LayerEvicted(_Answer, frozen=True, kw_only=True):
    """``evicted``: whether it was here."""

    digest: str
    evicted: bool


class LayerCollectRequest(_Request, frozen=True, kw_only=True):
    """``store`` None: this node's own layers."""

    store: str | None = None
    dry_run: bool = False


class LayerCollected(_Answer, frozen=True, kw_only=True):
    """What a clean-up removed (would remove, when dry). ``doomed``: what one that comes a day later removes."""

    removed_layers: list[str] = []
    removed_blobs: int = 0
    removed_bytes: int = 0
    doomed_layers: list[str] = []
    doomed_blobs: int = 0
    doomed_bytes: int = 0
    damaged_layers: list[str] = []
    """Layers of a store with a tag whose index cannot be read: while there are any, no blob is removed."""


class LayerCheckRequest(_Request, frozen=True, kw_only=True):
    """What a sandbox would be composed of: ``layers`` over the image (None: only among themselves), bottom first."""

    image: str | None = None
    layers: list[str]


class HiddenFile(_Answer, frozen=True, kw_only=True):
    """A file that two layers have: the upper one's is seen. ``how``: replaced, removed, emptied (a directory)."""

    path: str
    """From the root; bytes that are no UTF-8 are written as \\xNN."""
    upper: str
    lower: str
    how: str


class LayerClash(_Answer, frozen=True, kw_only=True):
    """A ``variable`` that two layers set, a directory that two put into ``path``, or a ``program`` of one name in two
    directories of PATH: a sandbox gets that of ``upper``.
    """

    kind: str
    name: str
    upper: str
    lower: str
    seen: str
    """The variable's value, the directory, or the program that is run."""
    hidden: str = ""
    """The program that is not."""


class LayerChecked(_Answer, frozen=True, kw_only=True):
    """``hidden``: the first of them; ``total``: how many there are; likewise ``clashes``."""

    hidden: list[HiddenFile] = []
    total: int = 0
    clashes: list[LayerClash] = []
    clashes_total: int = 0
    path: str = ""
    """PATH as sandboxes would have it."""


class LayerDiffRequest(_Request, frozen=True, kw_only=True):
    """Two layers of this node, by tag or digest."""

    old: str
    new: str


class ChangedFile(_Answer, frozen=True, kw_only=True):
    """``how``: added, removed or changed; ``fields``: kind, mode, owner, size, target, device, content."""

    path: str
    how: str
    fields: list[str] = []


class LayerDifferences(_Answer, frozen=True, kw_only=True):
    """``files``: the first of them by path; ``total``: how many there are. Times are not looked at."""

    files: list[ChangedFile] = []
    total: int = 0


class StoreInfo(_Answer, frozen=True, kw_only=True):
    """A store of the node's configuration."""

    name: str
    url: str
    default: bool = False


class StoredTag(_Answer, frozen=True, kw_only=True):
    """A tag of a store: what it means, when and by which node it was published."""

    reference: str
    digest: str
    at: float
    by: str
    environment: LayerEnvironment = LayerEnvironment()


class TokenRequest(_Request, frozen=True, kw_only=True):
    """``ttl_s`` None: until revoked. ``project`` None: "default", or "*" (all of them) for scope admin."""

    name: str = ""
    ttl_s: float | None = None
    scope: str = "exec"
    project: str | None = None
    principal: str | None = None
    """None: the maker's."""


class TokenInfo(_Answer, frozen=True, kw_only=True):
    """A token without its secret."""

    id: str
    name: str
    created_at: float
    expires_at: float | None = None
    principal: str = ""
    project: str = "*"
    scope: str = "admin"


class TokenCreated(_Answer, frozen=True, kw_only=True):
    """The only time that the secret is seen."""

    id: str
    name: str
    token: str
    expires_at: float | None = None
    principal: str = ""
    project: str = "*"
    scope: str = "admin"


class VersionInfo(_Answer, frozen=True, kw_only=True):
    """What this server is and can do."""

    version: str
    api: str
    capabilities: list[str]
    node: str


class Status(_Answer, frozen=True, kw_only=True):
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
