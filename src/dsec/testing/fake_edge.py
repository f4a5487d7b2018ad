"""An edge in memory: the same HTTP and WebSocket on a Unix socket, no containers behind it.

For tests of the apiserver and the SDK. Faults are told, not drawn: ``fail_next`` makes the next requests of a route
fail, ``hold`` keeps them waiting, ``drop_sockets`` cuts the WebSockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from dsec.api import frames, types
from dsec.api.http import error_body, status_of
from dsec.api.ids import exec_id, new_sandbox_id
from dsec.errors import Conflict, DSecError, Fenced, FileMissing, InvalidArgument, NotFound, Unsupported
from dsec.testing.fake_edge_execs import FakeExec, OutStream, argv_of

__all__ = ["FakeEdge"]

_USAGE = types.Usage(cpu_s=0.1, memory_mib=1, memory_peak_mib=2, disk_mib=0, pids=1, wall_s=1, oom_kills=0)


class FakeEdge:
    """State is public: tests look at it and change it."""

    def __init__(self, node: str = "fake") -> None:
        self.node = node
        self.sandboxes: dict[str, types.SandboxInfo] = {}
        self.by_key: dict[str, tuple[bytes, str]] = {}
        self.cancelled: list[str] = []
        self.files: dict[tuple[str, str], bytes] = {}
        self.execs: dict[str, FakeExec] = {}
        self.starts: list[str] = []
        self.kills: list[str] = []
        self.requests: list[tuple[str, str, str]] = []
        """(method, path, principal) of each request."""
        self.frames_in = 0
        self.uploads: dict[str, bytes] = {}
        self.images: dict[str, types.ImageInfo] = {}
        self.jobs: dict[str, types.JobInfo] = {}
        self.beats: list[tuple[str, int]] = []
        self.gone: list[str] = []
        """Held requests whose client went away."""
        self._someone_gone = asyncio.Event()
        self.streams: list[OutStream] = []
        self._started = asyncio.Event()
        self._killed_early: set[str] = set()
        self._failures: dict[str, list[DSecError]] = {}
        self._holds: dict[str, asyncio.Event] = {}
        self._held: dict[str, asyncio.Event] = {}
        self._sockets: set[web.WebSocketResponse] = set()
        self._runner: web.AppRunner | None = None
        self.loop: asyncio.AbstractEventLoop | None = None

    # For tests

    def fail_next(self, route: str, *errors: DSecError) -> None:
        """The next requests whose ``METHOD path`` is ``route`` (or begins so, before a ``*``) get these errors."""
        self._failures.setdefault(route, []).extend(errors)

    def hold(self, route: str) -> None:
        """Requests whose ``METHOD path`` is ``route`` (or begins so, before a ``*``) wait until ``release``."""
        self._holds[route] = asyncio.Event()
        self._held[route] = asyncio.Event()

    def release(self, route: str) -> None:
        """Let held requests go on; later ones are not held."""
        self._holds.pop(route).set()

    async def until_held(self, route: str) -> None:
        """Wait until a request is being held."""
        await self._held[route].wait()

    async def drop_sockets(self) -> None:
        """Cut every WebSocket without a close frame."""
        for socket in list(self._sockets):
            transport = socket._req.transport if socket._req is not None else None
            if transport is not None:
                transport.abort()

    async def until_started(self, argv: list[str]) -> None:
        """Wait until a program with these words has begun."""
        while self.exec_of(argv) is None:
            self._started.clear()
            await self._started.wait()

    def exec_of(self, argv: list[str]) -> FakeExec | None:
        """The latest exec of that program."""
        return next((known for known in reversed(self.execs.values()) if known.argv == argv), None)

    # Serving

    async def start(self, socket: Path) -> None:
        """Listen on a Unix socket."""
        self.loop = asyncio.get_running_loop()
        app = web.Application(middlewares=[self._around], client_max_size=1 << 30)
        app.add_routes(
            [
                web.get("/v1/ws", self._websocket),
                web.get("/metrics", self._metrics),
                web.get("/v1/status", self._status),
                web.post("/v1/sandboxes", self._create),
                web.get("/v1/sandboxes", self._find),
                web.get("/v1/sandboxes/{id}", self._get),
                web.delete("/v1/creates/{key}", self._cancel),
                web.post("/v1/stop", self._stop_many),
                web.post("/v1/jobs", self._take_job),
                web.get("/v1/jobs", self._list_jobs),
                web.get("/v1/jobs/{name}", self._get_job),
                web.post("/v1/jobs/{name}/heartbeat", self._heartbeat),
                web.post("/v1/jobs/{name}/stop", self._stop_job),
                web.post("/v1/sandboxes/{id}/stop", self._stop),
                web.delete("/v1/sandboxes/{id}", self._remove),
                web.post("/v1/sandboxes/{id}/pause", self._pause),
                web.post("/v1/sandboxes/{id}/resume", self._resume),
                web.get("/v1/sandboxes/{id}/story", self._story),
                web.get("/v1/sandboxes/{id}/usage", self._usage),
                web.get("/v1/sandboxes/{id}/execs", self._list_execs),
                web.get("/v1/sandboxes/{id}/execs/{exec_id}", self._get_exec),
                web.post("/v1/sandboxes/{id}/execs/{exec_id}/kill", self._kill),
                web.get("/v1/sandboxes/{id}/files", self._read),
                web.put("/v1/sandboxes/{id}/files", self._write),
                web.get("/v1/images", self._images),
                web.post("/v1/images/import", self._import),
                web.post("/v1/layers", self._layer),
            ]
        )
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
        label = f"{request.method} {request.path}"
        try:
            if request.path != "/v1/ws":
                self._check_claim(request.headers.get("dsec-job"))
            for route, errors in self._failures.items():
                if _fits(route, label) and errors:
                    raise errors.pop(0)
            for route, event in list(self._holds.items()):
                if _fits(route, label):
                    self._held[route].set()
                    await self._released(request, label, event)
            answer: web.StreamResponse = await handler(request)
        except DSecError as error:
            failed = _json(error_body(error), status_of(error))
            if error.retry_after_s is not None:
                failed.headers["Retry-After"] = str(round(error.retry_after_s))
            return failed
        return answer

    async def _released(self, request: web.Request, label: str, event: asyncio.Event) -> None:
        """Wait for the release; a client that goes meanwhile is noted, as a queue would."""
        while not event.is_set():
            if request.transport is None or request.transport.is_closing():
                self.gone.append(label)
                self._someone_gone.set()
                raise NotFound("the client has gone")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.01):
                    await event.wait()

    async def until_gone(self) -> None:
        """Wait until a held request's client has gone."""
        await self._someone_gone.wait()

    async def until_quiet(self) -> int:
        """Wait until no stream has sent for 0.2 s; returns the bytes of output sent so far.

        That nothing more comes can only be seen by waiting for it.
        """
        before = -1
        while before != (now := sum(stream.sent for stream in self.streams)) or not now:
            before = now
            await asyncio.sleep(0.2)
        return now

    def _sandbox(self, request: web.Request) -> types.SandboxInfo:
        asked = request.match_info["id"]
        for info in self.sandboxes.values():
            if asked in (info.id, info.name):
                return info
        raise NotFound(f"no sandbox is {asked!r}", sandbox_id=asked)

    # Sandboxes

    async def _create(self, request: web.Request) -> web.Response:
        body = await request.read()
        try:
            asked = msgspec.json.decode(body, type=types.CreateRequest)
        except msgspec.ValidationError as error:
            raise (Unsupported if "unknown field" in str(error) else InvalidArgument)(str(error)) from None
        canonical = msgspec.json.encode(msgspec.structs.replace(asked, deadline_s=0, on_full="wait"))
        if asked.key in self.by_key:
            known, sandbox_id = self.by_key[asked.key]
            if known != canonical:
                raise Conflict("the key was used with another body")
            return _json(self.sandboxes[sandbox_id])
        if asked.key in self.cancelled:
            raise Conflict("the create was cancelled")
        info = self._made(asked, request.headers["dsec-principal"])
        self.sandboxes[info.id] = info
        self.by_key[asked.key] = (canonical, info.id)
        return _json(info)

    def _made(self, asked: types.CreateRequest, principal: str) -> types.SandboxInfo:
        return types.SandboxInfo(
            id=new_sandbox_id(self.node), node=self.node, state=types.SandboxState.RUNNING, image=asked.image,
            image_digest="0" * 64, layers=[], backend=asked.backend, created_at=time.time(), cpu=_limit(asked.cpu),
            memory_mib=_limit(asked.memory_mib), disk_mib=_limit(asked.disk_mib), pids=int(_limit(asked.pids)),
            idle_timeout_s=asked.idle_timeout_s, lifetime_s=asked.lifetime_s, labels=asked.labels, name=asked.name,
            principal=principal, env=asked.env, workdir=asked.workdir, user=asked.user, job=asked.job,
        )  # fmt: skip

    async def _find(self, request: web.Request) -> web.Response:
        labels = [pair.partition("=") for pair in request.query.getall("label", [])]
        states = ",".join(request.query.getall("state", list(types.SandboxState))).split(",")
        found = [
            info
            for info in self.sandboxes.values()
            if info.state in states
            and all(info.labels.get(k) == v for k, _, v in labels)
            and request.query.get("job") in (None, info.job)
        ]
        return _json({"sandboxes": found})

    def _check_claim(self, header: str | None) -> None:
        if header is not None:
            name, _, fence = header.rpartition(";")
            if self.jobs[name].fence != int(fence):
                raise Fenced("the job has a newer holder", phase="job")

    async def _take_job(self, request: web.Request) -> web.Response:
        asked = msgspec.json.decode(await request.read(), type=types.JobRequest)
        known = self.jobs.get(asked.name)
        self.jobs[asked.name] = types.JobInfo(
            name=asked.name, state=types.JobState.HELD, fence=1 if known is None else known.fence + 1, principal="p",
            lease_s=asked.lease_s, on_lost=asked.on_lost, max_live=asked.max_live, acquired_at=time.time(),
            expires_at=time.time() + asked.lease_s,
        )  # fmt: skip
        return _json(self.jobs[asked.name])

    async def _list_jobs(self, _: web.Request) -> web.Response:
        return _json({"jobs": list(self.jobs.values())})

    async def _get_job(self, request: web.Request) -> web.Response:
        return _json(self.jobs[request.match_info["name"]])

    async def _heartbeat(self, request: web.Request) -> web.Response:
        asked = msgspec.json.decode(await request.read(), type=types.HeartbeatRequest)
        info = self.jobs[request.match_info["name"]]
        self._check_claim(f"{info.name};{asked.fence}")
        self.beats.append((info.name, asked.fence))
        return _json(info)

    async def _stop_job(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        chosen = [info.id for info in self.sandboxes.values() if info.job == name and info.ended_at is None]
        for sandbox_id in chosen:
            self._end(sandbox_id, "stopped")
        self.jobs[name] = msgspec.structs.replace(self.jobs[name], state=types.JobState.ENDED)
        return _json(types.StopReport(stopped=chosen))

    async def _get(self, request: web.Request) -> web.Response:
        return _json(self._sandbox(request))

    async def _cancel(self, request: web.Request) -> web.Response:
        key = request.match_info["key"]
        self.cancelled.append(key)
        if key in self.by_key:
            self._end(self.by_key[key][1], "stopped")
        return _json({})

    def _end(self, sandbox_id: str, cause: str) -> types.Stopped:
        info = self.sandboxes[sandbox_id]
        for known in self.execs.values():
            if known.sandbox_id == sandbox_id and known.end is None:
                known.kill(cause)
        if info.ended_at is None:
            info = msgspec.structs.replace(
                info, state=types.SandboxState.STOPPED, ended_at=time.time(), cause=cause, usage=_USAGE
            )
            self.sandboxes[sandbox_id] = info
        return types.Stopped(
            id=sandbox_id,
            cause=info.cause or cause,
            ended_at=info.ended_at or 0.0,
            processes=0,
            waited_s=0.0,
            usage=_USAGE,
        )

    async def _stop(self, request: web.Request) -> web.Response:
        return _json(self._end(self._sandbox(request).id, "stopped"))

    async def _pause(self, request: web.Request) -> web.Response:
        info = self._sandbox(request)
        self.sandboxes[info.id] = msgspec.structs.replace(info, state=types.SandboxState.PAUSED)
        return _json(types.Paused(id=info.id, partial=False, waited_s=0.0))

    async def _resume(self, request: web.Request) -> web.Response:
        info = self._sandbox(request)
        self.sandboxes[info.id] = msgspec.structs.replace(info, state=types.SandboxState.RUNNING)
        return _json({})

    async def _remove(self, request: web.Request) -> web.Response:
        info = self._sandbox(request)
        if info.state is types.SandboxState.RUNNING and request.query.get("force") != "true":
            raise Conflict("the sandbox is running", sandbox_id=info.id)
        self._end(info.id, "stopped")
        del self.sandboxes[info.id]
        return _json({})

    async def _stop_many(self, request: web.Request) -> web.Response:
        asked = msgspec.json.decode(await request.read(), type=types.StopFilter)
        labels = asked.labels or {}
        chosen = [
            info.id
            for info in self.sandboxes.values()
            if info.ended_at is None and all(info.labels.get(k) == v for k, v in labels.items())
        ]
        for sandbox_id in chosen:
            self._end(sandbox_id, "stopped")
        return _json(types.StopReport(stopped=chosen))

    async def _story(self, request: web.Request) -> web.Response:
        info = self._sandbox(request)
        entry = types.StoryEntry(at=info.created_at, state="running", cause="created", actor=info.principal)
        return _json({"story": [entry]})

    async def _usage(self, request: web.Request) -> web.Response:
        self._sandbox(request)
        return _json(_USAGE)

    async def _status(self, request: web.Request) -> web.Response:
        return _json(
            types.Status(
                node=self.node, version="fake", boot_id="", parts=[], sandboxes={"running": len(self.sandboxes)},
                queued=0, requests={}, capacity={}, stats={}, features=[],
            )
        )  # fmt: skip

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=f"dsec_edge_sandboxes {len(self.sandboxes)}\n")

    # Files, images, layers

    async def _read(self, request: web.Request) -> web.Response:
        key = (self._sandbox(request).id, request.query["path"])
        if key not in self.files:
            raise FileMissing(f"no such file: {key[1]}", sandbox_id=key[0], errno=2, path=key[1])
        offset, limit = int(request.query.get("offset", 0)), request.query.get("limit")
        data = self.files[key][offset:]
        return web.Response(body=data if limit is None else data[: int(limit)])

    async def _write(self, request: web.Request) -> web.Response:
        key = (self._sandbox(request).id, request.query["path"])
        self.files[key] = body = await request.read()
        mode = int(request.query.get("mode", "644"), 8)
        return _json(types.FileWritten(path=key[1], bytes=len(body), mode=mode))

    async def _images(self, request: web.Request) -> web.Response:
        return _json({"images": list(self.images.values())})

    async def _import(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        reference = request.query.get("reference") or msgspec.json.decode(body)["source"]
        self.uploads[reference] = body
        info = types.ImageInfo(
            reference=reference, digest="0" * 64, layers=[], size_bytes=len(body), created_at=0,
            config=types.ImageConfig(),
        )  # fmt: skip
        self.images[reference] = info
        lines = [types.ImageProgress(phase="copy", done=1, total=2), {"image": info}]
        return web.Response(body=b"".join(msgspec.json.encode(line) + b"\n" for line in lines))

    async def _layer(self, request: web.Request) -> web.Response:
        reference = request.query["reference"]
        self.uploads[reference] = body = await request.read()
        return _json(types.LayerInfo(digest="1" * 64, size_bytes=len(body), reference=reference))

    # Execs

    def _exec(self, request: web.Request) -> FakeExec:
        known = self.execs.get(request.match_info["exec_id"])
        if known is None:
            raise NotFound("no such exec")
        return known

    async def _list_execs(self, request: web.Request) -> web.Response:
        info = self._sandbox(request)
        return _json({"execs": [_exec_info(known) for known in self.execs.values() if known.sandbox_id == info.id]})

    async def _get_exec(self, request: web.Request) -> web.Response:
        return _json(_exec_info(self._exec(request)))

    async def _kill(self, request: web.Request) -> web.Response:
        asked = msgspec.json.decode(await request.read(), type=types.KillRequest)
        identifier = request.match_info["exec_id"]
        self.kills.append(identifier)
        known = self.execs.get(identifier)
        if known is None:
            self._killed_early.add(identifier)
        elif asked.signal is not None:
            known.signals.append(asked.signal)
        elif known.end is None:
            known.kill("cancelled")
        return _json({})

    async def _websocket(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(max_msg_size=frames.MAX_FRAME_BYTES + 1024, compress=False)
        await socket.prepare(request)
        self._sockets.add(socket)
        streams: dict[int, OutStream] = {}
        joining = frames.Joining()
        tasks: set[asyncio.Task[None]] = set()
        try:
            async for message in socket:
                if message.type is aiohttp.WSMsgType.BINARY:
                    self.frames_in += 1
                    frame: bytes | None = message.data
                    if frames.peek(message.data)[1] == frames.Kind.PART:
                        frame = joining.take(message.data)
                    if frame is not None:
                        await self._frame(frames.decode(frame), streams, tasks, socket)
        finally:
            self._sockets.discard(socket)
            for task in tasks:
                task.cancel()
        return socket

    async def _frame(
        self,
        frame: list[Any],
        streams: dict[int, OutStream],
        tasks: set[asyncio.Task[None]],
        socket: web.WebSocketResponse,
    ) -> None:
        number, kind = frame[0], frame[1]
        if kind == frames.Kind.OPEN:
            try:
                self._check_claim(socket._req.headers.get("dsec-job") if socket._req is not None else None)
                stream = OutStream(number, self._opened(frame[2], frame[3]), frame[3], socket.send_bytes)
            except DSecError as error:
                await socket.send_bytes(frames.error_frame(number, error.to_wire()))
                return
            streams[number] = stream
            self.streams.append(stream)
            task = asyncio.create_task(_quietly(stream))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        elif number in streams and kind == frames.Kind.DATA:
            await streams[number].take_stdin(frame[3], frame[4])
        elif number in streams and kind == frames.Kind.UNTIL:
            streams[number].grant(frame[2], frame[3])

    def _opened(self, method: str, params: dict[str, Any]) -> FakeExec:
        sandbox_id = params["sandbox_id"]
        info = self.sandboxes.get(sandbox_id)
        if info is None:
            raise NotFound(f"no sandbox is {sandbox_id!r}", sandbox_id=sandbox_id)
        identifier = params["exec_id"] if method == "attach" else exec_id(sandbox_id, params["key"])
        known = self.execs.get(identifier)
        if known is None and method == "attach":
            raise NotFound("no such exec", sandbox_id=sandbox_id)
        for route, errors in self._failures.items():
            if route == f"WS {method}" and errors:
                raise errors.pop(0)
        if known is None:
            merged = bool(params.get("merge_stderr") or params.get("pty"))
            known = FakeExec(sandbox_id, identifier, argv_of(params), merged=merged)
            known.start()
            self.execs[identifier] = known
            self.starts.append(identifier)
            self._started.set()
            if identifier in self._killed_early:
                known.kill("cancelled")
        return known


async def _quietly(stream: OutStream) -> None:
    try:
        await stream.run()
    except ConnectionError:
        return


def _fits(route: str, label: str) -> bool:
    return label.startswith(route[:-1]) if route.endswith("*") else label == route


def _limit(limit: types.Limit) -> float:
    return limit[1] if isinstance(limit, tuple) else limit


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


def _exec_info(known: FakeExec) -> types.ExecInfo:
    end = known.end or {}
    return types.ExecInfo(
        id=known.exec_id, sandbox_id=known.sandbox_id, argv=known.argv, started_at=known.started_at,
        ended=types.Ended(end["ended"]) if end else None, exit_code=end.get("exit_code"), signal=end.get("signal"),
        stdout_total_bytes=len(known.output[1]), stderr_total_bytes=len(known.output[2]),
        duration_s=end["duration_ns"] / 1e9 if end else None,
    )  # fmt: skip
