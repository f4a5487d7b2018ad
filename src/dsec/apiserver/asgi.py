"""The few ASGI types and answers that the apiserver needs: plain functions, since every request pays for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

from dsec.api.http import error_body, status_of
from dsec.errors import DSecError, InvalidArgument, NodeError

__all__ = [
    "Headers",
    "Receive",
    "Scope",
    "Send",
    "body_chunks",
    "header",
    "read_body",
    "send_bytes",
    "send_error",
    "send_json",
    "status_sent",
]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

_encode = msgspec.json.Encoder().encode


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header of that lower-case name."""
    headers: Headers = scope["headers"]
    for known, value in headers:
        if known == name:
            return value
    return None


async def body_chunks(receive: Receive) -> AsyncIterator[bytes]:
    """The request's body as it comes; raises NodeError when the client goes before its end."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise NodeError("the client went away before the end of its body", phase="body")
        if message.get("body"):
            yield message["body"]
        if not message.get("more_body"):
            return


async def read_body(receive: Receive, limit: int) -> bytes:
    """The whole body; raises InvalidArgument when it is longer than ``limit``."""
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        body: bytes = message.get("body", b"")
    else:
        parts = [message.get("body", b"")]
        size = len(parts[0])
        async for chunk in body_chunks(receive):
            size += len(chunk)
            if size > limit:
                break
            parts.append(chunk)
        body = b"".join(parts) if size <= limit else b" " * (limit + 1)
    if len(body) > limit:
        raise InvalidArgument(f"the body of this request may have at most {limit} bytes", phase="body")
    return body


async def send_bytes(send: Send, status: int, content_type: bytes, body: bytes, extra: Headers | None = None) -> None:
    """A whole answer."""
    headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body)), *(extra or ())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_json(send: Send, value: Any, status: int = 200) -> None:
    """A JSON answer."""
    await send_bytes(send, status, b"application/json", _encode(value))


def status_sent(error: DSecError) -> int:
    """The status of an error; 401 where it is the token itself that is not accepted."""
    return 401 if error.phase == "token" else status_of(error)


async def send_error(send: Send, error: DSecError) -> None:
    """An error in wire form, with Retry-After where the error says when."""
    extra: Headers = []
    if error.retry_after_s is not None:
        extra.append((b"retry-after", b"%d" % max(1, round(error.retry_after_s))))
    await send_bytes(send, status_sent(error), b"application/json", _encode(error_body(error)), extra)
