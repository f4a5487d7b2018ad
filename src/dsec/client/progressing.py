"""Calls that take long: their progress as it comes, and what came of them."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable
from typing import Any, TypeVar

import msgspec

from dsec.api.images import ImageProgress
from dsec.client.link import Link, Query, decode_answer
from dsec.client.tarball import Upload
from dsec.errors import DSecError, ProtocolError, error_from_wire

__all__ = ["OnImageProgress", "OnProgress", "last_line"]

OnProgress = Callable[[ImageProgress], None]
OnImageProgress = Callable[[str, ImageProgress], None]
"""Called with an image's reference, as it was asked for, and how far it is."""
T = TypeVar("T")
_LONGEST_LINE = 4 << 20


async def last_line(
    link: Link, path: str, query: Query | None, body: bytes | Upload, content_type: str,
    on_progress: OnProgress | None, field: str, kind: type[T],
) -> T:  # fmt: skip
    """POST, hand each line of progress on, and return what the line with ``field`` holds; raises its error."""
    sent: bytes | AsyncIterable[bytes] = body
    try:
        async with link.exchange("POST", path, query, sent, content_type) as answer:
            rest = b""
            async for chunk in answer.chunks():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    found = _line(line, on_progress, field, kind)
                    if found is not None:
                        return found
                if len(rest) > _LONGEST_LINE:
                    raise ProtocolError("a line of progress is too long")
    except DSecError as error:
        if isinstance(body, Upload) and body.failure is not None:
            raise body.failure from error
        raise
    raise ProtocolError(f"the answer ended without its {field}", phase="image")


def _line(line: bytes, on_progress: OnProgress | None, field: str, kind: type[T]) -> T | None:
    if not line.strip():
        return None
    fields = decode_answer(line, dict[str, Any])
    if "error" in fields:
        raise error_from_wire(fields["error"])
    if field in fields:
        return msgspec.convert(fields[field], kind)
    if on_progress is not None:
        on_progress(msgspec.convert(fields, ImageProgress))
    return None
