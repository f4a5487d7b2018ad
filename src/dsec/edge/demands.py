"""What a create request asks for, checked: limits with their requests, names, environment. Pure."""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec

from dsec.api import ids
from dsec.api.network import Network
from dsec.api.types import CreateRequest, Limit
from dsec.edge.admission import Need
from dsec.edge.endpoints import endpoint_specs
from dsec.errors import InvalidArgument, Unsupported
from dsec.network import compile_network, parse_network
from dsec.node.config import NodeConfig, Overcommit

__all__ = ["PROFILES", "Demand", "check_create", "check_env", "demand_of", "egress_of"]

_MIB = 1 << 20
_LEAST_MEMORY_MIB = 6.0
_LEAST_DISK_MIB = 1.0
_LEAST_CPU = 0.01
_LEAST_PIDS = 2
_MOST = {"cpu": 1e5, "memory_mib": 2**33, "disk_mib": 2**33, "pids": 4_194_304}
_DESCRIPTORS = 4
_NETWORK_DESCRIPTORS = 5
_MOST_ENV_BYTES = 1 << 20
_MOST_LABELS, _LABEL_LENGTH = 64, 256
_DEADLINE_S = 86400.0
_PATH_MAX = 4096
_MOST_PROTECTED, _PROTECTED_LENGTH = 32, 1024
_USER = re.compile(r"(?=.{1,256}\Z)[!-.0-9;-~]+(:[!-.0-9;-~]+)?")
"""As the runtime checks it: printable, no slash, at most one colon."""
PROFILES = ("default", "strict", "nested")
"""Names of isolation profiles; what they mean is the runtime's."""
_ENV_NAME = re.compile(r"[^=\x00]+")


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """Limits in the runtime's units, and what admission counts."""

    cpu_milli: int
    memory_bytes: int
    disk_bytes: int
    pids: int
    need: Need


def demand_of(request: CreateRequest, overcommit: Overcommit) -> Demand:
    """Limits and requests of a create; raises InvalidArgument for impossible ones."""
    cpu = _pair("cpu", request.cpu, overcommit.cpu, _LEAST_CPU)
    memory = _pair("memory_mib", request.memory_mib, overcommit.memory, _LEAST_MEMORY_MIB)
    disk = _pair("disk_mib", request.disk_mib, overcommit.disk, _LEAST_DISK_MIB)
    pids = _pair("pids", request.pids, overcommit.pids, _LEAST_PIDS)
    if pids[1] != int(pids[1]):
        raise InvalidArgument(f"pids must be a whole number, not {pids[1]:g}", phase="limits")
    need = Need(
        memory_bytes=math.ceil(memory[0] * _MIB),
        cpu_milli=math.ceil(cpu[0] * 1000),
        pids=math.ceil(pids[0]),
        disk_bytes=math.ceil(disk[0] * _MIB),
        descriptors=_DESCRIPTORS + (0 if request.network == "none" else _NETWORK_DESCRIPTORS),
        sandboxes=1,
    )
    return Demand(
        cpu_milli=math.ceil(cpu[1] * 1000),
        memory_bytes=int(memory[1] * _MIB),
        disk_bytes=int(disk[1] * _MIB),
        pids=int(pids[1]),
        need=need,
    )


def _pair(name: str, value: Limit, factor: float, least: float) -> tuple[float, float]:
    """(request, limit). A lone limit implies the request limit ÷ factor."""
    if isinstance(value, tuple):
        request, limit = (float(each) for each in value)
    else:
        limit = float(value)
        request = limit / factor
    for what, number in (("limit", limit), ("request", request)):
        if not math.isfinite(number) or number <= 0:
            raise _impossible(f"{name}: the {what} {number} is not a positive number", least, _MOST[name])
    if limit < least:
        raise _impossible(f"{name}: the limit {limit:g} is below the least, {least:g}", least, _MOST[name])
    if limit > _MOST[name]:
        raise _impossible(f"{name}: the limit {limit:g} is above the most, {_MOST[name]:g}", least, _MOST[name])
    if request > limit:
        raise _impossible(f"{name}: the request {request:g} is above the limit {limit:g}", least, limit)
    return request, limit


_WAITS: tuple[tuple[str, object, str], ...] = (
    ("backend", "container", "other backends come with microVMs"),
    ("mounts", (), "mounts are not built yet"),
    ("qos", "latency", "qos classes are not built yet"),
)


def egress_of(asked: object, config: NodeConfig) -> tuple[Network | None, dict[str, Any] | None]:
    """A network policy and what it is compiled to; raises InvalidArgument, NotFound, Unsupported."""
    network = parse_network(asked)
    if network is None:
        return None, None
    return network, msgspec.to_builtins(compile_network(network, config.network))


def check_create(request: CreateRequest, config: NodeConfig) -> None:
    """Refuse what this node does not do (Unsupported, naming the field) or what makes no sense (InvalidArgument)."""
    for field, only, why in _WAITS:
        if getattr(request, field) != only:
            raise Unsupported(f"{field}={getattr(request, field)!r}: {why}", remedy=f"Leave {field} out")
    ids.check_key(request.key)
    if request.name is not None:
        ids.check_name(request.name)
    if request.job is not None:
        ids.check_job(request.job)
    if request.from_disk is not None:
        ids.check_sandbox_id(request.from_disk)
    if request.from_snapshot is not None:
        ids.check_snapshot_id(request.from_snapshot)
        if request.from_disk is not None:
            raise InvalidArgument("a sandbox begins with a disk or with a snapshot, not with both")
    if not request.image:
        raise InvalidArgument("image is empty")
    _time("deadline_s", request.deadline_s, _DEADLINE_S)
    _time("idle_timeout_s", request.idle_timeout_s, config.max_idle_s)
    _time("lifetime_s", request.lifetime_s, config.max_lifetime_s)
    if request.exec_timeout_s is not None:
        _time("exec_timeout_s", request.exec_timeout_s, math.inf)
    if request.profile not in PROFILES:
        raise Unsupported(
            f"profile={request.profile[:80]!r}: there is no such profile", remedy=f"Use one of {', '.join(PROFILES)}"
        )
    check_protected(request.protected)
    if not 0 <= request.shm_mib <= 2**20:
        raise InvalidArgument(f"shm_mib must be between 0 and {2**20}, not {request.shm_mib:g}")
    if request.workdir is not None and not _is_absolute_path(request.workdir):
        raise InvalidArgument(f"workdir must be an absolute path, not {request.workdir[:80]!r}")
    if request.user and not _USER.fullmatch(request.user):
        raise InvalidArgument(f"user must be a name or number, or two with a colon, not {request.user[:80]!r}")
    if isinstance(request.command, list) and not request.command:
        raise InvalidArgument("command is empty")
    endpoint_specs(request.endpoints)
    egress_of(request.network, config)
    if request.command is None and (request.pty is not None or request.stdin):
        raise InvalidArgument("pty and stdin are the main process's, and there is none", remedy="Say command=")
    check_env(request.env)
    _check_labels(request.labels)


def check_protected(paths: tuple[str, ...]) -> None:
    """Raise InvalidArgument for what cannot be protected; the runtime finds out whether it is there."""
    if len(paths) > _MOST_PROTECTED:
        raise InvalidArgument(f"more than {_MOST_PROTECTED} protected paths")
    for path in paths:
        parts = path[1:].split("/")
        plain = (
            _is_absolute_path(path) and not {"", ".", ".."} & set(parts) and len(path.encode()) <= _PROTECTED_LENGTH
        )
        if not plain or parts[0] in ("proc", "sys", "dev"):
            raise InvalidArgument(
                f"{path[:80]!r} cannot be protected",
                remedy="Name absolute paths without dots, outside of /proc, /sys and /dev",
            )


def _is_absolute_path(path: str) -> bool:
    return path.startswith("/") and "\0" not in path and len(path) < _PATH_MAX


def _time(name: str, value: float, most: float) -> None:
    if not value > 0 or not (math.isfinite(value) and value <= most):
        bound = f" and at most {most:g}" if math.isfinite(most) else ""
        raise InvalidArgument(f"{name} must be above 0{bound}, not {value:g}")


def check_env(env: dict[str, str]) -> None:
    """Raise InvalidArgument for an environment that no program could be given."""
    total = 0
    for name, value in env.items():
        if not _ENV_NAME.fullmatch(name) or "\0" in value:
            raise InvalidArgument(f"invalid environment variable {name[:80]!r}")
        total += len(name) + len(value) + 2
    if total > _MOST_ENV_BYTES:
        raise InvalidArgument(f"the environment is larger than {_MOST_ENV_BYTES} bytes")


def _check_labels(labels: dict[str, str]) -> None:
    if len(labels) > _MOST_LABELS:
        raise InvalidArgument(f"more than {_MOST_LABELS} labels")
    for name, value in labels.items():
        if not name or len(name) > _LABEL_LENGTH or len(value) > _LABEL_LENGTH:
            raise InvalidArgument(f"label {name[:80]!r}: name and value have at most {_LABEL_LENGTH} characters")


def _impossible(message: str, least: float, most: float) -> InvalidArgument:
    return InvalidArgument(message, phase="limits", remedy=f"Ask for {least:g} to {most:g}")
