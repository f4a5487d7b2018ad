"""Sessions of the fake edge: each script is one line of ``FakeExec``'s programs, run one after the other."""

from __future__ import annotations

import asyncio
import shlex
from typing import Any

from dsec.api import frames
from dsec.api.frames import STDERR, STDOUT
from dsec.api.ids import exec_id
from dsec.errors import Conflict, NotFound
from dsec.testing.fake_edge_execs import FakeExec, SendFrame

__all__ = ["FakeShell", "SessionStream"]


class FakeShell:
    """One session. ``scripts`` lists what was run, in order; ``exit`` ends the shell, ``hang`` waits for a cancel."""

    def __init__(self, sandbox_id: str, session_id: str) -> None:
        self.sandbox_id = sandbox_id
        self.session_id = session_id
        self.scripts: list[str] = []
        self.ends: dict[str, dict[str, Any]] = {}
        self.output: dict[int, bytearray] = {STDOUT: bytearray(), STDERR: bytearray()}
        self.closed = False
        self._running: dict[str, FakeExec] = {}
        self._cancelled: set[str] = set()
        self._turn = asyncio.Lock()
        self._done: dict[str, asyncio.Task[dict[str, Any]]] = {}

    async def run(self, key: str, script: str) -> dict[str, Any]:
        """RunEnd of a run, begun once however often it is asked for. Raises Conflict when the shell has ended."""
        run_id = exec_id(self.session_id, key)
        if run_id not in self._done:
            if self.closed:
                raise Conflict("the session is closed", phase="session", sandbox_id=self.sandbox_id)
            self._done[run_id] = asyncio.get_running_loop().create_task(self._in_turn(run_id, script))
        return await asyncio.shield(self._done[run_id])

    async def _in_turn(self, run_id: str, script: str) -> dict[str, Any]:
        async with self._turn:
            self.scripts.append(script)
            program = FakeExec(self.sandbox_id, run_id, shlex.split(script))
            self._running[run_id] = program
            program.start()
            if run_id in self._cancelled:
                program.kill("cancelled")
            while program.end is None:
                await program.change(program.version)
            del self._running[run_id]
            begun = {channel: len(self.output[channel]) for channel in program.output}
            for channel, data in program.output.items():
                self.output[channel] += data
            self.closed = self.closed or program.argv[0] == "exit"
            taken = {
                name: program.end[name] for name in ("ended", "exit_code", "signal", "started_at", "duration_ns")
            }
            return taken | {
                "run_id": run_id, "closed": self.closed, "stdout_from": begun[STDOUT], "stderr_from": begun[STDERR],
                "stdout_total": len(program.output[STDOUT]), "stderr_total": len(program.output[STDERR]),
            }  # fmt: skip

    def cancel(self, key: str) -> None:
        """End a run, one that has not begun too."""
        run_id = exec_id(self.session_id, key)
        self._cancelled.add(run_id)
        if run_id in self._running:
            self._running[run_id].kill("cancelled")

    def close(self) -> None:
        """End the shell and what runs in it."""
        self.closed = True
        for program in self._running.values():
            program.kill("cancelled")


class SessionStream:
    """One call of ``session.*`` on a WebSocket, with the script that may follow it."""

    def __init__(
        self, shells: dict[str, FakeShell], number: int, method: str, params: dict[str, Any], send: SendFrame
    ) -> None:
        self._shells = shells
        self._number = number
        self._method = method
        self._params = params
        self._send = send
        self._script = bytearray(params.get("script") or b"")
        self._whole = asyncio.Event()

    async def take_stdin(self, offset: int, data: bytes) -> None:
        """A piece of the script; what is there already is not taken twice."""
        if offset <= len(self._script):
            self._script += data[len(self._script) - offset :]
        if len(self._script) == self._params["length"]:
            self._whole.set()

    def grant(self, channel: int, offset: int) -> None:
        """Credit of the client's, of which a run needs none."""

    async def run(self) -> None:
        """Carry it out and send what comes of it. Raises NotFound, Conflict."""
        if self._method == "session.open":
            session_id = exec_id(self._params["sandbox_id"], self._params["key"])
            self._shells.setdefault(session_id, FakeShell(self._params["sandbox_id"], session_id))
            await self._send(frames.end_frame(self._number, {"started_at": 1.0}))
            return
        shell = self._shells.get(self._params["session_id"])
        if shell is None:
            raise NotFound("no such session", sandbox_id=self._params["sandbox_id"])
        if self._method == "session.run":
            await self._run(shell)
            return
        if self._method == "session.cancel":
            shell.cancel(self._params["key"])
        else:
            shell.close()
        await self._send(frames.end_frame(self._number, {}))

    async def _run(self, shell: FakeShell) -> None:
        length = self._params.get("length")
        if length is not None:
            await self._send(frames.until_frame(self._number, frames.STDIN, length))
            await self._whole.wait()
        end = await shell.run(self._params["key"], self._script.decode("utf-8", "surrogateescape"))
        for channel, name in ((STDOUT, "stdout"), (STDERR, "stderr")):
            start, total = end[f"{name}_from"], end[f"{name}_total"]
            if total:
                piece = bytes(shell.output[channel][start : start + total])
                await self._send(frames.data_frame(self._number, channel, start, piece))
        await self._send(frames.end_frame(self._number, end))
