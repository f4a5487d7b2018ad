"""A program that runs while its caller does other things."""

from __future__ import annotations

import codecs
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from dsec.api.signals import signal_number
from dsec.api.types import ExecInfo, Pty, ResizeRequest
from dsec.client.following import Event, Following
from dsec.client.results import ExecResult, Exited, Stderr, Stdout
from dsec.client.running import ExecRequest, Run
from dsec.client.stdin import Stdin
from dsec.errors import InvalidArgument, error_from_wire

if TYPE_CHECKING:
    from dsec.client.sandbox import Sandbox

__all__ = ["Event", "Exec"]


class Exec:
    """Made by ``Sandbox.spawn`` and ``Sandbox.attach``.

    Losing it, or the connection, ends nothing: the program runs on.
    """

    def __init__(
        self, sandbox: Sandbox, exec_id: str, request: ExecRequest | None, offsets: tuple[int, int] = (0, 0)
    ) -> None:
        self._offsets = offsets
        self._sandbox = sandbox
        self._request = request
        self._max_output_bytes = request.max_output_bytes if request is not None else 10 * 1024 * 1024
        self._run = Run(
            sandbox._link, sandbox.id, exec_id, request, max_output_bytes=self._max_output_bytes, eager=False
        )
        self.id = exec_id

    def __repr__(self) -> str:
        return f"<Exec {self.id} in {self._sandbox.id}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Exec, (self._sandbox, self.id, None, self._offsets)

    @property
    def stdin(self) -> Stdin:
        """Standard input, when it was spawned with ``stdin=PIPE`` or ``pty=``; raises InvalidArgument otherwise.

        Of an attached exec this is known only when something is written.
        """
        if self._run.stdin is None:
            raise InvalidArgument("this exec has no standard input", remedy="spawn(…, stdin=dsec.PIPE)")
        return self._run.stdin

    async def events(self) -> AsyncGenerator[Event]:
        """Output from its beginning (or where ``attach`` said) as it comes, in exact bytes, then Exited.

        Both outputs are Stdout where they are merged, and at a terminal. Only what is taken is fetched: a reader that
        is slower than the program may get a Gap where the node no longer keeps what was not read. Raises SandboxGone,
        OutcomeUnknown, NodeError.
        """
        following = Following(
            self._sandbox._link, self._sandbox.id, self.id, self._offsets, self._max_output_bytes
        )  # fmt: skip
        async with aclosing(following.events()) as events:
            async for event in events:
                yield event

    async def lines(self) -> AsyncGenerator[str]:
        """Lines of both streams as each is complete, decoded incrementally (UTF-8 with replacement)."""
        decoder = codecs.getincrementaldecoder("utf-8")
        decoders = {Stdout: decoder("replace"), Stderr: decoder("replace")}
        rest = {Stdout: "", Stderr: ""}
        async with aclosing(self.events()) as events:
            async for event in events:
                if isinstance(event, Stdout | Stderr):
                    kind = type(event)
                    *complete, rest[kind] = (rest[kind] + decoders[kind].decode(event.data)).split("\n")
                    for line in complete:
                        yield line
        for kind in (Stdout, Stderr):
            last = rest[kind] + decoders[kind].decode(b"", final=True)
            if last:
                yield last

    async def info(self) -> ExecInfo:
        """What the node knows of it now."""
        path = f"/v1/sandboxes/{self._sandbox.id}/execs/{self.id}"
        return await self._sandbox._link().ask_patiently("GET", path, ExecInfo)

    async def poll(self) -> Exited | None:
        """How it ended, or None while it runs. Raises as ``wait`` does where it has no end of its own."""
        info = await self.info()
        if info.error is not None:
            raise error_from_wire(info.error)
        if info.ended is None:
            return None
        return Exited(
            exit_code=info.exit_code, signal=info.signal, ended=info.ended, oom_kills=info.oom_kills,
            quota_hits=frozenset(info.quota_hits), duration_s=info.duration_s or 0.0,
        )  # fmt: skip

    async def wait(self, *, check: bool = False) -> ExecResult:
        """Wait for the end. Cancelling this only detaches; the program runs on.

        Raises SandboxGone or OutcomeUnknown with the output until then as ``partial``, NodeError, and with ``check``
        ExecFailed or ExecTimeout.
        """
        result = await self._run.result()
        return result.check() if check else result

    async def signal(self, signal: int | str) -> None:
        """Send a signal, by number or name ("SIGINT", "INT"), to the leader's process group.

        Raises OutcomeUnknown when the connection broke over it: whether it was sent is not known then.
        """
        await self._run.kill(signal=signal_number(signal))

    async def kill(self, *, grace_s: float = 2.0) -> None:
        """SIGTERM to the leader's process group, everything killed after ``grace_s``; returns when confirmed."""
        await self._run.kill(grace_s=grace_s)

    async def detach(self) -> None:
        """Let go of it; it runs on."""
        await self._run.leave()

    async def resize(self, rows: int, cols: int) -> None:
        """Give its terminal another size; the kernel tells the programs in front (SIGWINCH).

        Raises InvalidArgument for an exec without a terminal.
        """
        path = f"/v1/sandboxes/{self._sandbox.id}/execs/{self.id}/resize"
        body = ResizeRequest(pty=Pty(rows, cols))
        await self._sandbox._link().ask_patiently("POST", path, dict[str, Any], body=body)
