"""Complete requests to the runtime, from records and from what a client asked. Pure."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import msgspec

from dsec.api import ids
from dsec.api.types import CreateRequest, Pty
from dsec.backends.wire import ExecSpec, PtySize, SandboxSpec
from dsec.edge.demands import check_env
from dsec.edge.job_record import lease_of
from dsec.edge.record import SandboxRecord, hostname_of
from dsec.errors import InvalidArgument, Unsupported

__all__ = [
    "AS_FOUND",
    "MAX_OUTPUT_BYTES",
    "SHELLS",
    "ExecRequest",
    "canonical_create",
    "canonical_exec",
    "check_cwd",
    "check_output_bytes",
    "check_times",
    "env_list",
    "exec_spec",
    "main_exec_id",
    "parse_exec",
    "refused",
    "sandbox_spec",
    "shortened",
    "whole_ms",
    "with_terminal",
]

MAX_OUTPUT_BYTES = 64 << 20
_DEFAULT_OUTPUT_BYTES = 10 << 20
SHELLS = [b"/bin/bash", b"/bin/sh"]
AS_FOUND = b""
"""As argv[0]: the path found. Bash called `sh` would behave as one, busybox called `bash` not at all."""
_MAIN_KEY = "main process"
"""Has a space, so that it is no caller's key."""
_MOST_ARGV_BYTES = 4 << 20
_MOST_SCRIPT_BYTES = 10 << 20
_ARGUMENT_BYTES = 128 << 10
"""Most that the kernel takes as one argument, the NUL after it included (MAX_ARG_STRLEN)."""
_LONG_SCRIPT = b". /dev/fd/9"
_CLOSING = b"exec 9<&-; "
"""On the script's own first line, so that line numbers stay and nothing that it starts has the descriptor."""
_MOST_RECORDED_BYTES = 4096
_FOREVER_S = 10.0**9

_canonical = msgspec.json.Encoder(order="sorted").encode
_canonical_packed = msgspec.msgpack.Encoder(order="sorted").encode


class ExecRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of the WebSocket's ``exec``."""

    sandbox_id: str
    key: str
    argv: list[bytes] | None = None
    shell: str | None = None
    """A script that is no UTF-8 comes as bytes, and has Python's escapes here."""
    login: bool = False
    cwd: str | None = None
    env: dict[str, str] | None = None
    user: str | None = None
    timeout_s: float | None = None
    grace_s: float = 2.0
    stdin: bool = False
    max_output_bytes: int = _DEFAULT_OUTPUT_BYTES
    backpressure: bool = False
    merge_stderr: bool = False
    pty: Pty | None = None
    mode: str = "collect"
    credit: dict[int, int] = {}


_NOT_BODY = ("mode", "credit", "max_output_bytes")


def canonical_exec(request: ExecRequest) -> bytes:
    """Hash of what is run: how its output is fetched is left out."""
    fields = msgspec.structs.asdict(request)
    for name in _NOT_BODY:
        del fields[name]
    if request.shell is not None and not request.shell.isascii():
        fields["shell"] = _bytes(request.shell)
    return hashlib.sha256(_canonical_packed(fields)).digest()


def canonical_create(request: CreateRequest) -> bytes:
    """Hash of what is made: how long the caller waits is left out."""
    fields = msgspec.structs.asdict(request)
    for name in ("deadline_s", "on_full"):
        del fields[name]
    return hashlib.sha256(_canonical(fields)).digest()


def parse_exec(params: Any) -> ExecRequest:
    """Check an ``exec``; raises Unsupported (naming an unknown field) or InvalidArgument."""
    if isinstance(params, dict) and isinstance(params.get("shell"), bytes):
        params = params | {"shell": params["shell"].decode(errors="surrogateescape")}
    try:
        request = msgspec.convert(params, ExecRequest, strict=False)
    except msgspec.ValidationError as error:
        raise refused(error) from None
    ids.check_key(request.key)
    if (request.argv is None) == (request.shell is None):
        raise InvalidArgument("an exec has either argv or shell")
    if request.argv is not None:
        _check_argv(request.argv)
    if request.shell is not None:
        _check_script(_bytes(request.shell))
    if request.mode not in ("collect", "stream", "detach"):
        raise InvalidArgument(f"unknown mode {request.mode!r}")
    check_times(request.timeout_s, request.grace_s)
    check_output_bytes(request.max_output_bytes)
    check_cwd(request.cwd)
    check_env(request.env or {})
    return request


def check_times(timeout_s: float | None, grace_s: float) -> None:
    """Raise InvalidArgument unless both are times that make sense."""
    if timeout_s is not None and not 0 < timeout_s < _FOREVER_S:
        raise InvalidArgument(f"timeout_s must be above 0, not {timeout_s}")
    if not 0 <= grace_s <= 3600:
        raise InvalidArgument(f"grace_s must be between 0 and 3600, not {grace_s}")


def check_cwd(cwd: str | None) -> None:
    """Raise InvalidArgument unless it is absolute."""
    if cwd is not None and not cwd.startswith("/"):
        raise InvalidArgument(f"cwd must be an absolute path, not {cwd!r}", phase="cwd", remedy="Begin it with /")


def _check_script(script: bytes) -> None:
    if b"\0" in script:
        raise InvalidArgument("the script contains a NUL byte")
    if len(script) > _MOST_SCRIPT_BYTES:
        raise InvalidArgument(
            f"the script is {len(script)} bytes long, more than {_MOST_SCRIPT_BYTES}",
            remedy="Write it to a file and run that",
        )


def check_output_bytes(number: int) -> None:
    """Raise InvalidArgument unless it is at most 64 MiB."""
    if not 0 <= number <= MAX_OUTPUT_BYTES:
        raise InvalidArgument(f"max_output_bytes must be between 0 and {MAX_OUTPUT_BYTES}, not {number}")


def _check_argv(argv: list[bytes]) -> None:
    if not argv or not argv[0]:
        raise InvalidArgument("argv is empty")
    if any(b"\0" in each for each in argv):
        raise InvalidArgument("an argument contains a NUL byte")
    if sum(map(len, argv)) > _MOST_ARGV_BYTES:
        raise InvalidArgument(f"the arguments are longer than {_MOST_ARGV_BYTES} bytes")


def refused(error: msgspec.ValidationError) -> InvalidArgument | Unsupported:
    """The typed error of a request of the wrong shape: Unsupported for an unknown field, naming it."""
    text = str(error)
    if "unknown field" in text:
        return Unsupported(f"this server does not know the request's {text.partition('unknown ')[2]}")
    return InvalidArgument(text)


def exec_spec(record: SandboxRecord, request: ExecRequest, exec_id: str) -> ExecSpec:
    """The complete request: image's env under sandbox's under exec's, default directory and user."""
    env = record.env | request.env if request.env else record.env
    shell = None if request.shell is None else _bytes(request.shell)
    is_long = shell is not None and len(shell) >= _ARGUMENT_BYTES
    word = _LONG_SCRIPT if is_long else shell or b""
    timeout_s = record.exec_timeout_s if request.timeout_s is None else request.timeout_s
    return ExecSpec(
        exec_id=exec_id,
        sandbox_id=record.id,
        argv=request.argv or [AS_FOUND, b"-lc" if request.login else b"-c", word],
        programs=None if shell is None else SHELLS,
        env=env_list(env if request.pty is None else with_terminal(env)),
        cwd=(request.cwd or record.workdir).encode(errors="surrogateescape"),
        create_cwd=request.cwd is None,
        user=record.user if request.user is None else request.user,
        timeout_ms=None if timeout_s is None else whole_ms(timeout_s),
        grace_ms=whole_ms(request.grace_s),
        stdin=request.stdin or request.pty is not None,
        backpressure=request.backpressure,
        max_output_bytes=request.max_output_bytes,
        is_main=False,
        merge_stderr=request.merge_stderr,
        pty=_size(request.pty),
        script=_CLOSING + shell if shell is not None and is_long else None,
    )


def with_terminal(env: dict[str, str]) -> dict[str, str]:
    """What programs at a terminal expect of their environment, where nobody has said otherwise."""
    assumed = {"TERM": "xterm-256color"}
    if not any(name == "LANG" or name.startswith("LC_") for name in env):
        assumed |= {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}
    return assumed | env


def _size(pty: Pty | None) -> PtySize | None:
    return None if pty is None else PtySize(rows=pty.rows, cols=pty.cols)


def _bytes(script: str) -> bytes:
    return script.encode(errors="surrogateescape")


def shortened(argv: list[bytes]) -> list[bytes]:
    """The beginning of the arguments, as records and listings hold it."""
    kept, room = [], _MOST_RECORDED_BYTES
    for word in argv:
        if room <= 0:
            break
        kept.append(word[:room])
        room -= len(word) + 1
    return kept


def main_exec_id(sandbox_id: str) -> str:
    """ID of a sandbox's main process."""
    return ids.exec_id(sandbox_id, _MAIN_KEY)


def sandbox_spec(record: SandboxRecord) -> SandboxSpec:
    """What the runtime is asked to make; the same for each try."""
    return SandboxSpec(
        sandbox_id=record.id,
        layers=record.layers,
        memory_bytes=record.demand.memory_bytes,
        cpu_milli=record.demand.cpu_milli,
        pids=record.demand.pids,
        disk_bytes=record.demand.disk_bytes,
        shm_bytes=record.shm_bytes,
        hostname=hostname_of(record.id, record.name),
        profile=record.profile,
        idle_timeout_ms=whole_ms(record.idle_timeout_s),
        lifetime_ms=whole_ms(record.lifetime_s),
        main=_main(record),
        job=None if record.job is None else lease_of(record.project, record.job),
        from_disk=record.from_disk,
        from_snapshot=record.from_snapshot,
        endpoints=record.endpoints,
        egress=record.egress,
        protected=record.protected,
    )


def _main(record: SandboxRecord) -> ExecSpec | None:
    if record.command is None:
        return None
    return ExecSpec(
        exec_id=main_exec_id(record.id),
        sandbox_id=record.id,
        argv=[each.encode(errors="surrogateescape") for each in record.command],
        programs=None,
        env=env_list(record.env if record.pty is None else with_terminal(record.env)),
        cwd=record.workdir.encode(errors="surrogateescape"),
        create_cwd=True,
        user=record.user,
        timeout_ms=None,
        grace_ms=2000,
        stdin=record.stdin or record.pty is not None,
        backpressure=False,
        max_output_bytes=_DEFAULT_OUTPUT_BYTES,
        is_main=True,
        pty=_size(record.pty),
    )


def env_list(env: dict[str, str]) -> list[bytes]:
    """``K=V`` each."""
    return [f"{name}={value}".encode(errors="surrogateescape") for name, value in env.items()]


def whole_ms(seconds: float) -> int:
    """Milliseconds, at least 1 for anything above 0."""
    return math.ceil(seconds * 1000)
