"""A shell that keeps its state from one script to the next."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from dsec.api.frames import CHUNK_BYTES, STDIN, data_frame
from dsec.api.ids import check_key, exec_id, new_key
from dsec.client.ends import RunEnd
from dsec.client.owned import disown, own_exec
from dsec.client.results import ExecResult, Kept, Output
from dsec.client.running import MAX_OUTPUT_BYTES, RECONNECT_S, check_seconds
from dsec.client.streams import Collecting, Pieces
from dsec.client.waiting import Patience, shielded
from dsec.client.wire import Lost
from dsec.errors import (
    Conflict,
    DSecError,
    InvalidArgument,
    NodeError,
    NotFound,
    OutcomeUnknown,
    SandboxGone,
)

if TYPE_CHECKING:
    from dsec.client.sandbox import Sandbox

__all__ = ["Session", "SessionOpening"]

_INLINE_BYTES = 128 * 1024
"""A longer script follows its request in pieces."""
_BACK_S = 3.0
"""What a run may take to end after its grace: the shell comes back, or is killed."""


class Session:
    """Made by ``Sandbox.open_session``. Directory, variables, functions and background jobs stay between runs.

    Runs are made one after the other, in the order asked. Losing it ends nothing: the shell waits in its sandbox
    until ``close``, or until that ends. A script that ends its shell (``exit``, ``set -e``, ``exec``) closes the
    session with its own result.
    """

    def __init__(self, sandbox: Sandbox, identifier: str) -> None:
        self._sandbox = sandbox
        self._closed = False
        self.id = identifier

    def __repr__(self) -> str:
        return f"<Session {self.id} in {self._sandbox.id}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Session, (self._sandbox, self.id)

    @property
    def closed(self) -> bool:
        """Whether it is known that the shell has ended. Nothing can be run in it any more."""
        return self._closed

    async def run(
        self, script: str, *, timeout_s: float | None = None, grace_s: float = 2.0,
        merge_stderr: bool = False, max_output_bytes: int = 10 * 1024 * 1024, check: bool = False,
        key: str | None = None,
    ) -> ExecResult:  # fmt: skip
        """Run a script in the shell to its end; its standard input is empty. A non-zero status is data, unless
        ``check``.

        The result's output are the bytes that reached the session's streams since the run before ended, with those
        of background jobs. When ``timeout_s`` passes, or this is cancelled, the shell gives the script up and what it
        started is ended (SIGTERM, everything killed after ``grace_s``); earlier background jobs stay. A shell that
        does not come back from that is killed, and the session is ``closed``. ``merge_stderr`` lets standard error be
        the descriptor of standard output while the script runs, for what it starts too: ``output`` is in true order,
        and ``stderr`` has only what jobs of earlier runs wrote there. ``key`` names the run in its session:
        the same key gives the same result and never a second run.

        Raises Conflict when the session is closed, SandboxGone, OutcomeUnknown, NodeError; with ``check`` ExecFailed
        and ExecTimeout.
        """
        check_seconds("timeout_s", timeout_s, least=0.001)
        check_seconds("grace_s", grace_s, least=0)
        if not 0 < max_output_bytes <= MAX_OUTPUT_BYTES:
            raise InvalidArgument(f"max_output_bytes must be between 1 and {MAX_OUTPUT_BYTES}")
        key = check_key(key) if key is not None else new_key()
        code = script.encode(errors="surrogateescape")
        params = {
            "sandbox_id": self._sandbox.id, "session_id": self.id, "key": key, "timeout_s": timeout_s,
            "grace_s": grace_s, "max_output_bytes": max_output_bytes, "merge_stderr": merge_stderr,
        }  # fmt: skip
        if len(code) <= _INLINE_BYTES:
            call = _Call(self._sandbox, "session.run", params | {"script": code})
        else:
            digest = hashlib.sha256(code).hexdigest()
            call = _Call(self._sandbox, "session.run", params | {"length": len(code), "sha256": digest}, code)
        result = await self._to_its_end(call, exec_id(self.id, key), key, grace_s)
        return result.check() if check else result

    async def _to_its_end(self, call: _Call, run_id: str, key: str, grace_s: float) -> ExecResult:
        owned = own_exec(self._sandbox._link().address, self._sandbox.id, self.id)
        try:
            end = await call.answer()
        except asyncio.CancelledError:
            if call.sent:
                await shielded(self._cancel(key, grace_s), grace_s + _BACK_S)
            raise
        except NotFound as error:
            if not call.sent_before:
                raise
            raise OutcomeUnknown(
                f"the connection broke, and the node no longer knows the session ({error.message})",
                sandbox_id=self._sandbox.id, exec_id=run_id,
            ) from None  # fmt: skip
        except (Conflict, SandboxGone, OutcomeUnknown) as error:
            self._closed = self._closed or not isinstance(error, Conflict) or error.phase == "session"
            if not isinstance(error, Conflict):
                error.partial = Output(call.kept(0, 0, None), call.kept(1, 0, None))
            raise
        finally:
            disown(owned)
        return self._result(end, call)

    def _result(self, raw: dict[str, Any], call: _Call) -> ExecResult:
        end = RunEnd.of(raw)
        self._closed = self._closed or end.closed
        return end.result(
            self._sandbox.id, end.run_id,
            call.kept(0, end.stdout_from, end.stdout_total), call.kept(1, end.stderr_from, end.stderr_total),
        )  # fmt: skip

    async def _cancel(self, key: str, grace_s: float) -> None:
        params = {"sandbox_id": self._sandbox.id, "session_id": self.id, "key": key, "grace_s": grace_s}
        await _Call(self._sandbox, "session.cancel", params).answer()

    async def close(self, *, grace_s: float = 2.0) -> None:
        """End the shell and all that was started in it, confirmed; a run under way is cancelled. May be repeated.

        Its EXIT trap may take ``grace_s``.
        """
        params = {"sandbox_id": self._sandbox.id, "session_id": self.id, "grace_s": grace_s}
        with suppress(SandboxGone):
            await _Call(self._sandbox, "session.close", params).answer()
        self._closed = True

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await _close(self, kind)


class SessionOpening:
    """``await`` it for the Session, or enter it with ``async with``, which closes the session at its end."""

    def __init__(
        self, sandbox: Sandbox, shell: str | Sequence[str] | None, *, cwd: str | None, env: Mapping[str, str] | None,
        user: str | None, key: str | None,
    ) -> None:  # fmt: skip
        self._sandbox = sandbox
        self._key = check_key(key) if key is not None else new_key()
        words = [shell] if isinstance(shell, str) else shell
        self._params = {
            "sandbox_id": sandbox.id, "key": self._key,
            "shell": None if words is None else [word.encode(errors="surrogateescape") for word in words],
            "cwd": cwd, "env": dict(env or {}), "user": user,
        }  # fmt: skip
        self._session: Session | None = None

    def __await__(self) -> Generator[Any, None, Session]:
        return self._open().__await__()

    async def __aenter__(self) -> Session:
        self._session = await self._open()
        return self._session

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await _close(self._session, kind)

    async def _open(self) -> Session:
        made = Session(self._sandbox, exec_id(self._sandbox.id, self._key))
        call = _Call(self._sandbox, "session.open", self._params)
        try:
            end = await call.answer()
        except asyncio.CancelledError:
            if call.sent:
                await shielded(self._sandbox.kill(made.id, grace_s=0), _BACK_S)
            raise
        made._closed = "ended" in end
        return made


async def _close(session: Session, kind: type[BaseException] | None) -> None:
    """Close at the end of a block, whose own error comes first."""
    try:
        await session.close()
    except DSecError:
        if kind is None:
            raise


class _Call:
    """One request that may be sent again, over whatever connections it takes."""

    def __init__(self, sandbox: Sandbox, method: str, params: dict[str, Any], script: bytes = b"") -> None:
        self._sandbox = sandbox
        self._method = method
        self._params = params
        self._script = script
        self._receiver: Collecting | None = None
        self.sent = False
        self.sent_before = False

    async def answer(self) -> dict[str, Any]:
        """The ``end``; raises the error, or NodeError when nobody has answered for long."""
        patience = Patience(RECONNECT_S)
        while True:
            try:
                return await self._attempt()
            except NodeError as error:
                self.sent_before = self.sent
                await patience.before_retry(self._named(error))

    def _named(self, error: NodeError) -> NodeError:
        if not self.sent or not isinstance(error, Lost):
            return error
        return NodeError(error.message, sandbox_id=self._sandbox.id, phase=error.phase)

    async def _attempt(self) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        self._receiver = receiver = Collecting(loop, credited=True)
        receiver.wire = wire = await self._sandbox._link().wire()
        feeding = None
        credit = _Credit()
        if self._script:
            receiver.on_stdin_credit = credit.granted
        self.sent = True
        receiver.number = await wire.open(receiver, self._method, self._params)
        if self._script:
            feeding = loop.create_task(self._feed(receiver, credit))
        try:
            outcome = await receiver.done
        except asyncio.CancelledError:
            await wire.close_stream(receiver.number)
            raise
        finally:
            if feeding is not None:
                feeding.cancel()
        if isinstance(outcome, DSecError):
            raise outcome
        return outcome

    async def _feed(self, receiver: Collecting, credit: _Credit) -> None:
        at, end = 0, len(self._script)
        while at < end and await credit.beyond(at):
            upto = min(end, credit.offset, at + CHUNK_BYTES)
            try:
                await receiver.send(data_frame(receiver.number, STDIN, at, self._script[at:upto]))
            except Lost:
                return
            at = upto

    def kept(self, index: int, start: int, total: int | None) -> Kept:
        """What came of stream 0 or 1 of the ``total`` bytes that begin at ``start``."""
        receiver = self._receiver
        pieces: Pieces | None = None
        if receiver is not None:
            pieces = receiver.err if index else receiver.out
        found = pieces.kept(0).pieces if pieces is not None else ()
        end = start + total if total is not None else max((at + len(data) for at, data in found), default=start)
        cut = [(max(at, start), data[max(start - at, 0) : max(end - at, 0)]) for at, data in found]
        return Kept(tuple((at - start, data) for at, data in cut if data), end - start)


class _Credit:
    """How far a script may be sent."""

    def __init__(self) -> None:
        self.offset = 0
        self._moved = asyncio.Event()

    def granted(self, offset: int) -> None:
        """Credit from the runtime; −1: the stream is over."""
        self.offset = offset
        self._moved.set()

    async def beyond(self, at: int) -> bool:
        """Wait until more than ``at`` bytes may be sent; False when the stream is over."""
        while 0 <= self.offset <= at:
            self._moved.clear()
            await self._moved.wait()
        return self.offset > at
