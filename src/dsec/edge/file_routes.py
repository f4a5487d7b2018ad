"""Reading and writing files of a sandbox: the runtime's streams as HTTP bodies, in constant memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from dsec.api import frames
from dsec.api.frames import STDIN, STDOUT, Kind
from dsec.api.ids import check_exec_id
from dsec.api.types import FileWritten
from dsec.backends.link import RuntimeLink, Stream
from dsec.backends.wire import FileReport, answer
from dsec.edge.core import Core
from dsec.edge.faults import fault
from dsec.edge.file_streams import check_path, file_place
from dsec.edge.record import SandboxRecord
from dsec.edge.router import Route
from dsec.edge.web import answered, json_answer, query_of
from dsec.errors import InvalidArgument

__all__ = ["file_routes"]

_WINDOW = 1 << 20


class _Files:
    """The answers."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def read(self, request: Request) -> Response:
        query = query_of(request, "path", "offset", "limit", "user")
        record = self._core.running(request.path_params["id"])
        params = _place(record, query) | {
            "offset": _number(query, "offset", 0),
            "limit": _number(query, "limit", None),
            "credit": {STDOUT: (_number(query, "offset", 0) or 0) + _WINDOW},
        }
        stream = await _opened(self._core.link, "file.read", params)
        body = _bytes_of(stream)
        # The first bytes are awaited here, so that a missing file is an answer and not a broken body.
        try:
            first = await anext(body, None)
        except BaseException:
            stream.close()
            raise
        if first is None:
            return Response(b"", media_type="application/octet-stream")
        return StreamingResponse(_after(first, body, stream), media_type="application/octet-stream")

    async def write(self, request: Request) -> Response:
        query = query_of(request, "path", "mode", "parents", "user")
        record = self._core.running(request.path_params["id"])
        length = request.headers.get("content-length")
        if length is None:
            raise InvalidArgument("a write needs a Content-Length", remedy="Send the body with its length")
        params = _place(record, query) | {
            "mode": _mode(query),
            "parents": query.get("parents", [""])[0].lower() in ("1", "true", "yes"),
            "length": int(length),
        }
        stream = await _opened(self._core.link, "file.write", params)
        fault("edge.write.opened")
        try:
            report = await _send_body(stream, request, int(length))
        finally:
            stream.close()
        fault("edge.write.reported")
        shown = params["path"].decode(errors="backslashreplace")
        return json_answer(FileWritten(path=shown, bytes=report.bytes, mode=report.mode))

    async def cancel(self, request: Request) -> Response:
        """Returns when nothing is left of the transfer; one that is unknown, or whose sandbox is, is over."""
        record = self._core.find(request.path_params["id"])
        transfer_id = request.path_params["transfer_id"]
        check_exec_id(transfer_id)
        if record.is_live:
            await self._core.link.call("transfer.cancel", {"sandbox_id": record.id, "transfer_id": transfer_id})
        return json_answer({})


async def _opened(link: RuntimeLink, method: str, params: dict[str, Any]) -> Stream:
    await link.wait_up(5.0)
    return link.stream(method, params)


async def _bytes_of(stream: Stream) -> AsyncIterator[bytes]:
    granted = None
    while (frame := await stream.next()) is not None:
        if frame[1] != Kind.DATA or not frame[4]:
            continue
        yield frame[4]
        reached = frame[3] + len(frame[4])
        if granted is None or reached + _WINDOW - granted >= _WINDOW // 4:
            granted = reached + _WINDOW
            stream.grant(STDOUT, granted)


async def _after(first: bytes, rest: AsyncIterator[bytes], stream: Stream) -> AsyncIterator[bytes]:
    try:
        yield first
        async for each in rest:
            yield each
    finally:
        stream.close()


class _Upload:
    """How far the runtime lets an upload go."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._granted = 256 * 1024
        self.over = False

    async def room(self, offset: int) -> int:
        """Bytes that may be sent from this offset, at least one; 0 when the stream is over. Raises its error."""
        while self._granted <= offset:
            frame = await self._stream.next()
            if frame is None:
                self.over = True
                return 0
            if frame[1] == Kind.UNTIL and frame[2] == STDIN:
                self._granted = max(self._granted, frame[3])
        return min(self._granted - offset, frames.CHUNK_BYTES)


async def _send_body(stream: Stream, request: Request, length: int) -> FileReport:
    upload, offset = _Upload(stream), 0
    async for part in request.stream():
        view = memoryview(part)
        while view:
            room = await upload.room(offset)
            if room == 0:
                return answer(stream.result, FileReport)
            await stream.data(STDIN, offset, bytes(view[:room]))
            offset += min(room, len(view))
            view = view[room:]
    if offset != length:
        raise InvalidArgument(f"the body has {offset} bytes, not the {length} announced")
    await stream.data(STDIN, offset, b"")
    fault("edge.write.sent")
    while await stream.next() is not None:
        pass
    return answer(stream.result, FileReport)


def _place(record: SandboxRecord, query: dict[str, list[str]]) -> dict[str, Any]:
    path = query.get("path", [""])[0].encode(errors="surrogateescape")
    check_path(path)
    return {"path": path} | file_place(record, query.get("user", [None])[0])


def _number(query: dict[str, list[str]], name: str, default: int | None) -> int | None:
    if name not in query:
        return default
    text = query[name][0]
    if not text.isascii() or not text.isdigit() or int(text) >= 2**63:
        raise InvalidArgument(f"{name} must be a number from 0, not {text[:40]!r}")
    return int(text)


def _mode(query: dict[str, list[str]]) -> int | None:
    """Permission bits, written in octal as for chmod."""
    if "mode" not in query:
        return None
    text = query["mode"][0]
    try:
        mode = int(text, 8)
    except ValueError:
        raise InvalidArgument(f"mode must be octal, as for chmod, not {text[:40]!r}") from None
    if not 0 <= mode <= 0o7777:
        raise InvalidArgument(f"mode must be between 0 and 7777, not {text[:40]!r}")
    return mode


def file_routes(core: Core) -> list[Route]:
    """All of them."""
    own = _Files(core)
    path = "/v1/sandboxes/{id}/files"
    return [
        Route("GET", path, answered(own.read)),
        Route("PUT", path, answered(own.write)),
        Route("DELETE", "/v1/sandboxes/{id}/transfers/{transfer_id}", answered(own.cancel)),
    ]
