"""One connection to the fake runtime: its streams, their credit and their tasks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from dsec.api import frames
from dsec.api.frames import STDERR, STDIN, STDOUT, Kind
from dsec.errors import DSecError, FileMissing, error_from_wire
from dsec.testing.fake_programs import FakeExec

if TYPE_CHECKING:
    from dsec.testing.fake_runtime import FakeRuntime

__all__ = ["FakeConnection"]

_WINDOW = 1 << 20
_INPUT_WINDOW = 256 * 1024


class FakeConnection:
    """One connection and the tasks of its streams."""

    def __init__(self, runtime: FakeRuntime, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._runtime = runtime
        self._reader = reader
        self._writer = writer
        self._credit: dict[int, dict[int, int]] = {}
        self._moved: dict[int, asyncio.Event] = {}
        self._input: dict[int, Callable[[int, bytes], None]] = {}
        self._early: dict[int, list[tuple[int, bytes]]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._joining = frames.Joining()

    async def run(self) -> None:
        """Read frames until the other side hangs up."""
        try:
            while True:
                length = int.from_bytes(await self._reader.readexactly(4), "big")
                frame = await self._reader.readexactly(length)
                if frames.peek(frame)[1] == Kind.PART:
                    joined = self._joining.take(frame)
                    if joined is None:
                        continue
                    frame = joined
                self._frame(frames.decode(frame))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            for task in list(self._tasks.values()):
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            self._writer.close()

    async def close(self) -> None:
        """Hang up."""
        self._writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    def _frame(self, parts: list[Any]) -> None:
        stream, kind = parts[0], parts[1]
        if kind == Kind.OPEN:
            self._moved[stream] = asyncio.Event()
            self._tasks[stream] = asyncio.create_task(self._open(stream, parts[2], parts[3]))
        elif kind == Kind.DATA and stream in self._tasks:
            if stream in self._input:
                self._input[stream](parts[3], parts[4])
            else:
                self._early.setdefault(stream, []).append((parts[3], parts[4]))
            self._send(frames.until_frame(stream, STDIN, parts[3] + len(parts[4]) + _INPUT_WINDOW))
        elif kind == Kind.UNTIL and stream in self._credit:
            self._credit[stream][parts[2]] = max(self._credit[stream].get(parts[2], 0), parts[3])
            self._moved[stream].set()
        elif kind == Kind.CLOSE and stream in self._tasks:
            self._tasks[stream].cancel()

    def _take_input(self, stream: int, take: Callable[[int, bytes], None]) -> None:
        for offset, data in self._early.pop(stream, []):
            take(offset, data)
        self._input[stream] = take

    def _send(self, frame: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(len(frame).to_bytes(4, "big") + frame)

    async def _open(self, stream: int, method: str, params: dict[str, Any]) -> None:
        runtime = self._runtime
        runtime.calls.append((method, params))
        try:
            await runtime.pass_gate(method, "before")
            streaming = self._streaming(method)
            if streaming is not None:
                result = await streaming(stream, params)
            else:
                result = runtime.answer(method, params)
            await runtime.pass_gate(method, "after")
            self._send(frames.end_frame(stream, result))
        except DSecError as error:
            self._send(frames.error_frame(stream, error.to_wire()))
        finally:
            for table in (self._credit, self._moved, self._input, self._early, self._tasks):
                table.pop(stream, None)

    def _streaming(self, method: str) -> Callable[[int, dict[str, Any]], Awaitable[Any]] | None:
        return {
            "exec.start": self._start,
            "exec.attach": self._attach,
            "exec.output": self._output,
            "session.run": self._run,
            "output.tail": self._tail,
            "events": self._events,
            "file.read": self._read,
            "file.write": self._write,
        }.get(method)

    async def _events(self, stream: int, _: dict[str, Any]) -> Any:
        self._runtime.subscribe(lambda event: self._send(frames.item_frame(stream, event)))
        await asyncio.Event().wait()

    async def _start(self, stream: int, params: dict[str, Any]) -> Any:
        failure = self._runtime.failures.pop("exec.start", None)
        if failure is not None:
            raise failure
        return await self._follow(stream, self._runtime.begin(params), params, {})

    async def _attach(self, stream: int, params: dict[str, Any]) -> Any:
        found = self._runtime.find_exec(params["sandbox_id"], params["exec_id"])
        return await self._follow(stream, found, params, params.get("offsets") or {})

    async def _output(self, stream: int, params: dict[str, Any]) -> Any:
        await self._attach(stream, params | {"mode": "stream"})
        return {}

    async def _follow(self, stream: int, found: FakeExec, params: dict[str, Any], offsets: dict[int, int]) -> Any:
        mode = params["mode"]
        if mode == "detach":
            return {"started_at": found.started_at}
        self._credit[stream] = {
            channel: (params.get("credit") or {}).get(channel, offsets.get(channel, 0) + _WINDOW)
            for channel in (STDOUT, STDERR)
        }
        if found.spec["stdin"]:
            self._take_input(stream, found.take_input)
        self._send(frames.item_frame(stream, {"started_at": found.started_at}))
        sent = {channel: offsets.get(channel, 0) for channel in (STDOUT, STDERR)}
        while mode == "stream" and not found.is_over:
            changed = found.changed
            for channel, offset in sent.items():
                sent[channel] = await self._data(stream, channel, bytes(found.output[channel]), offset)
            if not found.is_over:
                await changed.wait()
        while not found.is_over:
            await found.changed.wait()
        for channel, offset in sent.items():
            await self._data(stream, channel, bytes(found.output[channel]), offset)
        if found.gone is not None:
            raise error_from_wire(found.gone)
        return found.end

    async def _data(self, stream: int, channel: int, data: bytes, offset: int) -> int:
        """Send from an offset to the end, as credit allows; returns the end."""
        while offset < len(data):
            most = min(self._credit[stream][channel] - offset, frames.CHUNK_BYTES)
            if most <= 0:
                self._moved[stream].clear()
                await self._moved[stream].wait()
                continue
            piece = data[offset : offset + most]
            self._send(frames.data_frame(stream, channel, offset, piece))
            await self._writer.drain()
            offset += len(piece)
        return offset

    async def _run(self, stream: int, params: dict[str, Any]) -> Any:
        session = self._runtime.session(params["sandbox_id"], params["session_id"])
        script = bytearray(params["script"] or b"")
        arrived = asyncio.Event()

        def take(_: int, data: bytes) -> None:
            script.extend(data)
            arrived.set()

        self._take_input(stream, take)
        self._send(frames.until_frame(stream, STDIN, _INPUT_WINDOW))
        while params["length"] is not None and len(script) < params["length"]:
            arrived.clear()
            await arrived.wait()
        end = await session.run(params["run_id"], bytes(script), merged=params["merge_stderr"])
        first = {STDOUT: end["stdout_from"], STDERR: end["stderr_from"]}
        total = {STDOUT: end["stdout_total"], STDERR: end["stderr_total"]}
        self._credit[stream] = dict.fromkeys(first, 1 << 62)
        for channel, offset in first.items():
            await self._data(stream, channel, bytes(session.shell.output[channel])[: offset + total[channel]], offset)
        return end

    async def _tail(self, stream: int, params: dict[str, Any]) -> Any:
        found = self._runtime.kept(params["sandbox_id"], params["exec_id"])
        for channel in (STDOUT, STDERR):
            data = bytes(found.output[channel])
            start = max(0, len(data) - params["bytes"])
            self._credit.setdefault(stream, {})[channel] = start + _WINDOW
            await self._data(stream, channel, data, start)
        return {}

    async def _read(self, stream: int, params: dict[str, Any]) -> Any:
        files = self._runtime.live(params["sandbox_id"]).files
        if params["path"] not in files:
            path = params["path"].decode(errors="backslashreplace")
            raise FileMissing(f"No such file or directory: {path!r}", errno=2, path=path)
        data, mode = files[params["path"]]
        end = len(data) if params["limit"] is None else min(len(data), params["offset"] + params["limit"])
        self._credit[stream] = {STDOUT: params["credit"].get(STDOUT, params["offset"] + _WINDOW)}
        await self._data(stream, STDOUT, data[:end], params["offset"])
        return {"bytes": max(0, end - params["offset"]), "size": len(data), "mode": mode}

    async def _write(self, stream: int, params: dict[str, Any]) -> Any:
        sandbox = self._runtime.live(params["sandbox_id"])
        arrived, over = bytearray(), asyncio.Event()

        def take(_: int, data: bytes) -> None:
            arrived.extend(data)
            if not data:
                over.set()

        self._take_input(stream, take)
        await over.wait()
        sandbox.files[params["path"]] = (bytes(arrived), params["mode"] or 0o644)
        return {"bytes": len(arrived), "size": len(arrived), "mode": params["mode"] or 0o644}
