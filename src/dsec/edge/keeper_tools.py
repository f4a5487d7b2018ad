"""Image tools as objects of the keeper (``tool.run``): they go on when the edge or the runtime restarts."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import msgspec
import structlog

from dsec.backends.link import RuntimeLink
from dsec.errors import DSecError, ExecutableNotFound, NodeError
from dsec.images.tools import NOT_FOUND, STDERR_TAIL, STDOUT_LIMIT, ToolResult, not_installed

__all__ = ["KeeperTools"]

_log = structlog.get_logger("dsec.edge.tools")
_LOOK_S = 0.1
_BACK_S = 30.0
_END_S = 15.0


class _End(msgspec.Struct, frozen=True):
    exit_code: int | None = None
    signal: int | None = None


class _State(msgspec.Struct, frozen=True):
    tool_id: str
    running: bool


class _States(msgspec.Struct, frozen=True):
    tools: list[_State]


class KeeperTools:
    """``Tools`` by the node's runtime; ``outputs`` is the directory where it keeps their output."""

    def __init__(self, link: RuntimeLink, outputs: Path) -> None:
        self._link = link
        self._outputs = outputs
        self._mine: set[str] = set()
        self._leaving = False

    def leave(self) -> None:
        """The edge restarts: what is cancelled from now on goes on running if its run has an ID of its own."""
        self._leaving = True

    async def run(
        self,
        name: str,
        argv: Sequence[str],
        *,
        timeout_s: float,
        log: Callable[[str], None] | None = None,
        tool_id: str | None = None,
    ) -> ToolResult:
        """See ``Tools.run``."""
        run_id = tool_id or f"{name}-{os.urandom(8).hex()}"
        self._mine.add(run_id)
        goes_on = False
        try:
            async with asyncio.timeout(timeout_s):
                end = await self._to_its_end(run_id, argv, log)
            result = self._result(run_id, end)
        except asyncio.CancelledError:
            goes_on = self._leaving and tool_id is not None
            raise
        except TimeoutError:
            raise TimeoutError(f"{argv[0]} ({name}) did not end within {timeout_s:g} s") from None
        except ExecutableNotFound:
            raise not_installed(name, argv) from None
        finally:
            if not goes_on:
                await self._end(run_id)
        if result.exit_code == NOT_FOUND:
            raise not_installed(name, argv)
        return result

    async def _to_its_end(self, run_id: str, argv: Sequence[str], log: Callable[[str], None] | None) -> _End:
        words = [each.encode() for each in argv]
        lines = _Lines(self._outputs / run_id / "stderr", log)
        running = asyncio.ensure_future(self._answer(run_id, words))
        try:
            while not running.done():
                await asyncio.wait([running], timeout=_LOOK_S)
                lines.look()
            return running.result()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def _answer(self, run_id: str, words: list[bytes]) -> _End:
        """The end; asked for again when the runtime restarts, whose successor knows the run."""
        while True:
            await self._link.wait_up(_BACK_S)
            reconnects = self._link.reconnects
            try:
                stream = self._link.stream("tool.run", {"tool_id": run_id, "argv": words})
                try:
                    while await stream.next() is not None:
                        pass
                finally:
                    stream.close()
                return msgspec.convert(stream.result, _End)
            except NodeError:
                if self._link.connected and self._link.reconnects == reconnects:
                    raise

    def _result(self, run_id: str, end: _End) -> ToolResult:
        stdout, stderr = self._outputs / run_id / "stdout", self._outputs / run_id / "stderr"
        if _size(stdout) > STDOUT_LIMIT:
            raise NodeError("a program printed more than 16 MiB")
        code = end.exit_code if end.exit_code is not None else -(end.signal or 0)
        return ToolResult(code, _tail(stdout, STDOUT_LIMIT), _tail(stderr, STDERR_TAIL).decode(errors="replace"))

    async def _end(self, run_id: str) -> None:
        """Kill what still runs of it, then drop what is kept; what fails here is done by the next edge."""
        try:
            async with asyncio.timeout(_END_S):
                await asyncio.shield(self._kill_and_forget(run_id))
        except (DSecError, TimeoutError) as error:
            _log.warning("a tool could not be ended", tool_id=run_id, error=str(error))
        finally:
            self._mine.discard(run_id)

    async def _kill_and_forget(self, run_id: str) -> None:
        await self._link.call("tool.kill", {"tool_id": run_id})
        await self._link.call("tool.forget", {"tool_ids": [run_id]})

    async def sweep(self, keep: Collection[str]) -> None:
        """End the runs that an edge before this one left, but those to be joined; raises NodeError."""
        found = msgspec.convert(await self._link.call("tool.list", {}), _States)
        for each in found.tools:
            if each.tool_id not in self._mine and each.tool_id not in keep:
                await self._kill_and_forget(each.tool_id)


class _Lines:
    """Whole lines of a file that grows."""

    def __init__(self, file: Path, log: Callable[[str], None] | None) -> None:
        self._file = file
        self._log = log
        self._at = 0

    def look(self) -> None:
        if self._log is None:
            return
        with contextlib.suppress(FileNotFoundError), self._file.open("rb") as file:
            file.seek(self._at)
            whole, _, _ = file.read().rpartition(b"\n")
            if whole:
                self._at += len(whole) + 1
                for line in whole.split(b"\n"):
                    self._log(line[-STDERR_TAIL:].decode(errors="replace"))


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def _tail(file: Path, most: int) -> bytes:
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, _size(file) - most))
            return opened.read(most)
    except FileNotFoundError:
        return b""
