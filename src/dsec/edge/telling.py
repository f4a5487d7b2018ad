"""Streams that the edge itself answers: ``logs`` and ``events``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Protocol

import msgspec

from dsec.api import frames
from dsec.api.frames import Kind
from dsec.api.types import StoryEntry
from dsec.backends.link import Stream
from dsec.edge.core import Core
from dsec.edge.record import ExecRecord, SandboxRecord
from dsec.edge.specs import MAX_OUTPUT_BYTES, refused
from dsec.errors import NotFound, SandboxGone

__all__ = ["Told", "tell_events", "tell_logs"]

_NEXT_EXEC_S = 0.25
_COMMIT_S = 5.0


class Told(Protocol):
    """A stream of the edge's own: frames out, grants and ``close`` in."""

    task: asyncio.Task[None]

    def frames(self, stream: int) -> AsyncIterator[bytes]:
        """What the client is sent, but the ``end``."""
        ...

    def take(self, frame: list[Any]) -> None:
        """A frame of the client's."""
        ...


class _LogsRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    sandbox_id: str
    follow: bool = False
    exec_id: str | None = None
    credit: dict[int, int] = {}


class _EventsRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    sandbox_id: str


def tell_logs(core: Core, params: dict[str, Any]) -> Told:
    """The output of a sandbox's main process, of one exec, or of all; raises NotFound, InvalidArgument."""
    try:
        request = msgspec.convert(params, _LogsRequest, strict=False)
    except msgspec.ValidationError as error:
        raise refused(error) from None
    record = core.find(request.sandbox_id)
    if request.exec_id is not None and core.records.exec(record.id, request.exec_id) is None:
        raise NotFound(f"no exec {request.exec_id[:80]}", sandbox_id=record.id)
    return _Logs(core, record, request)


def tell_events(core: Core, params: dict[str, Any]) -> Told:
    """A sandbox's story, then what is added to it until its end; raises NotFound."""
    try:
        request = msgspec.convert(params, _EventsRequest)
    except msgspec.ValidationError as error:
        raise refused(error) from None
    return _Events(core, core.find(request.sandbox_id))


class _Events:
    task: asyncio.Task[None]

    def __init__(self, core: Core, record: SandboxRecord) -> None:
        self._core = core
        self._record = record

    async def frames(self, stream: int) -> AsyncIterator[bytes]:
        arrived: asyncio.Queue[StoryEntry | None] = asyncio.Queue()
        with self._core.watching(self._record.id, arrived.put_nowait):
            for entry in self._record.story:
                yield frames.item_frame(stream, msgspec.to_builtins(entry))
            if not self._record.is_live:
                return
            while (entry_or_end := await arrived.get()) is not None:
                yield frames.item_frame(stream, msgspec.to_builtins(entry_or_end))

    def take(self, frame: list[Any]) -> None:
        if frame[1] == Kind.CLOSE:
            self.task.cancel()


class _Logs:
    task: asyncio.Task[None]

    def __init__(self, core: Core, record: SandboxRecord, request: _LogsRequest) -> None:
        self._core = core
        self._record = record
        self._request = request
        self._current: Stream | None = None

    async def frames(self, stream: int) -> AsyncIterator[bytes]:
        told: set[str] = set()
        while True:
            following = self._request.follow and self._record.is_live
            for each in self._wanted():
                if each.exec_id not in told:
                    told.add(each.exec_id)
                    async for frame in self._output(stream, each):
                        yield frame
            if not following or self._request.exec_id is not None:
                return
            # There may be another exec after a moment; a main process's end is its sandbox's, which comes at once.
            await self._core.until_over(self._record, _NEXT_EXEC_S)

    def _wanted(self) -> list[ExecRecord]:
        only = self._request.exec_id or self._record.main_exec_id
        known = self._core.records.execs(self._record.id)
        return known if only is None else [each for each in known if each.exec_id == only]

    async def _output(self, stream: int, each: ExecRecord) -> AsyncIterator[bytes]:
        yield frames.item_frame(
            stream,
            {
                "exec_id": each.exec_id,
                "argv": [word.decode(errors="backslashreplace") for word in each.argv],
                "started_at": each.started_at,
            },
        )
        if each.error is not None and each.error.get("code") in ("executable_not_found", "not_executable"):
            return
        source = self._open(each)
        self._current = source
        try:
            while (frame := await self._next(source)) is not None:
                if frame[1] == Kind.DATA:
                    yield frames.data_frame(stream, frame[2], frame[3], frame[4])
                elif frame[1] == Kind.ITEM and "gap" in frame[2]:
                    yield frames.item_frame(stream, frame[2])
        finally:
            self._current = None
            source.close()

    async def _next(self, source: Stream) -> list[Any] | None:
        try:
            return await source.next()
        except NotFound:
            return None  # recorded as an intent, never started: it has no output
        except SandboxGone:
            # Whoever has followed a sandbox to its end finds it ended, although the event comes a moment later.
            await self._core.until_over(self._record, _COMMIT_S)
            return None

    def _open(self, each: ExecRecord) -> Stream:
        link = self._core.link
        params: dict[str, Any] = {"sandbox_id": self._record.id, "exec_id": each.exec_id}
        if self._request.follow and self._record.is_live:
            rest: dict[str, Any] = {
                "mode": "stream",
                "offsets": {},
                "credit": self._request.credit,
                "max_output_bytes": None,
            }
            if each.end is not None:
                rest["end"] = msgspec.to_builtins(each.end)
            return link.stream("exec.attach", params | rest)
        return link.stream("output.tail", params | {"bytes": MAX_OUTPUT_BYTES})

    def take(self, frame: list[Any]) -> None:
        if frame[1] == Kind.CLOSE:
            self.task.cancel()
        elif frame[1] == Kind.UNTIL and self._current is not None:
            self._current.grant(frame[2], frame[3])
