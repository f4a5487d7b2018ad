"""Execs of the fake edge by HTTP, and the streams of its WebSockets."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec
from aiohttp import web

from dsec.api import frames, types
from dsec.api.ids import exec_id
from dsec.errors import DSecError, NotFound
from dsec.testing.fake_answers import json_answer
from dsec.testing.fake_edge_execs import FakeExec, OutStream, argv_of
from dsec.testing.fake_edge_sessions import SessionStream

if TYPE_CHECKING:
    from dsec.testing.fake_edge import FakeEdge

__all__ = ["ExecRoutes"]


class ExecRoutes:
    """Handlers over the edge's table of execs."""

    def __init__(self, edge: FakeEdge) -> None:
        self._edge = edge

    def routes(self) -> list[web.RouteDef]:
        """Of this part."""
        return [
            web.get("/v1/ws", self._websocket),
            web.get("/v1/sandboxes/{id}/execs", self._list_execs),
            web.get("/v1/sandboxes/{id}/execs/{exec_id}", self._get_exec),
            web.post("/v1/sandboxes/{id}/execs/{exec_id}/kill", self._kill),
        ]

    def _exec(self, request: web.Request) -> FakeExec:
        known = self._edge.execs.get(request.match_info["exec_id"])
        if known is None:
            raise NotFound("no such exec")
        return known

    async def _list_execs(self, request: web.Request) -> web.Response:
        info = self._edge.sandbox(request)
        return json_answer(
            {"execs": [_exec_info(known) for known in self._edge.execs.values() if known.sandbox_id == info.id]}
        )

    async def _get_exec(self, request: web.Request) -> web.Response:
        return json_answer(_exec_info(self._exec(request)))

    async def _kill(self, request: web.Request) -> web.Response:
        asked = msgspec.json.decode(await request.read(), type=types.KillRequest)
        self._end(request.match_info["exec_id"], asked.signal)
        return json_answer({})

    def _end(self, identifier: str, signal: int | None) -> None:
        self._edge.kills.append(identifier)
        known = self._edge.execs.get(identifier)
        if known is None:
            self._edge.killed_early.add(identifier)
        elif signal is not None:
            known.signals.append(signal)
        elif known.end is None:
            known.kill("cancelled")

    async def _kill_opened(self, number: int, params: dict[str, Any], socket: web.WebSocketResponse) -> None:
        try:
            self._edge.fail("WS kill")
            await self._edge.meet_open("WS kill")
            self._end(params["exec_id"], params["signal"])
            answer = frames.end_frame(number, {})
        except DSecError as error:
            answer = frames.error_frame(number, error.to_wire())
        with contextlib.suppress(ConnectionError):
            await socket.send_bytes(answer)

    async def _websocket(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(max_msg_size=frames.MAX_FRAME_BYTES + 1024, compress=False)
        await socket.prepare(request)
        self._edge.sockets.add(socket)
        streams: dict[int, OutStream | SessionStream] = {}
        joining = frames.Joining()
        tasks: set[asyncio.Task[None]] = set()
        try:
            async for message in socket:
                if message.type is aiohttp.WSMsgType.BINARY:
                    self._edge.frames_in += 1
                    frame: bytes | None = message.data
                    if frames.peek(message.data)[1] == frames.Kind.PART:
                        frame = joining.take(message.data)
                    if frame is not None:
                        await self._frame(frames.decode(frame), streams, tasks, socket)
        finally:
            self._edge.sockets.discard(socket)
            for task in tasks:
                task.cancel()
        return socket

    async def _frame(
        self,
        frame: list[Any],
        streams: dict[int, OutStream | SessionStream],
        tasks: set[asyncio.Task[None]],
        socket: web.WebSocketResponse,
    ) -> None:
        number, kind = frame[0], frame[1]
        if kind == frames.Kind.OPEN:
            try:
                self._edge.check_claim(socket._req.headers.get("dsec-job") if socket._req is not None else None)
                if frame[2] == "kill":
                    _keep(asyncio.create_task(self._kill_opened(number, frame[3], socket)), tasks)
                    return
                if frame[2].startswith("session."):
                    session = self._session(number, frame[2], frame[3], socket)
                    streams[number] = session
                    _keep(asyncio.create_task(_answered(session, number, socket)), tasks)
                    return
                stream = OutStream(number, self._opened(frame[2], frame[3]), frame[3], socket.send_bytes)
            except DSecError as error:
                await socket.send_bytes(frames.error_frame(number, error.to_wire()))
                return
            streams[number] = stream
            self._edge.streams.append(stream)
            _keep(asyncio.create_task(_quietly(stream)), tasks)
        elif number in streams and kind == frames.Kind.DATA:
            await streams[number].take_stdin(frame[3], frame[4])
        elif number in streams and kind == frames.Kind.UNTIL:
            streams[number].grant(frame[2], frame[3])

    def _session(
        self, number: int, method: str, params: dict[str, Any], socket: web.WebSocketResponse
    ) -> SessionStream:
        if params["sandbox_id"] not in self._edge.sandboxes:
            raise NotFound(f"no sandbox is {params['sandbox_id']!r}", sandbox_id=params["sandbox_id"])
        self._edge.fail(f"WS {method}")
        return SessionStream(self._edge.shells, number, method, params, socket.send_bytes)

    def _opened(self, method: str, params: dict[str, Any]) -> FakeExec:
        sandbox_id = params["sandbox_id"]
        info = self._edge.sandboxes.get(sandbox_id)
        if info is None:
            raise NotFound(f"no sandbox is {sandbox_id!r}", sandbox_id=sandbox_id)
        identifier = params["exec_id"] if method == "attach" else exec_id(sandbox_id, params["key"])
        known = self._edge.execs.get(identifier)
        if known is None and method == "attach":
            raise NotFound("no such exec", sandbox_id=sandbox_id)
        self._edge.fail(f"WS {method}")
        if known is None:
            merged = bool(params.get("merge_stderr") or params.get("pty"))
            known = FakeExec(sandbox_id, identifier, argv_of(params), merged=merged)
            known.start()
            self._edge.execs[identifier] = known
            self._edge.starts.append(identifier)
            self._edge.started.set()
            if identifier in self._edge.killed_early:
                known.kill("cancelled")
        return known


def _keep(task: asyncio.Task[None], tasks: set[asyncio.Task[None]]) -> None:
    tasks.add(task)
    task.add_done_callback(tasks.discard)


async def _answered(stream: SessionStream, number: int, socket: web.WebSocketResponse) -> None:
    with contextlib.suppress(ConnectionError):
        try:
            await stream.run()
        except DSecError as error:
            await socket.send_bytes(frames.error_frame(number, error.to_wire()))


async def _quietly(stream: OutStream) -> None:
    try:
        await stream.run()
    except ConnectionError:
        return


def _exec_info(known: FakeExec) -> types.ExecInfo:
    end = known.end or {}
    return types.ExecInfo(
        id=known.exec_id, sandbox_id=known.sandbox_id, argv=known.argv, started_at=known.started_at,
        ended=types.Ended(end["ended"]) if end else None, exit_code=end.get("exit_code"), signal=end.get("signal"),
        stdout_total_bytes=len(known.output[1]), stderr_total_bytes=len(known.output[2]),
        duration_s=end["duration_ns"] / 1e9 if end else None,
    )  # fmt: skip
