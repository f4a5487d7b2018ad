"""Copies one HTTP request to an edge and its answer back, in constant memory."""

from __future__ import annotations

import asyncio

from dsec.apiserver.asgi import Headers, Receive, Scope, Send, body_chunks, header, read_body
from dsec.apiserver.edge_link import EdgeAnswer, EdgeLink
from dsec.apiserver.routes import Route
from dsec.iam.tokens import Grant

__all__ = ["CLIENT_GONE", "MAX_JSON_BODY", "forward"]

MAX_JSON_BODY = 8 * 1024 * 1024
CLIENT_GONE = 499
"""The status that is counted where the client left before any was sent."""
_QUICK_S = 0.25
_WHOLE = 128 * 1024
"""Answers up to this size are sent in one piece."""
_ANSWER_HEADERS = (
    ("content-type", b"content-type"),
    ("content-length", b"content-length"),
    ("retry-after", b"retry-after"),
)


async def forward(link: EdgeLink, route: Route, grant: Grant, scope: Scope, receive: Receive, send: Send) -> None:
    """Ask the edge in the caller's name.

    A client that goes away takes its request with it: the edge sees the connection close, so a queued create leaves.
    """
    headers = grant.headers
    for name in (b"content-type", b"content-length", b"dsec-job"):
        value = header(scope, name)
        if value is not None:
            headers[name.decode()] = value.decode("latin-1")
    query = scope["query_string"]
    target = scope["raw_path"].decode("latin-1") + ("?" + query.decode("latin-1") if query else "")
    if route.method in ("GET", "DELETE"):
        async with link.request(route.method, target, headers, None) as answer:
            await _send_back(answer, send)
        return
    if route.streams:
        async with link.request(route.method, target, headers, body_chunks(receive)) as answer:
            await _send_back(answer, send)
        return
    body = await read_body(receive, MAX_JSON_BODY)
    headers.pop("content-length", None)
    await _while_connected(link, route.method, target, headers, body, receive, send)


async def _while_connected(
    link: EdgeLink, method: str, target: str, headers: dict[str, str], body: bytes, receive: Receive, send: Send
) -> None:
    """Ask, and give up as soon as the client has gone."""
    loop = asyncio.get_running_loop()
    asking = asyncio.current_task()
    assert asking is not None
    phase = "asking"
    watcher: asyncio.Task[None] | None = None

    async def watch() -> None:
        nonlocal phase
        await receive()
        if phase == "asking":
            phase = "gone"
            asking.cancel()

    def begin() -> None:
        nonlocal watcher
        watcher = loop.create_task(watch())

    # Most requests take milliseconds: only the others are worth a task that watches the connection.
    later = loop.call_later(_QUICK_S, begin)
    try:
        async with link.request(method, target, headers, body) as answer:
            phase = "answering"
            await _send_back(answer, send)
    except asyncio.CancelledError:
        if phase != "gone":
            raise
        asking.uncancel()
    finally:
        later.cancel()
        if watcher is not None:
            watcher.cancel()


async def _send_back(answer: EdgeAnswer, send: Send) -> None:
    headers: Headers = []
    for name, raw in _ANSWER_HEADERS:
        value = answer.headers.get(name)
        if value is not None:
            headers.append((raw, value.encode("latin-1")))
    start = {"type": "http.response.start", "status": answer.status, "headers": headers}
    length = answer.headers.get("content-length")
    if length is not None and int(length) <= _WHOLE:
        body = await answer.read()
        await send(start)
        await send({"type": "http.response.body", "body": body})
        return
    await send(start)
    async for chunk in answer.chunks():
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
