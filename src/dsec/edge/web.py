"""HTTP's small change: bodies in, answers and errors out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response

from dsec.api.http import error_body, status_of
from dsec.decoding import MALFORMED
from dsec.edge.caller import calling
from dsec.edge.router import Answer
from dsec.edge.specs import refused
from dsec.errors import DSecError, InvalidArgument, PlatformError

__all__ = ["answered", "body_as", "disconnected", "error_answer", "json_answer", "principal_of", "query_of"]

T = TypeVar("T")
_log = structlog.get_logger("dsec.edge.web")
_MOST_BODY = 4 << 20
_encode = msgspec.json.Encoder().encode


def json_answer(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer of structs, dicts and lists."""
    return Response(_encode(content), status_code=status, media_type="application/json", headers=headers)


def error_answer(error: DSecError) -> Response:
    """The HTTP form of an error."""
    headers = None
    if error.retry_after_s is not None:
        headers = {"retry-after": str(max(1, round(error.retry_after_s)))}
    return json_answer(error_body(error), status_of(error), headers)


def answered(route: Answer) -> Answer:
    """The route, with every failure as a typed error in wire form."""

    async def guarded(request: Request) -> Response:
        try:
            return await route(request)
        except DSecError as error:
            return error_answer(error)
        except Exception as error:
            _log.exception("request failed", method=request.method, path=request.url.path)
            return error_answer(PlatformError(f"{type(error).__name__}: {error}"))

    return guarded


async def body_as(request: Request, kind: type[T]) -> T:
    """The JSON body as a struct; raises Unsupported (naming an unknown field) or InvalidArgument."""
    parts = bytearray()
    async for part in request.stream():
        parts += part
        if len(parts) > _MOST_BODY:
            raise InvalidArgument(f"the body is longer than {_MOST_BODY} bytes")
    try:
        return msgspec.json.decode(bytes(parts) or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise refused(error) from None
    except MALFORMED as error:
        raise InvalidArgument(f"the body is no JSON: {error}") from None


def principal_of(_: Request) -> str:
    """Who asks, as the apiserver says."""
    return calling().principal


def query_of(request: Request, *known: str) -> dict[str, list[str]]:
    """The query, file names that are no UTF-8 included; raises InvalidArgument for a parameter not ``known``."""
    text = request.scope["query_string"].decode("latin-1")
    found: dict[str, list[str]] = {}
    for name, value in parse_qsl(text, keep_blank_values=True, errors="surrogateescape"):
        if name not in known:
            raise InvalidArgument(f"unknown query parameter {name[:80]!r}")
        found.setdefault(name, []).append(value)
    return found


def disconnected(request: Request) -> Callable[[], Awaitable[None]]:
    """Something that returns when the caller's connection is gone. Only after the body was read."""

    async def wait() -> None:
        message = await request.receive()
        while message["type"] != "http.disconnect":
            message = await request.receive()

    return wait
