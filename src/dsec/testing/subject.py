"""What the conformance suite is run on: a backend, and how sandboxes and execs are asked of it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from dsec.api import frames, ids
from dsec.api.frames import STDERR, STDIN, STDOUT, Kind
from dsec.backends.contract import Backend, FrameStream
from dsec.backends.wire import ExecEnd, ExecSpec, RunEnd, SandboxSpec, answer
from dsec.errors import NotFound

__all__ = ["Heard", "Subject", "listen"]

_MIB = 1 << 20
_CREDIT = {STDOUT: 1 << 40, STDERR: 1 << 40}


class Heard(msgspec.Struct):
    """All that a stream said."""

    end: Any = None
    out: bytes = b""
    err: bytes = b""
    items: list[dict[str, Any]] = []

    @property
    def exec_end(self) -> ExecEnd:
        """The end of an exec."""
        return answer(self.end, ExecEnd)

    @property
    def run_end(self) -> RunEnd:
        """The end of a run in a session."""
        return answer(self.end, RunEnd)


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """A backend under test. ``layers``: digests of an image that has /bin/sh, cat, echo, sleep; of a fake, any."""

    backend: Backend
    layers: list[str]
    node: str = "test"

    def sandbox_spec(self, *, main: tuple[str, ...] | None = None, **fields: Any) -> SandboxSpec:
        """A small sandbox; ``main`` are the words of its main process."""
        sandbox_id = ids.new_sandbox_id(self.node)
        spec = SandboxSpec(
            sandbox_id=sandbox_id,
            layers=self.layers,
            memory_bytes=256 * _MIB,
            cpu_milli=1000,
            pids=256,
            disk_bytes=256 * _MIB,
            shm_bytes=16 * _MIB,
            hostname="subject",
            profile="default",
            idle_timeout_ms=0,
            lifetime_ms=600_000,
            main=None if main is None else self.exec_spec(sandbox_id, *main, is_main=True),
        )
        return msgspec.structs.replace(spec, **fields)

    def exec_spec(self, sandbox_id: str, *words: str, script: str | None = None, **fields: Any) -> ExecSpec:
        """A program by its words, or a line for /bin/sh."""
        spec = ExecSpec(
            exec_id=ids.exec_id(sandbox_id, ids.new_key()),
            sandbox_id=sandbox_id,
            argv=[word.encode() for word in words] if script is None else [b"", b"-c", script.encode()],
            programs=None if script is None else [b"/bin/sh"],
            env=[b"PATH=/usr/local/bin:/usr/bin:/bin"],
            cwd=b"/",
            create_cwd=False,
            user="",
            timeout_ms=None,
            grace_ms=1000,
            stdin=False,
            backpressure=False,
            max_output_bytes=_MIB,
            is_main=False,
        )
        return msgspec.structs.replace(spec, **fields)

    @contextlib.asynccontextmanager
    async def sandbox(self, **fields: Any) -> AsyncIterator[str]:
        """The ID of a sandbox that is stopped, forgotten and without output at the end."""
        spec = self.sandbox_spec(**fields)
        await self.backend.start(spec, timeout_s=30)
        try:
            yield spec.sandbox_id
        finally:
            await self.clear(spec.sandbox_id)

    async def clear(self, sandbox_id: str) -> None:
        """Leave nothing of a sandbox."""
        with contextlib.suppress(NotFound):
            await self.backend.stop(sandbox_id, cause="stopped", actor="test", grace_ms=0)
        await self.backend.forget([sandbox_id])
        await self.backend.remove_output([sandbox_id])

    async def run(self, spec: ExecSpec, *, stdin: bytes | None = None) -> Heard:
        """Run an exec to its end; raises its error."""
        stream = self.backend.stream(
            "exec.start", msgspec.structs.asdict(spec) | {"mode": "collect", "credit": _CREDIT}
        )
        if stdin is not None:
            for start in range(0, len(stdin), frames.CHUNK_BYTES):
                await stream.data(STDIN, start, stdin[start : start + frames.CHUNK_BYTES])
            await stream.data(STDIN, len(stdin), b"")
        return await listen(stream)

    async def begin(self, spec: ExecSpec) -> None:
        """Start an exec, and return once it runs."""
        stream = self.backend.stream("exec.start", msgspec.structs.asdict(spec) | {"mode": "detach", "credit": {}})
        await listen(stream)

    async def attach(self, sandbox_id: str, exec_id: str, **params: Any) -> Heard:
        """Join an exec and hear it to its end; raises its error."""
        asked = {"sandbox_id": sandbox_id, "exec_id": exec_id, "mode": "collect", "credit": _CREDIT}
        return await listen(self.backend.stream("exec.attach", asked | params))

    async def open_session(self, sandbox_id: str) -> str:
        """The ID of a session of /bin/sh."""
        spec = self.exec_spec(sandbox_id, "", programs=[b"/bin/sh"])
        await listen(self.backend.stream("session.open", msgspec.structs.asdict(spec) | {"mode": "detach"}))
        return spec.exec_id

    async def run_in(self, sandbox_id: str, session_id: str, script: str, *, merge_stderr: bool = False) -> Heard:
        """Run a line in a session to its end; raises its error."""
        asked = {
            "sandbox_id": sandbox_id,
            "session_id": session_id,
            "run_id": ids.exec_id(session_id, ids.new_key()),
            "script": script.encode(),
            "length": None,
            "timeout_ms": None,
            "grace_ms": 1000,
            "max_output_bytes": _MIB,
            "merge_stderr": merge_stderr,
        }
        return await listen(self.backend.stream("session.run", asked))


async def listen(stream: FrameStream) -> Heard:
    """Everything of a stream, by its offsets."""
    heard = Heard(items=[])
    try:
        while (frame := await stream.next()) is not None:
            if frame[1] == Kind.DATA and frame[2] == STDOUT:
                heard.out += frame[4]
            elif frame[1] == Kind.DATA and frame[2] == STDERR:
                heard.err += frame[4]
            elif frame[1] == Kind.ITEM:
                heard.items.append(frame[2])
        heard.end = stream.result
    finally:
        stream.close()
    return heard
