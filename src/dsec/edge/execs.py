"""Execs: intent recorded before the start, outcome before anybody is told; what to open for a known key."""

from __future__ import annotations

from typing import Any

import msgspec

from dsec.api import ids
from dsec.api.types import ExecInfo, KillRequest, Pty
from dsec.backends.wire import ExecEnd, ExecSpec, answer
from dsec.edge.core import Core, gone
from dsec.edge.faults import fault
from dsec.edge.file_streams import FileOpening
from dsec.edge.opening import Opening
from dsec.edge.record import ExecRecord, SandboxRecord, exec_info
from dsec.edge.sessions import Sessions, parse_open, session_body, session_spec
from dsec.edge.specs import canonical_exec, check_output_bytes, exec_spec, parse_exec, refused, shortened, whole_ms
from dsec.errors import Conflict, InvalidArgument, NotFound, error_from_wire

__all__ = ["AttachRequest", "Execs"]

_ATTACHABLE = frozenset({"executable_not_found", "not_executable", "invalid_argument"})


class AttachRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of the WebSocket's ``attach``."""

    sandbox_id: str
    exec_id: str
    mode: str = "collect"
    offsets: dict[int, int] = {}
    credit: dict[int, int] = {}
    max_output_bytes: int | None = None
    writer: int = 0


class _Kill(KillRequest, frozen=True, kw_only=True):
    sandbox_id: str
    exec_id: str


def _checked(asked: KillRequest) -> tuple[int | None, int]:
    """The signal, and the grace in milliseconds."""
    if asked.signal is not None and not 1 <= asked.signal <= 64:
        raise InvalidArgument(f"no signal has the number {asked.signal}")
    if not 0 <= asked.grace_s <= 3600:
        raise InvalidArgument(f"grace_s must be between 0 and 3600, not {asked.grace_s:g}")
    return asked.signal, whole_ms(asked.grace_s)


class Execs:
    """The execs of the node."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.sessions = Sessions(core)

    def open(self, params: Any) -> Opening:
        """Complete a client's ``exec`` and commit the intent; a known key becomes an attach.

        Raises InvalidArgument, Unsupported, NotFound, SandboxGone, Conflict (same key, another body).
        """
        request = parse_exec(params)
        record = self._core.find(request.sandbox_id)
        exec_id = ids.exec_id(record.id, request.key)
        known = self._core.records.exec(record.id, exec_id)
        body = canonical_exec(request)
        if known is not None and known.body != body:
            raise Conflict(
                f"the key {request.key!r} was used for another exec", sandbox_id=record.id, exec_id=exec_id
            )
        if known is not None and (known.is_over or not record.is_live):
            return self._again(
                record, known, AttachRequest(
                    sandbox_id=record.id, exec_id=exec_id, mode=request.mode, credit=request.credit,
                    max_output_bytes=request.max_output_bytes,
                ),
            )  # fmt: skip
        record = self._core.running(record.id)
        spec = exec_spec(record, request, exec_id)
        if known is None:
            argv = spec.argv if request.shell is None else [b"sh", *spec.argv[1:]]
            self._begin(record, spec, argv, body)
        params = msgspec.structs.asdict(spec) | {"mode": request.mode, "credit": request.credit}
        return Opening(method="exec.start", params=params, sandbox_id=record.id, exec_id=exec_id, began=known is None)

    def open_session(self, params: Any) -> Opening:
        """Complete a client's ``session.open`` and commit the intent; a known key joins it. Raises as ``open``."""
        request = parse_open(params)
        record = self._core.find(request.sandbox_id)
        exec_id = ids.exec_id(record.id, request.key)
        known = self._core.records.exec(record.id, exec_id)
        body = session_body(request)
        if known is not None and known.body != body:
            raise Conflict(
                f"the key {request.key!r} was used for another exec", sandbox_id=record.id, exec_id=exec_id
            )
        if not record.is_live:
            raise gone(record)
        if known is not None and known.is_over:
            return self._again(record, known, AttachRequest(sandbox_id=record.id, exec_id=exec_id, mode="detach"))
        record = self._core.running(record.id)
        spec = session_spec(record, request, exec_id)
        if known is None:
            self._begin(record, spec, request.shell or [b"sh"], body)
            fault("edge.open.intended")
        sent = msgspec.structs.asdict(spec) | {"mode": "detach", "credit": {}}
        return Opening(method="session.open", params=sent, sandbox_id=record.id, exec_id=exec_id, began=known is None)

    def _begin(self, record: SandboxRecord, spec: ExecSpec, argv: list[bytes], body: bytes) -> None:
        self._core.counters["execs", "started"] += 1
        self._core.records.begin_exec(
            ExecRecord(
                sandbox_id=record.id,
                exec_id=spec.exec_id,
                body=body,
                argv=shortened(argv),
                started_at=self._core.clock(),
                merge_stderr=spec.merge_stderr or spec.pty is not None,
                stdin=spec.stdin,
                pty=spec.pty is not None,
            )
        )

    def attach(self, params: Any) -> Opening:
        """Complete a client's ``attach``; raises InvalidArgument, Unsupported, NotFound."""
        try:
            request = msgspec.convert(params, AttachRequest, strict=False)
        except msgspec.ValidationError as error:
            raise refused(error) from None
        if request.mode not in ("collect", "stream", "detach"):
            raise InvalidArgument(f"unknown mode {request.mode!r}")
        if request.max_output_bytes is not None:
            check_output_bytes(request.max_output_bytes)
        record = self._core.find(request.sandbox_id)
        known = self.known(record, request.exec_id)
        if not 0 <= request.writer < 1 << 64:
            raise InvalidArgument(f"a writer is a number below 2⁶⁴, not {request.writer}")
        return self._again(record, known, request)

    def known(self, record: SandboxRecord, exec_id: str) -> ExecRecord:
        """An exec of a sandbox; raises NotFound."""
        ids.check_exec_id(exec_id)
        known = self._core.records.exec(record.id, exec_id)
        if known is None:
            raise NotFound(f"no exec {exec_id}", sandbox_id=record.id, exec_id=exec_id)
        return known

    def _again(self, record: SandboxRecord, known: ExecRecord, request: AttachRequest) -> Opening:
        if known.error is not None and known.error.get("code") in _ATTACHABLE:
            raise error_from_wire(known.error)  # it never ran, so that there is no output
        if record.is_live:
            params = msgspec.structs.asdict(request) | {"sandbox_id": record.id}
            if known.end is not None:
                params["end"] = msgspec.to_builtins(known.end)
            return Opening(
                method="exec.attach",
                params=params,
                sandbox_id=record.id,
                exec_id=known.exec_id,
                outcome=known if known.is_over else None,
            )
        return self._kept(record, known, request)

    @staticmethod
    def _kept(record: SandboxRecord, known: ExecRecord, request: AttachRequest) -> Opening:
        """What is left of an exec whose sandbox has ended."""
        one: dict[str, Any] = {"sandbox_id": record.id, "exec_id": known.exec_id}
        if request.mode == "stream":
            end = known.end
            ends = {} if end is None else {1: end.stdout_total, 2: end.stderr_total}
            method = "output.read"
            one |= {"offsets": request.offsets, "credit": request.credit, "ends": ends}
        else:
            most = request.max_output_bytes
            method = "output.tail"
            one |= {"bytes": most if most is not None else 64 << 20}
        return Opening(method=method, params=one, sandbox_id=record.id, exec_id=known.exec_id, outcome=known)

    # Outcomes

    def ended(self, opening: Opening, raw: Any) -> None:
        """Commit the ``end`` of a stream that was opened for an exec. A detached start says only that it began."""
        if not isinstance(raw, dict) or "ended" not in raw:
            return
        if opening.method == "session.run":
            self.sessions.ended(opening, raw)
            return
        self._core.records.end_exec(opening.sandbox_id, opening.exec_id, end=answer(raw, ExecEnd))
        self._core.acks.add([opening.exec_id])

    def refused(self, opening: Opening, wire: dict[str, Any]) -> None:
        """Commit the ``error`` of a stream; one that may be tried again leaves no trace, if nothing had begun."""
        if opening.method == "session.run":
            self.sessions.refused(opening, wire)
        if opening.method not in ("exec.start", "session.open"):
            return
        error = error_from_wire(wire)
        if not error.retryable:
            self._core.records.end_exec(opening.sandbox_id, opening.exec_id, error=error.to_wire())
        elif opening.began:
            self._core.records.drop_exec(opening.sandbox_id, opening.exec_id)

    # Reading

    async def list(self, record: SandboxRecord) -> list[ExecInfo]:
        """The execs of a sandbox in order of their start."""
        known = self._core.records.execs(record.id)
        states = {}
        if record.is_live and any(not each.is_over for each in known):
            states = {each.exec_id: each for each in await self._core.backend.execs(record.id)}
        return [exec_info(each, states.get(each.exec_id)) for each in known]

    async def info(self, record: SandboxRecord, exec_id: str) -> ExecInfo:
        """One exec; raises NotFound."""
        known = self.known(record, exec_id)
        if known.is_over or not record.is_live:
            return exec_info(known)
        states = {each.exec_id: each for each in await self._core.backend.execs(record.id)}
        return exec_info(known, states.get(exec_id))

    async def kill(self, record: SandboxRecord, exec_id: str, asked: KillRequest) -> None:
        """Signal or end an exec, confirmed; one that is over stays so, an unknown one is remembered as killed."""
        signal, grace_ms = _checked(asked)
        if self._is_over(record, exec_id):
            return
        fault("edge.kill.asked")
        await self._core.backend.kill_exec(record.id, exec_id, signal=signal, grace_ms=grace_ms)
        fault("edge.kill.confirmed")

    def open_kill(self, params: Any) -> FileOpening | None:
        """The same on a WebSocket: what to open at the runtime; None where there is nothing to do.

        Raises InvalidArgument, Unsupported, NotFound.
        """
        try:
            asked = msgspec.convert(params, _Kill, strict=False)
        except msgspec.ValidationError as error:
            raise refused(error) from None
        record = self._core.find(asked.sandbox_id)
        signal, grace_ms = _checked(asked)
        if self._is_over(record, asked.exec_id):
            return None
        fault("edge.kill.asked")
        sent = {"signal": signal, "grace_ms": grace_ms, "cause": "cancelled"}
        named = {"sandbox_id": record.id, "exec_id": asked.exec_id}
        return FileOpening(method="exec.kill", params=named | sent, sandbox_id=record.id)

    def _is_over(self, record: SandboxRecord, exec_id: str) -> bool:
        ids.check_exec_id(exec_id)
        if not record.is_live:
            return True
        known = self._core.records.exec(record.id, exec_id)
        return known is not None and known.is_over

    async def resize(self, record: SandboxRecord, exec_id: str, pty: Pty) -> None:
        """Change the size of an exec's terminal; nothing, once it is over.

        Raises NotFound, and InvalidArgument for an exec without one.
        """
        known = self.known(record, exec_id)
        if not known.pty:
            raise InvalidArgument("this exec has no terminal", sandbox_id=record.id, exec_id=exec_id)
        if record.is_live and not known.is_over:
            await self._core.backend.resize_exec(record.id, exec_id, rows=pty.rows, cols=pty.cols)
