"""One client's WebSocket and its connection to the runtime: opens are completed, ends noted, the rest is copied.

Stream numbers carry over unchanged. Data frames are looked at, never decoded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import structlog

from dsec.api import frames
from dsec.api.frames import Kind
from dsec.backends.link import FrameConnection
from dsec.edge.caller import calling
from dsec.edge.core import Core
from dsec.edge.execs import Execs
from dsec.edge.faults import fault
from dsec.edge.file_streams import FileOpening, open_file_stream
from dsec.edge.opening import Opening
from dsec.edge.record import SandboxRecord
from dsec.edge.telling import Told, tell_events, tell_logs
from dsec.errors import DSecError, InvalidArgument, NodeError, PlatformError, ProtocolError, SandboxGone, Unsupported

__all__ = ["Relay"]

_log = structlog.get_logger("dsec.edge.relay")

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_MOST_QUEUED = 1 << 20
_COMMIT_S = 5.0
RESTART, PROTOCOL, UNREADABLE = 1012, 1002, 1003


class Relay:
    """The life of one WebSocket. ``run`` returns when either side is gone.

    ``check`` raises what is to be told to whoever opens a stream and may not.
    """

    def __init__(self, core: Core, execs: Execs, check: Callable[[], None], receive: Receive, send: Send) -> None:
        self._core = core
        self._check = check
        self._execs = execs
        self._receive = receive
        self._send = send
        self._openings: dict[int, Opening | FileOpening] = {}
        self._told: dict[int, Told] = {}
        self._joining = frames.Joining()
        self._held: set[asyncio.Task[None]] = set()
        self._out: deque[bytes] = deque()
        self._queued = 0
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._paused = False
        self._closing: int | None = None
        self._runtime: FrameConnection | None = None
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Accept and copy until the client or the runtime hangs up."""
        await self._receive()  # websocket.connect
        try:
            self._runtime = await self._core.link.dial(self._from_runtime, self._lost)
        except NodeError:
            await self._send({"type": "websocket.close", "code": RESTART})
            return
        try:
            await self._send({"type": "websocket.accept"})
            async with asyncio.TaskGroup() as self._tasks:
                pump = self._tasks.create_task(self._pump())
                client = self._tasks.create_task(self._from_client())
                await asyncio.wait({pump, client}, return_when=asyncio.FIRST_COMPLETED)
                for task in (pump, client, *self._held, *(told.task for told in self._told.values())):
                    task.cancel()
        finally:
            self._runtime.close()
            for opening in self._openings.values():
                self._no_longer_starting(opening)

    def cut(self) -> None:
        """Hang up: the client connects again, and is told why when it opens its streams anew."""
        self._close(RESTART)

    # From the client

    async def _from_client(self) -> None:
        while True:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                return
            frame = message.get("bytes")
            if frame is None:
                self._close(UNREADABLE)
                return
            try:
                await self._client_frame(frame)
            except ProtocolError as error:
                _log.warning("a client broke the protocol", error=error.message)
                self._close(PROTOCOL)
                return
            except NodeError:
                self._close(RESTART)
                return

    async def _client_frame(self, frame: bytes) -> None:
        assert self._runtime is not None
        stream, kind = frames.peek(frame)
        if kind == Kind.OPEN:
            self._open(frame)
            return
        if kind == Kind.PART:
            whole = self._joining.take(frame)
            if whole is not None:
                self._open(whole)
            return
        told = self._told.get(stream)
        if told is not None:
            told.take(frames.decode(frame))
            return
        if kind not in (Kind.DATA, Kind.UNTIL, Kind.CLOSE):
            raise ProtocolError(f"a client sends no frames of kind {kind}")
        if stream not in self._openings:
            self._joining.drop(stream)
            return  # over: what was on its way is of no use any more
        self._runtime.send(frame)
        await self._runtime.drain()

    def _open(self, frame: bytes) -> None:
        parts = frames.decode(frame)
        if len(parts) != 4 or not isinstance(parts[2], str) or not isinstance(parts[3], dict):
            raise ProtocolError("an open frame has a method and parameters")
        stream, method, params = parts[0], parts[2], parts[3]
        if stream in self._openings or stream in self._told:
            raise ProtocolError(f"stream {stream} is open")
        try:
            self._dispatch(stream, method, params)
        except (ProtocolError, NodeError):
            raise
        except DSecError as error:
            self._put(frames.error_frame(stream, error.to_wire()))
        except Exception as error:
            _log.exception("open failed", method=method)
            wire = PlatformError(f"{method} failed: {type(error).__name__}: {error}").to_wire()
            self._put(frames.error_frame(stream, wire))

    def _dispatch(self, stream: int, method: str, params: dict[str, Any]) -> None:
        self._check()
        if not _only_looks(method, params):
            calling().need("exec", method[:80])
        if method == "exec":
            self._forward(stream, self._execs.open(params))
        elif method == "attach":
            self._forward(stream, self._execs.attach(params))
        elif method == "kill":
            kill = self._execs.open_kill(params)
            if kill is None:
                self._put(frames.end_frame(stream, {}))
            else:
                self._forward(stream, kill)
        elif method == "session.open":
            self._forward(stream, self._execs.open_session(params))
        elif method in ("session.run", "session.cancel", "session.close"):
            self._forward(stream, self._execs.sessions.open(method, params))
        elif method.startswith("file."):
            self._forward(stream, open_file_stream(self._core, method, params))
        elif method in ("logs", "events"):
            tell = tell_logs if method == "logs" else tell_events
            self._begin_told(stream, tell(self._core, params))
        else:
            raise Unsupported(f"this server has no method {method[:80]!r}")

    def _forward(self, stream: int, opening: Opening | FileOpening) -> None:
        assert self._runtime is not None
        try:
            opens = frames.open_frames(stream, opening.method, opening.params)
        except InvalidArgument as error:
            if isinstance(opening, Opening):
                self._execs.refused(opening, error.to_wire())
            raise
        if isinstance(opening, FileOpening):
            for frame in opens:
                self._runtime.send(frame)
            self._openings[stream] = opening
            return
        fault("edge.exec.intended")
        for frame in opens:
            self._runtime.send(frame)
        fault("edge.exec.forwarded")
        self._openings[stream] = opening
        self._core.starting[opening.exec_id] += 1

    def _begin_told(self, stream: int, told: Told) -> None:
        assert self._tasks is not None
        self._told[stream] = told
        told.task = self._tasks.create_task(self._tell(stream, told))

    async def _tell(self, stream: int, told: Told) -> None:
        try:
            async for frame in told.frames(stream):
                await self._room.wait()
                self._put(frame)
            self._put(frames.end_frame(stream, {}))
        except NodeError:
            self._close(RESTART)
        except DSecError as error:
            self._put(frames.error_frame(stream, error.to_wire()))
        finally:
            self._told.pop(stream, None)

    # From the runtime

    def _from_runtime(self, frame: bytes) -> None:
        stream, kind = frames.peek(frame)
        if kind in (Kind.END, Kind.ERROR):
            opening = self._openings.pop(stream, None)
            if opening is not None:
                self._no_longer_starting(opening)
                self._over(frame, stream, kind, opening)
                return
        self._put(frame)
        if self._queued > _MOST_QUEUED and not self._paused and self._runtime is not None:
            self._paused = True
            self._runtime.pause_reading()

    def _no_longer_starting(self, opening: Opening | FileOpening) -> None:
        if isinstance(opening, FileOpening):
            return
        starting = self._core.starting
        starting[opening.exec_id] -= 1
        if not starting[opening.exec_id]:
            del starting[opening.exec_id]

    def _over(self, frame: bytes, stream: int, kind: int, opening: Opening | FileOpening) -> None:
        """Commit the outcome before anybody is told; a recorded one is told in place of the runtime's."""
        if isinstance(opening, FileOpening):
            if opening.method == "exec.kill":
                fault("edge.kill.confirmed")
            if kind == Kind.END or not self._held_back(frame, opening.sandbox_id):
                self._put(frame)
            return
        outcome = opening.outcome
        if outcome is not None:
            if outcome.end is not None:
                frame = frames.end_frame(stream, outcome.end)
            elif outcome.error is not None:
                frame = frames.error_frame(stream, outcome.error)
            self._put(frame)
            return
        content = frames.decode(frame)[2]
        fault("edge.exec.ended")
        if kind == Kind.END:
            self._execs.ended(opening, content)
            fault("edge.exec.committed")
        else:
            self._execs.refused(opening, content)
            if self._held_back(frame, opening.sandbox_id):
                return
        self._put(frame)

    def _held_back(self, frame: bytes, sandbox_id: str) -> bool:
        """Whether the frame tells of a sandbox's end, which is then told when it is recorded."""
        record = self._core.live.get(sandbox_id)
        if record is None or frames.decode(frame)[2].get("code") != SandboxGone.code or self._tasks is None:
            return False
        task = self._tasks.create_task(self._put_after_end(frame, record))
        self._held.add(task)
        task.add_done_callback(self._held.discard)
        return True

    async def _put_after_end(self, frame: bytes, record: SandboxRecord) -> None:
        """Whoever is told that a sandbox has ended finds it so, although the runtime's event comes a moment later."""
        await self._core.until_over(record, _COMMIT_S)
        self._put(frame)

    def _lost(self) -> None:
        self._close(RESTART)

    # To the client

    def _put(self, frame: bytes) -> None:
        self._out.append(frame)
        self._queued += len(frame)
        if self._queued > _MOST_QUEUED:
            self._room.clear()
        self._wake.set()

    def _close(self, code: int) -> None:
        if self._closing is None:
            self._closing = code
        self._wake.set()

    async def _pump(self) -> None:
        try:
            while True:
                while self._out:
                    frame = self._out.popleft()
                    self._queued -= len(frame)
                    await self._send({"type": "websocket.send", "bytes": frame})
                self._has_room()
                if self._closing is not None:
                    await self._send({"type": "websocket.close", "code": self._closing})
                    return
                self._wake.clear()
                await self._wake.wait()
        except (OSError, RuntimeError):
            return  # the client is gone in the middle of a frame

    def _has_room(self) -> None:
        self._room.set()
        if self._paused and self._runtime is not None:
            self._paused = False
            self._runtime.resume_reading()


def _only_looks(method: str, params: dict[str, Any]) -> bool:
    """Whether opening a stream takes no more than scope ``read``. Who attaches may write to the program."""
    if method == "file.call":
        call = params.get("call")
        return isinstance(call, dict) and set(call) == {"stat"}
    return method in ("logs", "events", "file.list", "file.watch")
