"""What a sandbox is asked to be: SandboxArgs, and the paper's names for the same fields."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, Unpack

from dsec.api.types import CreateRequest, Endpoint, Limit, Pty
from dsec.errors import InvalidArgument, Unsupported

__all__ = ["ALIASES", "DSecContainerRunArgs", "SandboxArgs", "SandboxFields", "args_of"]

ALIASES: Mapping[str, str] = {
    "container_image": "image",
    "memory_limit_mb": "memory_mib",
    "cpu_cores_limit": "cpu",
    "ttl_running_stop": "idle_timeout_s",
    "network_rules": "network",
    "init_user": "user",
}
"""The paper's names of fields."""


class SandboxFields(TypedDict, total=False):
    """Every field of SandboxArgs but the image, and the paper's aliases."""

    backend: str
    workspace: str | None
    toolkits: Sequence[str]
    cpu: Limit
    memory_mib: Limit
    disk_mib: Limit
    pids: Limit
    shm_mib: float
    env: Mapping[str, str]
    workdir: str | None
    user: str | None
    command: Literal["image"] | Sequence[str] | None
    pty: Pty | None
    stdin: bool
    network: object
    endpoints: Mapping[str, str | Endpoint]
    mounts: Sequence[str]
    idle_timeout_s: float
    lifetime_s: float
    exec_timeout_s: float | None
    qos: str
    profile: str
    protected: Sequence[str]
    labels: Mapping[str, str]
    name: str | None
    from_disk: str | None
    from_snapshot: str | None
    pull: Literal["missing", "always", "never"]
    container_image: str
    memory_limit_mb: float
    cpu_cores_limit: float
    ttl_running_stop: float
    network_rules: object
    init_user: str | None


@dataclass(frozen=True, init=False)
class SandboxArgs:
    """What a sandbox is made of; immutable, reusable, see ``replace``.

    ``image``: an image's name, or a base layer's, ``base/NAME:VERSION``.
    Limits (``cpu``, ``memory_mib``, ``disk_mib``, ``pids``): a number is the limit, a pair is (request, limit); the
    node admits requests. ``pty`` and ``stdin`` are the main process's (``command``). Times in seconds.
    ``profile``: how it is isolated, ``default``, ``strict`` or ``nested`` (docs/security.md).
    ``protected``: paths of the image that not even root inside can change, move away or cover (``verify_protected``).
    ``from_disk``: ID of a sandbox that was stopped with ``keep="disk"``; the new one, of the same image, begins
    with a copy of what it had written, and with its environment. ``from_snapshot``: likewise the ID of a snapshot,
    whose ``args`` have the rest. ``endpoints``: name → URL on the trusted side, or
    Endpoint with limits; reachable inside as ``http://NAME.dsec.internal``, and nothing else is. The paper's names
    (``container_image``, ``memory_limit_mb``, …) are taken as well. Raises InvalidArgument for a field that does not
    exist or a limit that is no positive number; the rest is checked by the node.
    """

    image: str
    backend: str = "container"
    workspace: str | None = None
    toolkits: tuple[str, ...] = ()
    cpu: Limit = 2
    memory_mib: Limit = 1024
    disk_mib: Limit = 10240
    pids: Limit = 4096
    shm_mib: float = 64
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    workdir: str | None = None
    user: str | None = None
    command: Literal["image"] | Sequence[str] | None = None
    pty: Pty | None = None
    stdin: bool = False
    network: object = "none"
    endpoints: Mapping[str, str | Endpoint] = dataclasses.field(default_factory=dict)
    mounts: tuple[str, ...] = ()
    idle_timeout_s: float = 900
    lifetime_s: float = 14400
    exec_timeout_s: float | None = None
    qos: str = "latency"
    profile: str = "default"
    protected: tuple[str, ...] = ()
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    name: str | None = None
    from_disk: str | None = None
    from_snapshot: str | None = None
    pull: Literal["missing", "always", "never"] = "missing"

    def __init__(self, image: str | None = None, **fields: Unpack[SandboxFields]) -> None:
        given = _canonical(fields)
        if image is not None:
            _put(given, "image", image)
        if "image" not in given:
            raise InvalidArgument("a sandbox needs an image", remedy='For example SandboxArgs("dsec/debian:12")')
        for field in dataclasses.fields(self):
            if field.name in given:
                value = _checked(field.name, given[field.name])
            elif field.default is not dataclasses.MISSING:
                value = field.default
            else:
                value = {}
            object.__setattr__(self, field.name, value)

    def replace(self, **fields: Any) -> SandboxArgs:
        """A copy with some fields changed; takes what the constructor takes."""
        changed = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return SandboxArgs(**(changed | _canonical(fields)))

    def request(
        self, *, key: str, deadline_s: float, on_full: Literal["wait", "raise"], job: str | None = None
    ) -> CreateRequest:
        """The wire form of a create."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return CreateRequest(key=key, deadline_s=deadline_s, on_full=on_full, job=job, **values)


class DSecContainerRunArgs(SandboxArgs):
    """The paper's form: the same fields, under its names or ours."""


def args_of(image_or_args: str | SandboxArgs, fields: Mapping[str, Any]) -> SandboxArgs:
    """SandboxArgs from what a create was given."""
    if isinstance(image_or_args, SandboxArgs):
        return image_or_args.replace(**fields) if fields else image_or_args
    return SandboxArgs(image_or_args, **fields)


_NAMES = frozenset(SandboxFields.__annotations__) | {"image"}


def _canonical(fields: Mapping[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, value in fields.items():
        if name not in _NAMES:
            raise Unsupported(f"SandboxArgs has no field {name!r}", remedy="See SandboxArgs for the fields there are")
        _put(given, ALIASES.get(name, name), value)
    return given


def _put(given: dict[str, Any], name: str, value: Any) -> None:
    if name in given:
        raise InvalidArgument(f"{name!r} is given twice, once by an alias")
    given[name] = value


def _checked(name: str, value: Any) -> Any:
    if name in ("cpu", "memory_mib", "disk_mib", "pids"):
        return _limit(name, value)
    if name in ("toolkits", "mounts", "protected"):
        if isinstance(value, str):
            raise InvalidArgument(f"{name} is a sequence of strings, not one string")
        return tuple(value)
    if name == "network" and isinstance(value, Mapping):
        return dict(value)
    if name in ("env", "labels", "endpoints"):
        return dict(value)
    if name in ("shm_mib", "idle_timeout_s", "lifetime_s") or (name == "exec_timeout_s" and value is not None):
        return _positive(name, value)
    if name == "command" and value is not None and value != "image":
        if isinstance(value, str):
            raise InvalidArgument('command is "image", None or a list of words, not one string')
        return [str(word) for word in value]
    return value


def _limit(name: str, value: Any) -> Limit:
    if isinstance(value, tuple | list):
        if len(value) != 2:
            raise InvalidArgument(f"{name} is a limit or a pair (request, limit), not {value!r}")
        return _positive(name, value[0]), _positive(name, value[1])
    return _positive(name, value)


def _positive(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise InvalidArgument(
            f"{name} must be a positive number, not {value!r}",
            argument=name,
            remedy="Give a finite number above 0, or leave it out for the default",
        )
    return value
