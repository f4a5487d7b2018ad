"""Sessions and their runs: requests completed from records, the intent committed before, the outcome after."""

from __future__ import annotations

import hashlib
from typing import Any, TypeVar

import msgspec

from dsec.api import ids
from dsec.backends.wire import ExecSpec, RunEnd, answer
from dsec.edge.core import Core, gone
from dsec.edge.demands import check_env
from dsec.edge.faults import fault
from dsec.edge.opening import Opening
from dsec.edge.record import SandboxRecord
from dsec.edge.specs import (
    AS_FOUND,
    SHELLS,
    check_cwd,
    check_output_bytes,
    check_times,
    env_list,
    refused,
    whole_ms,
)
from dsec.errors import Conflict, InvalidArgument, NotFound, error_from_wire

__all__ = ["OpenRequest", "Sessions", "parse_open", "session_body", "session_spec"]

T = TypeVar("T")
_canonical = msgspec.msgpack.Encoder(order="sorted").encode
_MOST_SCRIPT_BYTES = 16 << 20


class OpenRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of the WebSocket's ``session.open``."""

    sandbox_id: str
    key: str
    shell: list[bytes] | None = None
    cwd: str | None = None
    env: dict[str, str] | None = None
    user: str | None = None


class RunRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of ``session.run``. ``script``, or its ``length`` and ``sha256`` when it follows on channel 0."""

    sandbox_id: str
    session_id: str
    key: str
    script: bytes | None = None
    length: int | None = None
    sha256: str | None = None
    timeout_s: float | None = None
    grace_s: float = 2.0
    max_output_bytes: int = 10 << 20
    merge_stderr: bool = False


class CancelRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of ``session.cancel``."""

    sandbox_id: str
    session_id: str
    key: str
    grace_s: float = 2.0


class CloseRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of ``session.close``."""

    sandbox_id: str
    session_id: str
    grace_s: float = 2.0


def parse_open(params: Any) -> OpenRequest:
    """Check a ``session.open``; raises Unsupported (naming an unknown field) or InvalidArgument."""
    request = _converted(params, OpenRequest)
    ids.check_key(request.key)
    if request.shell is not None and (not request.shell or not request.shell[0]):
        raise InvalidArgument("the shell is empty")
    if any(b"\0" in each for each in request.shell or ()):
        raise InvalidArgument("an argument contains a NUL byte")
    check_cwd(request.cwd)
    check_env(request.env or {})
    return request


def session_body(request: OpenRequest) -> bytes:
    """Hash of what is opened."""
    return hashlib.sha256(_canonical(msgspec.structs.asdict(request))).digest()


def session_spec(record: SandboxRecord, request: OpenRequest, exec_id: str) -> ExecSpec:
    """The shell's exec; the runtime adds the name of what it reads its commands from."""
    return ExecSpec(
        exec_id=exec_id,
        sandbox_id=record.id,
        argv=request.shell or [AS_FOUND],
        programs=None if request.shell else SHELLS,
        env=env_list(record.env | (request.env or {})),
        cwd=(request.cwd or record.workdir).encode(errors="surrogateescape"),
        create_cwd=request.cwd is None,
        user=record.user if request.user is None else request.user,
        timeout_ms=None,
        grace_ms=2000,
        stdin=False,
        backpressure=False,
        max_output_bytes=10 << 20,
        is_main=False,
    )


class Sessions:
    """Runs of the node's sessions. The session itself is one of ``Execs``."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def open(self, method: str, params: Any) -> Opening:
        """Complete a ``session.run``, ``session.cancel`` or ``session.close``.

        Raises InvalidArgument, Unsupported, NotFound, SandboxGone, Conflict (same key, another run).
        """
        if method == "session.run":
            return self._run(params)
        if method == "session.cancel":
            cancel = _converted(params, CancelRequest)
            more = {"run_id": ids.exec_id(cancel.session_id, ids.check_key(cancel.key))}
            return self._to_session(method, cancel, more)
        return self._to_session(method, _converted(params, CloseRequest), {})

    def _to_session(self, method: str, request: CancelRequest | CloseRequest, more: dict[str, str]) -> Opening:
        check_times(None, request.grace_s)
        record = self._session(request.sandbox_id, request.session_id)
        if not record.is_live:
            raise gone(record)
        sent = {
            "sandbox_id": record.id,
            "session_id": request.session_id,
            "grace_ms": whole_ms(request.grace_s),
        } | more
        if method == "session.close":
            fault("edge.close.asked")
        return Opening(method=method, params=sent, sandbox_id=record.id, exec_id=request.session_id)

    def _session(self, sandbox_id: str, session_id: str) -> SandboxRecord:
        record = self._core.find(sandbox_id)
        ids.check_exec_id(session_id)
        if self._core.records.exec(record.id, session_id) is None:
            raise NotFound(f"no session {session_id}", sandbox_id=record.id, exec_id=session_id)
        return record

    def _run(self, params: Any) -> Opening:
        request = _converted(params, RunRequest)
        _check_run(request)
        record = self._session(request.sandbox_id, request.session_id)
        run_id = ids.exec_id(request.session_id, request.key)
        known = self._core.records.runs.find(record.id, run_id)
        body = _run_body(request)
        if known is not None and known.body != body:
            raise Conflict(f"the key {request.key!r} was used for another run", sandbox_id=record.id, exec_id=run_id)
        if known is not None and known.error is not None:
            raise error_from_wire(known.error)
        if not record.is_live:
            if known is None or known.end is None:
                raise gone(record)
            tail = {"sandbox_id": record.id, "exec_id": request.session_id, "bytes": 64 << 20}
            return Opening(method="output.tail", params=tail, sandbox_id=record.id, exec_id=run_id, outcome=known)
        if known is None:
            self._core.counters["runs", "started"] += 1
            self._core.records.runs.begin(record.id, run_id, body)
            fault("edge.run.intended")
        return Opening(
            method="session.run",
            params=_run_params(record, request, run_id),
            sandbox_id=record.id,
            exec_id=run_id,
            outcome=known if known is not None and known.is_over else None,
            began=known is None,
        )

    def ended(self, opening: Opening, raw: Any) -> None:
        """Commit the ``end`` of a run."""
        fault("edge.run.ended")
        self._core.records.runs.end(opening.sandbox_id, opening.exec_id, end=answer(raw, RunEnd))
        fault("edge.run.committed")

    def refused(self, opening: Opening, wire: dict[str, Any]) -> None:
        """Commit the ``error`` of a run; one that may be tried again leaves no trace, if nothing had begun."""
        error = error_from_wire(wire)
        if not error.retryable:
            self._core.records.runs.end(opening.sandbox_id, opening.exec_id, error=error.to_wire())
        elif opening.began:
            self._core.records.runs.drop(opening.sandbox_id, opening.exec_id)


def _converted(params: Any, kind: type[T]) -> T:
    try:
        return msgspec.convert(params, kind, strict=False)
    except msgspec.ValidationError as error:
        raise refused(error) from None


def _check_run(request: RunRequest) -> None:
    ids.check_key(request.key)
    check_times(request.timeout_s, request.grace_s)
    check_output_bytes(request.max_output_bytes)
    if request.script is None:
        if request.length is None or request.sha256 is None:
            raise InvalidArgument("a run has a script, or its length and sha256")
        if not 0 < request.length <= _MOST_SCRIPT_BYTES:
            raise InvalidArgument(
                f"a script has at most {_MOST_SCRIPT_BYTES} bytes, not {request.length}",
                remedy="Write it to a file, and let the script source that",
            )
    elif request.length is not None or request.sha256 is not None:
        raise InvalidArgument("a run has one script")
    elif b"\0" in request.script:
        raise InvalidArgument("the script contains a NUL byte")


def _run_body(request: RunRequest) -> bytes:
    """Hash of what is run: how its output is fetched is left out."""
    digest = request.sha256
    if request.script is not None:
        digest = hashlib.sha256(request.script).hexdigest()
    told = [digest, request.timeout_s, request.grace_s]
    return hashlib.sha256(_canonical([*told, True] if request.merge_stderr else told)).digest()


def _run_params(record: SandboxRecord, request: RunRequest, run_id: str) -> dict[str, Any]:
    timeout_s = record.exec_timeout_s if request.timeout_s is None else request.timeout_s
    return {
        "sandbox_id": record.id,
        "session_id": request.session_id,
        "run_id": run_id,
        "script": request.script,
        "length": request.length,
        "timeout_ms": None if timeout_s is None else whole_ms(timeout_s),
        "grace_ms": whole_ms(request.grace_s),
        "max_output_bytes": request.max_output_bytes,
        "merge_stderr": request.merge_stderr,
    }
