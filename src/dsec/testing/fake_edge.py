"""An edge in memory: the same HTTP and WebSocket on a Unix socket, no containers behind it.

For tests of the apiserver and the SDK. Faults are told, not drawn: ``fail_next`` makes the next requests of a route
fail, ``hold`` keeps them waiting, ``drop_sockets`` cuts the WebSockets.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from dsec.api import types
from dsec.api.http import error_body, status_of
from dsec.api.images import ImageInfo
from dsec.api.jobs import JobInfo
from dsec.api.snapshots import SnapshotInfo
from dsec.errors import DSecError, Fenced, NotFound
from dsec.testing.fake_answers import USAGE, json_answer
from dsec.testing.fake_edge_exec_routes import ExecRoutes
from dsec.testing.fake_edge_execs import FakeExec, OutStream
from dsec.testing.fake_edge_faults import Faults
from dsec.testing.fake_edge_jobs import JobRoutes
from dsec.testing.fake_edge_sandboxes import SandboxRoutes
from dsec.testing.fake_edge_sessions import FakeShell
from dsec.testing.fake_edge_snapshots import SnapshotRoutes
from dsec.testing.fake_edge_stores import StoreRoutes

__all__ = ["FakeEdge"]


class FakeEdge(Faults):
    """State is public: tests look at it and change it."""

    def __init__(self, node: str = "fake") -> None:
        super().__init__()
        self.node = node
        self.sandboxes: dict[str, types.SandboxInfo] = {}
        self.by_key: dict[str, tuple[bytes, str]] = {}
        self.cancelled: list[str] = []
        self.files: dict[tuple[str, str], bytes] = {}
        self.execs: dict[str, FakeExec] = {}
        self.shells: dict[str, FakeShell] = {}
        """Sessions, by their IDs."""
        self.starts: list[str] = []
        self.kills: list[str] = []
        self.killed_early: set[str] = set()
        """Execs that were killed before they were started."""
        self.requests: list[tuple[str, str, str]] = []
        """(method, path, principal) of each request."""
        self.callers: list[tuple[str, str, str]] = []
        """(principal, project, scope) of each."""
        self.frames_in = 0
        self.uploads: dict[str, bytes] = {}
        self.images: dict[str, ImageInfo] = {}
        self.jobs: dict[str, JobInfo] = {}
        self.snapshots: dict[str, SnapshotInfo] = {}
        self.beats: list[tuple[str, int]] = []
        self.streams: list[OutStream] = []
        self.sockets: set[web.WebSocketResponse] = set()
        self.started = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self.loop: asyncio.AbstractEventLoop | None = None

    # For tests

    async def drop_sockets(self) -> None:
        """Cut every WebSocket without a close frame."""
        for socket in list(self.sockets):
            transport = socket._req.transport if socket._req is not None else None
            if transport is not None:
                transport.abort()

    async def until_started(self, argv: list[str]) -> None:
        """Wait until a program with these words has begun."""
        while self.exec_of(argv) is None:
            self.started.clear()
            await self.started.wait()

    def exec_of(self, argv: list[str]) -> FakeExec | None:
        """The latest exec of that program."""
        return next((known for known in reversed(self.execs.values()) if known.argv == argv), None)

    async def until_quiet(self) -> int:
        """Wait until no stream has sent for 0.2 s; returns the bytes of output sent so far.

        That nothing more comes can only be seen by waiting for it.
        """
        before = -1
        while before != (now := sum(stream.sent for stream in self.streams)) or not now:
            before = now
            await asyncio.sleep(0.2)
        return now

    # Serving

    async def start(self, socket: Path) -> None:
        """Listen on a Unix socket."""
        self.loop = asyncio.get_running_loop()
        app = web.Application(middlewares=[self._around], client_max_size=1 << 30)
        app.add_routes([web.get("/metrics", self._metrics), web.get("/v1/status", self._status)])
        parts = (SandboxRoutes(self), SnapshotRoutes(self), JobRoutes(self), ExecRoutes(self), StoreRoutes(self))
        for part in parts:
            app.add_routes(part.routes())
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.UnixSite(self._runner, str(socket)).start()

    async def stop(self) -> None:
        """Stop listening and forget the connections; the state stays."""
        if self._runner is not None:
            await self.drop_sockets()
            await self._runner.cleanup()

    @web.middleware
    async def _around(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.requests.append((request.method, request.path, request.headers.get("dsec-principal", "")))
        names = ("dsec-principal", "dsec-project", "dsec-scope")
        principal, project, scope = (",".join(request.headers.getall(name, [])) for name in names)
        self.callers.append((principal, project, scope))
        try:
            if request.path != "/v1/ws":
                self.check_claim(request.headers.get("dsec-job"))
            await self.meet(request)
            answer: web.StreamResponse = await handler(request)
        except DSecError as error:
            failed = json_answer(error_body(error), status_of(error))
            if error.retry_after_s is not None:
                failed.headers["Retry-After"] = str(round(error.retry_after_s))
            return failed
        return answer

    async def _status(self, request: web.Request) -> web.Response:
        return json_answer(
            types.Status(
                node=self.node, version="fake", boot_id="", parts=[], sandboxes={"running": len(self.sandboxes)},
                queued=0, requests={}, capacity={}, stats={}, features=[],
            )
        )  # fmt: skip

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=f"dsec_edge_sandboxes {len(self.sandboxes)}\n")

    # For its routes

    def sandbox(self, request: web.Request) -> types.SandboxInfo:
        """The sandbox that a request's path names; raises NotFound."""
        asked = request.match_info["id"]
        for info in self.sandboxes.values():
            if asked in (info.id, info.name):
                return info
        raise NotFound(f"no sandbox is {asked!r}", sandbox_id=asked)

    def check_claim(self, header: str | None) -> None:
        """Raise Fenced when a request's claim of a job is not the newest."""
        if header is not None:
            name, _, fence = header.rpartition(";")
            if self.jobs[name].fence != int(fence):
                raise Fenced("the job has a newer holder", phase="job")

    def end(self, sandbox_id: str, cause: str) -> types.Stopped:
        """End a sandbox and its execs; one that has ended stays as it was."""
        info = self.sandboxes[sandbox_id]
        for known in self.execs.values():
            if known.sandbox_id == sandbox_id and known.end is None:
                known.kill(cause)
        if info.ended_at is None:
            info = msgspec.structs.replace(
                info, state=types.SandboxState.STOPPED, ended_at=time.time(), cause=cause, usage=USAGE
            )
            self.sandboxes[sandbox_id] = info
        return types.Stopped(
            id=sandbox_id,
            cause=info.cause or cause,
            ended_at=info.ended_at or 0.0,
            processes=0,
            waited_s=0.0,
            usage=USAGE,
        )
