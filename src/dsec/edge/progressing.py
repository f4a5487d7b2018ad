"""Answers that take long: NDJSON of how far it is, and last of all what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import msgspec
import structlog
from starlette.responses import Response, StreamingResponse

from dsec.api.images import ImageProgress
from dsec.errors import DSecError, PlatformError

__all__ = ["Tell", "Work", "line", "progressing"]

_log = structlog.get_logger("dsec.edge.progressing")
_encode = msgspec.json.Encoder().encode

Tell = Callable[[ImageProgress], None]
Work = Callable[[Tell], Awaitable[Mapping[str, Any]]]
"""What is done; returns the last line's content."""


def line(content: Any) -> bytes:
    """One line of NDJSON."""
    return _encode(content) + b"\n"


def progressing(work: Work) -> Response:
    """A line for each moment (the latest only, for a slow reader), then what the work returned, or the error."""
    return StreamingResponse(_lines(work), media_type="application/x-ndjson")


async def _lines(work: Work) -> AsyncIterator[bytes]:
    latest: list[ImageProgress] = []
    moved = asyncio.Event()

    def tell(moment: ImageProgress) -> None:
        latest[:] = [moment]
        moved.set()

    task = asyncio.ensure_future(work(tell))
    task.add_done_callback(lambda _: moved.set())
    try:
        while not task.done():
            await moved.wait()
            moved.clear()
            while latest:
                yield line(latest.pop())
        yield line(_outcome(task))
    finally:
        # The reader is gone: what others share (a pull) goes on for whoever asks next.
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _outcome(task: asyncio.Future[Mapping[str, Any]]) -> Mapping[str, Any]:
    try:
        return task.result()
    except DSecError as error:
        return {"error": error.to_wire()}
    except Exception as error:
        _log.exception("it failed")
        return {"error": PlatformError(f"{type(error).__name__}: {error}").to_wire()}
