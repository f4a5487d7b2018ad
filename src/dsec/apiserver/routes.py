"""Every route of ``/v1``: what it takes, what it answers, who answers it."""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from dsec.api import audit, network, packing, snapshots, types
from dsec.api.access import Scope
from dsec.api.images import ImageFetchRequest, ImageInfo, ImageProgress, ImagePushRequest, ImportRequest, StoredImage
from dsec.api.jobs import HeartbeatRequest, JobInfo, JobRequest
from dsec.api.layers import (
    LayerChecked,
    LayerCheckRequest,
    LayerCollected,
    LayerCollectRequest,
    LayerDetail,
    LayerDifferences,
    LayerDiffRequest,
    LayerEvicted,
    LayerEvictRequest,
    LayerInfo,
    LayerPullRequest,
    LayerPushRequest,
    LayerVerifyRequest,
    StoredTag,
    StoreInfo,
)
from dsec.api.tokens import TokenCreated, TokenInfo, TokenRequest

__all__ = ["ROUTES", "Match", "Route", "match"]


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one path. ``answer`` None: raw bytes; ``wrapped``: the answer is ``{wrapped: [answer]}``."""

    method: str
    path: str
    summary: str
    scope: Scope
    """What a token needs for it; of WebSockets and transfers the edge asks for more, by what is opened."""
    where: Literal["own", "edge"] = "edge"
    request: Any = None
    answer: Any = None
    wrapped: str | None = None
    query: tuple[str, ...] = ()
    streams: bool = False
    """The body, or the answer, may be of any length."""
    upgrades: bool = False
    """Answered only as an upgrade to another protocol."""
    public: bool = False
    """Answered without a token."""
    everywhere: bool = False
    """What it answers is about all projects."""


class Match(msgspec.Struct, frozen=True):
    """The route of a request; ``sandbox`` is the ``{id}`` of its path (an ID or a name), if there is one."""

    route: Route
    sandbox: str | None
    last: str | None


_SANDBOX = "/v1/sandboxes/{id}"

ROUTES: tuple[Route, ...] = (
    Route(
        method="GET", path="/v1/version", scope="read", summary="Version and capabilities", where="own",
        answer=types.VersionInfo, public=True,
    ),
    Route(
        method="GET", path="/v1/openapi.json", scope="read",
        summary="This document", where="own", answer=dict[str, Any],
    ),
    Route(
        method="GET", path="/metrics", scope="read", everywhere=True,
        summary="Prometheus metrics of apiserver and node", where="own",
    ),
    Route(
        method="GET", path="/v1/tokens", scope="admin", where="own", summary="The node's tokens, no secrets",
        answer=TokenInfo, wrapped="tokens",
    ),
    Route(
        method="POST", path="/v1/tokens", scope="admin", summary="Make a token", where="own",
        request=TokenRequest, answer=TokenCreated,
    ),
    Route(
        method="DELETE", path="/v1/tokens/{token_id}", scope="admin", summary="Revoke a token", where="own",
        answer=dict[str, Any],
    ),
    Route(
        method="GET", path="/v1/ws", scope="read",
        summary="The WebSocket (docs/protocols.md)", streams=True, upgrades=True,
    ),
    Route(
        method="GET", path="/v1/usage", scope="read",
        summary="What sandboxes used, by label:NAME, job, principal or image",
        answer=types.UsageGroup, wrapped="groups", query=("by", "since"),
    ),
    Route(method="GET", path="/v1/status", scope="read", summary="The node at a glance", answer=types.Status),
    Route(
        method="POST", path="/v1/sandboxes", scope="exec", summary="Create a sandbox; idempotent by key",
        request=types.CreateRequest, answer=types.SandboxInfo,
    ),
    Route(
        method="GET", path="/v1/sandboxes", scope="read", summary="Find sandboxes", answer=types.SandboxInfo,
        wrapped="sandboxes", query=("state", "label", "name", "job", "mine"),
    ),
    Route(method="GET", path=_SANDBOX, scope="read", summary="One sandbox, by ID or name", answer=types.SandboxInfo),
    Route(
        method="DELETE", path=_SANDBOX, scope="exec",
        summary="Drop a stopped sandbox's tombstone; force stops it first",
        answer=dict[str, Any], query=("force",),
    ),
    Route(
        method="GET", path=_SANDBOX + "/story", scope="read", summary="Every transition, its cause and actor",
        answer=types.StoryEntry, wrapped="story",
    ),
    Route(method="GET", path=_SANDBOX + "/usage", scope="read", summary="What it has used", answer=types.Usage),
    Route(
        method="GET", path=_SANDBOX + "/execs", scope="read",
        summary="Its execs", answer=types.ExecInfo, wrapped="execs",
    ),
    Route(method="GET", path=_SANDBOX + "/execs/{exec_id}", scope="read", summary="One exec", answer=types.ExecInfo),
    Route(
        method="POST", path=_SANDBOX + "/execs/{exec_id}/kill", scope="exec",
        summary="Signal or kill an exec, confirmed",
        request=types.KillRequest, answer=dict[str, Any],
    ),
    Route(
        method="POST", path=_SANDBOX + "/execs/{exec_id}/resize", scope="exec",
        summary="Give an exec's terminal another size",
        request=types.ResizeRequest, answer=dict[str, Any],
    ),
    Route(
        method="POST", path=_SANDBOX + "/stop", scope="exec", summary="Stop, confirmed",
        request=types.StopRequest, answer=types.Stopped,
    ),
    Route(method="POST", path=_SANDBOX + "/pause", scope="exec", summary="Let it stand still", answer=types.Paused),
    Route(method="POST", path=_SANDBOX + "/resume", scope="exec", summary="Let it go on", answer=dict[str, Any]),
    Route(
        method="POST", path=_SANDBOX + "/snapshots", scope="exec",
        summary="Keep what it has written; idempotent by key",
        request=snapshots.SnapshotRequest, answer=snapshots.SnapshotInfo,
    ),
    Route(
        method="POST", path=_SANDBOX + "/pack", scope="admin",
        summary="Make a layer of what it has written; idempotent by key",
        request=packing.PackRequest, answer=packing.PackedLayer,
    ),
    Route(
        method="GET", path="/v1/snapshots", scope="read", summary="Snapshots that are kept",
        answer=snapshots.SnapshotInfo, wrapped="snapshots",
    ),
    Route(
        method="GET", path="/v1/snapshots/{snapshot_id}", scope="read", summary="One snapshot",
        answer=snapshots.SnapshotInfo,
    ),
    Route(
        method="DELETE", path="/v1/snapshots/{snapshot_id}", scope="exec",
        summary="Keep a snapshot no more, confirmed", answer=dict[str, Any],
    ),
    Route(
        method="GET", path=_SANDBOX + "/files", scope="read", summary="A file's bytes",
        query=("path", "offset", "limit", "user"), streams=True,
    ),
    Route(
        method="PUT", path=_SANDBOX + "/files", scope="exec", summary="Replace a file by the body",
        answer=types.FileWritten, query=("path", "mode", "parents", "user"), streams=True,
    ),
    Route(
        method="POST", path=_SANDBOX + "/ports", scope="exec", summary="Expose a port; repeated, the same token",
        request=types.PortRequest, answer=types.PortInfo,
    ),
    Route(
        method="GET", path=_SANDBOX + "/ports", scope="exec",
        summary="Its exposed ports", answer=types.PortInfo, wrapped="ports",
    ),
    Route(
        method="DELETE", path=_SANDBOX + "/ports/{port}", scope="exec",
        summary="Expose a port no more; cuts its connections",
        answer=dict[str, Any],
    ),
    Route(
        method="GET", path=_SANDBOX + "/endpoints", scope="read", summary="Its endpoints and what they have done",
        answer=types.EndpointInfo, wrapped="endpoints",
    ),
    Route(
        method="POST", path=_SANDBOX + "/endpoints/{name}/close", scope="exec",
        summary="Close an endpoint; cuts its connections",
        answer=dict[str, Any],
    ),
    Route(
        method="PUT", path=_SANDBOX + "/network", scope="exec",
        summary="Change its network policy; cuts what does not fit it",
        request=types.NetworkRequest, answer=network.NetworkInfo,
    ),
    Route(
        method="GET", path=_SANDBOX + "/network", scope="read", summary="Its network policy, and what was counted",
        answer=network.NetworkInfo,
    ),
    Route(
        method="GET", path=_SANDBOX + "/events", scope="read",
        summary="What it tried and did not get, from the next of an answer on",
        answer=audit.AuditEvents, query=("start",),
    ),
    Route(
        method="GET", path=_SANDBOX + "/execs/{exec_id}/output", scope="read",
        summary="Much output (docs/protocols.md)",
        streams=True, upgrades=True, query=("stdout", "stderr"),
    ),
    Route(
        method="GET", path=_SANDBOX + "/transfer", scope="read",
        summary="Archives in and out (docs/protocols.md)", streams=True,
        upgrades=True, query=(
            "direction", "transfer_id", "resume", "offset", "path", "user", "parents", "owners", "follow", "name",
        ),
    ),
    Route(
        method="DELETE", path=_SANDBOX + "/transfers/{transfer_id}", scope="exec",
        summary="Cancel a transfer, confirmed",
        answer=dict[str, Any],
    ),
    Route(
        method="DELETE", path="/v1/creates/{key}", scope="exec",
        summary="Cancel a create by its key", answer=dict[str, Any],
    ),
    Route(
        method="POST", path="/v1/stop", scope="exec", summary="Stop many of the caller's own",
        request=types.StopFilter, answer=types.StopReport,
    ),
    Route(
        method="POST", path="/v1/jobs", scope="exec", summary="Take a job; idempotent by holder",
        request=JobRequest, answer=JobInfo,
    ),
    Route(method="GET", path="/v1/jobs", scope="read", summary="Jobs", answer=JobInfo, wrapped="jobs"),
    Route(method="GET", path="/v1/jobs/{name}", scope="read", summary="One job", answer=JobInfo),
    Route(
        method="POST", path="/v1/jobs/{name}/heartbeat", scope="exec", summary="Renew a job's lease",
        request=HeartbeatRequest, answer=JobInfo,
    ),
    Route(method="POST", path="/v1/jobs/{name}/stop", scope="exec", summary="End a job", answer=types.StopReport),
    Route(method="GET", path="/v1/images", scope="read", summary="Images", answer=ImageInfo, wrapped="images"),
    Route(
        method="POST", path="/v1/images/import", scope="admin", summary="Import an image; NDJSON of progress",
        request=ImportRequest, answer=ImageProgress, query=("reference", "format"), streams=True,
    ),
    Route(
        method="POST", path="/v1/images/build", scope="admin", summary="Build the default image; NDJSON of progress",
        request=dict[str, str], answer=ImageProgress, streams=True,
    ),
    Route(
        method="POST", path="/v1/images/collapse", scope="admin",
        summary="Make few layers of an image's many; NDJSON of progress",
        request=dict[str, str], answer=ImageProgress, streams=True,
    ),
    Route(
        method="POST", path="/v1/images/push", scope="admin",
        summary="Publish an image in a store; NDJSON of progress",
        request=ImagePushRequest, answer=ImageProgress, streams=True,
    ),
    Route(
        method="POST", path="/v1/images/fetch", scope="admin",
        summary="Fetch an image from a store; NDJSON of progress",
        request=ImageFetchRequest, answer=ImageProgress, streams=True,
    ),
    Route(method="GET", path="/v1/images/{reference...}", scope="read", summary="One image", answer=ImageInfo),
    Route(
        method="DELETE", path="/v1/images/{reference...}", scope="admin",
        summary="Remove an image", answer=dict[str, Any],
    ),
    Route(method="GET", path="/v1/layers", scope="read", summary="Layers", answer=LayerInfo, wrapped="layers"),
    Route(
        method="POST", path="/v1/layers", scope="admin", summary="Build a layer from a tar body",
        answer=LayerInfo, query=("reference", "at", "owner", "environment"), streams=True,
    ),
    Route(
        method="POST", path="/v1/layers/push", scope="admin",
        summary="Publish a layer in a store; NDJSON of progress",
        request=LayerPushRequest, answer=ImageProgress, streams=True,
    ),
    Route(
        method="POST", path="/v1/layers/pull", scope="admin",
        summary="Fetch a layer from a store; NDJSON of progress",
        request=LayerPullRequest, answer=ImageProgress, streams=True,
    ),
    Route(
        method="POST", path="/v1/layers/verify", scope="exec",
        summary="Hold a layer against its digest; NDJSON of progress",
        request=LayerVerifyRequest, answer=ImageProgress, streams=True,
    ),
    Route(
        method="POST", path="/v1/layers/evict", scope="admin", summary="Take a layer's files off the node for now",
        request=LayerEvictRequest, answer=LayerEvicted,
    ),
    Route(
        method="POST", path="/v1/layers/gc", scope="admin",
        summary="Remove layers that nothing needs, here or in a store",
        request=LayerCollectRequest, answer=LayerCollected,
    ),
    Route(
        method="POST", path="/v1/layers/check", scope="read", summary="Which files of a composition hide others",
        request=LayerCheckRequest, answer=LayerChecked,
    ),
    Route(
        method="POST", path="/v1/layers/diff", scope="read", summary="What differs between two layers",
        request=LayerDiffRequest, answer=LayerDifferences,
    ),
    Route(
        method="GET", path="/v1/layers/{reference...}", scope="read", summary="One layer", answer=LayerDetail,
    ),
    Route(
        method="DELETE", path="/v1/layers/{reference...}", scope="admin",
        summary="Remove a layer's tag, here or in a store",
        answer=dict[str, Any], query=("store",),
    ),
    Route(method="GET", path="/v1/stores", scope="read", summary="Stores", answer=StoreInfo, wrapped="stores"),
    Route(
        method="GET", path="/v1/stores/{name}/layers", scope="read", summary="The tags of a store",
        answer=StoredTag, wrapped="layers",
    ),
    Route(
        method="GET", path="/v1/stores/{name}/images", scope="read", summary="The images of a store",
        answer=StoredImage, wrapped="images",
    ),
)  # fmt: skip


def _pattern(path: str) -> str:
    parts = re.split(r"(\{[a-z_.]+\})", path)
    return "".join(
        (".+" if part.endswith("...}") else "[^/]+") if part.startswith("{") else re.escape(part) for part in parts
    )


_BY_PATH: dict[str, dict[str, Route]] = {}
for _route in ROUTES:
    _BY_PATH.setdefault(_route.path, {})[_route.method] = _route
_TABLES = list(_BY_PATH.values())
_PATHS = re.compile("|".join(f"(?P<r{number}>{_pattern(path)})" for number, path in enumerate(_BY_PATH)))


def match(method: str, path: str) -> Match | None:
    """The route of a request, or None. A path that exists with other methods is no match either."""
    found = _PATHS.fullmatch(path)
    if found is None or found.lastgroup is None:
        return None
    route = _TABLES[int(found.lastgroup[1:])].get(method)
    if route is None:
        return None
    parts = path.split("/", 4)
    sandbox = parts[3] if route.path.startswith(_SANDBOX) else None
    return Match(route, sandbox, path.rsplit("/", 1)[1])
