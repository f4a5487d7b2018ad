"""The promises about execs: started once, joined by ID after a lost connection, killed when cancelled."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from dsec.api.frames import STDERR, STDOUT
from dsec.api.ids import exec_id
from dsec.api.types import Pty
from dsec.client.ends import ExecEnd
from dsec.client.killing import kill_exec
from dsec.client.link import Link
from dsec.client.results import ExecResult, Kept, Output
from dsec.client.stdin import Stdin
from dsec.client.streams import UNLIMITED, Collecting
from dsec.client.waiting import Patience, shielded
from dsec.client.wire import Lost
from dsec.errors import (
    CommandError,
    DSecError,
    InvalidArgument,
    NodeError,
    NotFound,
    OutcomeUnknown,
    SandboxGone,
)

__all__ = [
    "MAX_OUTPUT_BYTES",
    "RECONNECT_S",
    "ExecRequest",
    "Run",
    "check_seconds",
]

T = TypeVar("T")
RECONNECT_S = 120.0
"""How long an exec goes on looking for a node that does not answer."""
MAX_OUTPUT_BYTES = 64 * 1024 * 1024
_CREDIT = {STDOUT: UNLIMITED, STDERR: UNLIMITED}
_NO_CREDIT = {STDOUT: 0, STDERR: 0}


@dataclass(frozen=True)
class ExecRequest:
    """What is to run. ``argv`` or ``shell``; ``key`` names it for ever."""

    sandbox_id: str
    key: str
    argv: tuple[bytes, ...] | None = None
    shell: bytes | str | None = None
    login: bool = False
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    timeout_s: float | None = None
    grace_s: float = 2.0
    stdin: bool = False
    max_output_bytes: int = 10 * 1024 * 1024
    backpressure: bool = False
    merge_stderr: bool = False
    pty: Pty | None = None

    def __post_init__(self) -> None:
        if (self.argv is None) == (self.shell is None):
            raise InvalidArgument("give either the words of a program or shell=")
        if self.argv is not None and not self.argv:
            raise InvalidArgument("there is no program to run")
        check_seconds("timeout_s", self.timeout_s, least=0.001)
        check_seconds("grace_s", self.grace_s, least=0)
        if not 0 < self.max_output_bytes <= MAX_OUTPUT_BYTES:
            raise InvalidArgument(f"max_output_bytes must be between 1 and {MAX_OUTPUT_BYTES}")

    @cached_property
    def exec_id(self) -> str:
        """Follows from sandbox and key."""
        return exec_id(self.sandbox_id, self.key)

    def params(self) -> dict[str, Any]:
        """The ``exec`` open's params, but for mode and credit."""
        return {
            "sandbox_id": self.sandbox_id, "key": self.key, "argv": self.argv, "shell": self.shell,
            "login": self.login, "cwd": self.cwd, "env": self.env, "user": self.user, "timeout_s": self.timeout_s,
            "grace_s": self.grace_s, "stdin": self.stdin, "max_output_bytes": self.max_output_bytes,
            "backpressure": self.backpressure, "merge_stderr": self.merge_stderr, "pty": self.pty,
        }  # fmt: skip


def check_seconds(name: str, value: float | None, *, least: float) -> None:
    """Raise InvalidArgument for what is no number of seconds of at least so many."""
    if value is not None and not (math.isfinite(value) and value >= least):
        raise InvalidArgument(f"{name} must be a number of seconds of at least {least}, not {value}")


class Run:
    """One exec, over whatever connections and event loops it takes.

    ``request`` None: an exec that something else started; it can be attached to, never started.
    """

    def __init__(
        self, link: Callable[[], Link], sandbox_id: str, identifier: str, request: ExecRequest | None,
        *, max_output_bytes: int, eager: bool,
    ) -> None:  # fmt: skip
        self._link = link
        self._sandbox_id = sandbox_id
        self.exec_id = identifier
        self._request = request
        self._max_output_bytes = max_output_bytes
        self._eager = eager
        self._receiver: Collecting | None = None
        self._opening = asyncio.Lock()
        self._joining = False
        self._restarted = False
        self.sent = False
        self._writer = 0 if request is not None else secrets.randbits(63) + 1
        """Who started it writes as 0; everybody else under a number of its own, so that bytes are counted apart."""
        has_stdin = request is None or request.stdin or request.pty is not None
        self.stdin = Stdin(self.stream, self._failed) if has_stdin else None

    # Waiting

    async def result(self) -> ExecResult:
        """Wait for the end.

        Raises SandboxGone, OutcomeUnknown, NodeError, CommandError and what the request deserves.
        """
        return await self._persist(self._ended)

    async def started(self) -> None:
        """Wait until the program runs (or has run); raises what kept it from it."""
        await self._persist(self._begun)

    async def _persist(self, step: Callable[[Collecting], Awaitable[T]]) -> T:
        patience = Patience(RECONNECT_S)
        while True:
            receiver = None
            try:
                receiver = await self.stream()
                return await step(receiver)
            except Lost as error:
                await patience.before_retry(self._named(error))
            except NodeError as error:
                self._let_go(receiver)
                await patience.before_retry(self._named(error))
            except NotFound as error:
                self._never_began(receiver, error)

    def _named(self, error: NodeError) -> NodeError:
        """The same for the user: what it was about, and what can be done."""
        if not self.sent:
            return error
        return NodeError(
            error.message, sandbox_id=self._sandbox_id, phase=error.phase, retry_after_s=error.retry_after_s,
            remedy=f"The exec was sent and may be running; its ID is {self.exec_id}",
            **(error.details | {"exec_id": self.exec_id}),
        )  # fmt: skip

    def _let_go(self, receiver: Collecting | None) -> bool:
        """Use another stream from now on; False when that was decided before."""
        if receiver is not self._receiver:
            return False
        self._receiver = None
        return True

    def _failed(self, receiver: Collecting, error: DSecError) -> None:
        """What sends input found the stream so: returns when there will be another, raises else."""
        if isinstance(error, NotFound):
            self._never_began(receiver, error)
        else:
            self._let_go(receiver)

    def _never_began(self, receiver: Collecting | None, error: NotFound) -> None:
        """Joining found no such exec in a sandbox that is known: it never began, and the same key may start it, as
        often as that is so.

        Where the sandbox itself is unknown the start finds that out, and nobody can say whether the exec ran. What
        waits for the end and what sends input both come here; the second finds another stream, or none.
        """
        if not self._let_go(receiver):
            return
        if self._request is not None and self._joining:
            self._restarted = True
            self.sent = False
        elif self._restarted:
            raise OutcomeUnknown(
                f"the connection broke, and the node no longer knows the sandbox ({error.message})",
                sandbox_id=self._sandbox_id, exec_id=self.exec_id,
            ) from None  # fmt: skip
        else:
            raise error

    async def _ended(self, receiver: Collecting) -> ExecResult:
        await receiver.want_output()
        outcome = await asyncio.shield(receiver.done) if not self._eager else await receiver.done
        if not isinstance(outcome, DSecError):
            if "ended" in outcome:
                return self._result(outcome, receiver)
            outcome = OutcomeUnknown(
                "the node has no record of how the exec ended", sandbox_id=self._sandbox_id, exec_id=self.exec_id
            )
        if isinstance(outcome, InvalidArgument) and self._request is None and self.stdin and self.stdin.forget():
            # Input for an exec that takes none ends the stream that it was sent on, and nothing else.
            self._let_go(receiver)
            return await self._ended(await self.stream())
        if isinstance(outcome, SandboxGone | OutcomeUnknown):
            outcome.partial = Output(_kept(receiver.out), _kept(receiver.err))
        raise outcome

    async def _begun(self, receiver: Collecting) -> None:
        assert receiver.started is not None
        error = await asyncio.shield(receiver.started)
        if error is not None:
            raise error

    def _result(self, raw: dict[str, Any], receiver: Collecting) -> ExecResult:
        end = ExecEnd.of(raw)
        return end.result(
            self._sandbox_id, self.exec_id,
            receiver.out.kept(end.stdout_total) if receiver.out else Kept((), end.stdout_total),
            receiver.err.kept(end.stderr_total) if receiver.err else Kept((), end.stderr_total),
        )  # fmt: skip

    # The stream

    async def stream(self) -> Collecting:
        """The stream of this exec, opened (again) if there is none, it is lost, or it belongs to another loop."""
        loop = asyncio.get_running_loop()
        if self._usable(loop):
            assert self._receiver is not None
            return self._receiver
        async with self._opening:
            if not self._usable(loop):
                self._receiver = await self._open(loop)
            assert self._receiver is not None
            return self._receiver

    def _usable(self, loop: asyncio.AbstractEventLoop) -> bool:
        known = self._receiver
        if known is None or known.loop is not loop:
            return False
        outcome = known.done.result() if known.done.done() else None
        return not isinstance(outcome, Lost)

    async def _open(self, loop: asyncio.AbstractEventLoop) -> Collecting:
        receiver = Collecting(loop, credited=self._eager)
        if not self._eager:
            receiver.started = loop.create_future()
        if self.stdin is not None:
            receiver.on_stdin_credit = self.stdin.granted
        link = self._link()
        receiver.wire = wire = await link.wire()
        method, params = self._call(_CREDIT if self._eager else _NO_CREDIT)
        receiver.number = await wire.open(receiver, method, params)
        receiver.done.add_done_callback(lambda _: self._over(receiver, link))
        if self.stdin is not None and (self._joining or self._restarted):
            self.stdin.rewind()
            await self._send_again(self.stdin, receiver)
        return receiver

    def _over(self, receiver: Collecting, link: Link) -> None:
        """Input goes on by itself after a connection that broke, and not after one that was closed."""
        broke = receiver.done.done() and not receiver.done.cancelled() and isinstance(receiver.done.result(), Lost)
        if broke and self.stdin is not None and not link.closing:
            self.stdin.lost(link.begin)

    def _call(self, credit: dict[int, int]) -> tuple[str, dict[str, Any]]:
        self._joining = self.sent or self._request is None
        if self._request is not None and not self._joining:
            self.sent = True
            return "exec", self._request.params() | {"mode": "collect", "credit": credit}
        return "attach", {
            "sandbox_id": self._sandbox_id, "exec_id": self.exec_id, "mode": "collect",
            "offsets": {STDOUT: 0, STDERR: 0}, "credit": credit, "max_output_bytes": self._max_output_bytes,
            "writer": self._writer,
        }  # fmt: skip

    async def _send_again(self, stdin: Stdin, receiver: Collecting) -> None:
        if stdin.unsent:
            try:
                await stdin.send_on(receiver)
            except (CommandError, NodeError, NotFound):
                return

    async def leave(self) -> None:
        """Close the stream; the exec goes on."""
        receiver, self._receiver = self._receiver, None
        if receiver is not None and receiver.wire is not None and receiver.loop is asyncio.get_running_loop():
            await receiver.wire.close_stream(receiver.number)

    # Ending it

    async def kill(self, *, signal: int | None = None, grace_s: float = 2.0) -> None:
        """Ask the node to signal or kill it; returns when confirmed."""
        await kill_exec(self._link(), self._sandbox_id, self.exec_id, signal=signal, grace_s=grace_s)

    async def kill_confirmed(self, grace_s: float) -> None:
        """What a cancelled exec does: kill it and wait for the confirmation, at most ``grace_s`` + 2 s."""
        if self.stdin is not None:
            self.stdin.give_up()
        if self.sent:
            await shielded(self.kill(grace_s=grace_s), grace_s + 2.0)
            receiver = self._receiver
            if receiver is not None and receiver.wire is not None and receiver.wire.listens(receiver.number):
                await shielded(self.leave(), 0.5)


def _kept(pieces: Any) -> Kept:
    if pieces is None:
        return Kept()
    kept: Kept = pieces.kept(0)
    ends = [offset + len(piece) for offset, piece in kept.pieces]
    return Kept(kept.pieces, max(ends, default=0))
