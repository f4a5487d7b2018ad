"""The trusted side of an endpoint, in the test's own event loop: says what it got, streams when it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator

from aiohttp import WSMsgType, web

__all__ = ["Upstream", "upstream"]


class Upstream:
    """What came, and what comes next."""

    def __init__(self) -> None:
        self.port = 0
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        """(method, path with query, headers) of each request."""
        self.more: asyncio.Queue[bytes] = asyncio.Queue()
        """Parts that ``/v1/stream`` sends, each when it is put here; an empty one ends it."""
        self.streaming = asyncio.Event()
        self.gone = asyncio.Event()
        """Set when the reader of a stream has gone."""

    @property
    def url(self) -> str:
        """Base of the API."""
        return f"http://127.0.0.1:{self.port}/v1"

    async def echo(self, request: web.Request) -> web.StreamResponse:
        """What came; of a chunked body each chunk as soon as it is there."""
        self.seen.append((request.method, request.path_qs, dict(request.headers)))
        if "chunked" in request.headers.get("transfer-encoding", ""):
            answer = web.StreamResponse()
            answer.enable_chunked_encoding()
            await answer.prepare(request)
            async for part in request.content.iter_any():
                await answer.write(part)
            await answer.write_eof()
            return answer
        said = {"method": request.method, "path": request.path_qs, "body": (await request.read()).decode("latin-1")}
        return web.json_response(said | {"headers": {name.lower(): value for name, value in request.headers.items()}})

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events, one at a time."""
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await answer.prepare(request)
        self.streaming.set()
        try:
            while part := await self.more.get():
                await answer.write(b"data: " + part + b"\n\n")
        except (ConnectionError, asyncio.CancelledError):
            self.gone.set()
            raise
        return answer

    async def blob(self, request: web.Request) -> web.Response:
        """So many bytes."""
        return web.Response(body=b"x" * int(request.query["n"]))

    async def websocket(self, request: web.Request) -> web.WebSocketResponse:
        """Echoes."""
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        try:
            async for message in socket:
                if message.type is WSMsgType.TEXT:
                    await socket.send_str(message.data)
        finally:
            self.gone.set()
        return socket


@contextlib.asynccontextmanager
async def upstream(tls: ssl.SSLContext | None = None, port: int = 0) -> AsyncIterator[Upstream]:
    """One on loopback."""
    made = Upstream()
    app = web.Application(client_max_size=1 << 30)
    app.add_routes(
        [
            web.get("/v1/stream", made.stream),
            web.get("/v1/blob", made.blob),
            web.get("/v1/ws", made.websocket),
            web.route("*", "/{path:.*}", made.echo),
        ]
    )
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls)
    await site.start()
    made.port = runner.addresses[0][1]
    try:
        yield made
    finally:
        await runner.cleanup()
