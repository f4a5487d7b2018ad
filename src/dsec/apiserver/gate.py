"""The application: finds the route, checks the token, lets the right part answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import MutableMapping
from typing import Any

import structlog

from dsec.api.access import EVERY_PROJECT, includes
from dsec.apiserver.asgi import Receive, Scope, Send, header, send_error
from dsec.apiserver.edge_link import Edges
from dsec.apiserver.limits import AUTHENTICATED
from dsec.apiserver.metrics import Metrics
from dsec.apiserver.own import Own
from dsec.apiserver.proxy import CLIENT_GONE, forward
from dsec.apiserver.routes import Match, Route, match
from dsec.apiserver.splice import Admitted, Splice
from dsec.errors import Denied, DSecError, NotFound, PlatformError
from dsec.iam.tokens import Grant, Tokens

__all__ = ["Gate"]

_log = structlog.get_logger("dsec.apiserver")


class Gate:
    """The ASGI application of one apiserver."""

    def __init__(self, version: str, edges: Edges, tokens: Tokens) -> None:
        self.edges = edges
        """The nodes behind it."""
        self._tokens = tokens
        self._metrics = Metrics()
        self._own = Own(version, edges, tokens, self._metrics, self._cut)
        self._sockets: dict[str, set[Splice]] = {}
        self._expiries: dict[Splice, asyncio.TimerHandle] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        found = match(scope["method"], scope["raw_path"].decode("latin-1"))
        watched = _Watched(send)
        try:
            await self._answer(found, scope, receive, watched)
        except DSecError as error:
            await self._fail(error, watched)
        except Exception as error:
            _log.exception("request failed", path=scope["path"])
            await self._fail(PlatformError(f"{type(error).__name__}: {error}"), watched)
        self._metrics.answered(scope["method"], found.route.path if found else "none", watched.status)

    async def _answer(self, found: Match | None, scope: Scope, receive: Receive, send: Send) -> None:
        if found is not None and found.route.public:
            await self._own.answer(found, None, receive, send)
            return
        grant = self._authenticate(header(scope, b"authorization"))
        if AUTHENTICATED in scope:
            scope[AUTHENTICATED]()
        if found is None or found.route.upgrades:
            raise NotFound(f"no route is {scope['method']} {scope['path'][:200]}", remedy="GET /v1/openapi.json")
        self._check_scope(grant, found.route)
        if found.route.where == "own":
            await self._own.answer(found, grant, receive, send)
            return
        link = self.edges.of_sandbox(found.sandbox)
        await forward(link, found.route, grant, scope, receive, send)

    async def _fail(self, error: DSecError, watched: _Watched) -> None:
        if watched.started:
            raise error
        await send_error(watched, error)

    def _authenticate(self, authorization: bytes | None) -> Grant:
        scheme, _, token = (authorization or b"").decode("latin-1").partition(" ")
        grant = self._tokens.check(token.strip()) if scheme.lower() == "bearer" else None
        if grant is None:
            self._metrics.denied()
            raise Denied(
                "the token is unknown, revoked or expired" if token else "a token is needed",
                phase="token",
                remedy="Set DSEC_TOKEN, or use the token file that `dsec up` made",
            )
        return grant

    def _check_scope(self, grant: Grant, route: Route) -> None:
        """Refuse what a token is too small for, before anything is looked for: so the answer tells of it alone."""
        if route.everywhere and grant.project != EVERY_PROJECT:
            self._metrics.denied()
            raise Denied("this is about all projects, and the token is of one", phase="scope", needs=EVERY_PROJECT)
        if not includes(grant.scope, route.scope):
            self._metrics.denied()
            raise Denied(
                f"this needs a token of scope {route.scope}, and this one's is {grant.scope}",
                phase="scope",
                remedy="An admin makes one: `dsec token create --scope`",
                needs=route.scope,
            )

    # WebSockets, which do not come through ASGI

    def admit(self, path: str, headers: dict[bytes, bytes]) -> Admitted:
        """Decide about a WebSocket's upgrade; raises Denied or NotFound."""
        grant = self._authenticate(headers.get(b"authorization"))
        if headers.get(b"upgrade", b"").lower() == b"dsec-transfer":
            found = match("GET", path)
            if found is None or not found.route.upgrades:
                raise NotFound(f"no transfer and no output is at {path[:200]}")
            self._check_scope(grant, found.route)
            expires_at = grant.expires_at if path.endswith("/output") else None
            return Admitted(self.edges.of_sandbox(found.sandbox), grant, expires_at)
        found = match("GET", path)
        if path != "/v1/ws" or found is None:
            raise NotFound(f"no WebSocket is at {path[:200]}")
        self._check_scope(grant, found.route)
        return Admitted(self.edges.any, grant, grant.expires_at)

    def opened(self, admitted: Admitted, socket: Splice) -> None:
        """A WebSocket is through."""
        self._sockets.setdefault(admitted.grant.token_id, set()).add(socket)
        if admitted.expires_at is not None:
            left_s = max(0.0, admitted.expires_at - time.time())
            self._expiries[socket] = asyncio.get_running_loop().call_later(left_s, socket.close)
        self._metrics.websocket(+1)

    def closed(self, admitted: Admitted, socket: Splice) -> None:
        """A WebSocket is gone, whether or not it had got through."""
        expiry = self._expiries.pop(socket, None)
        if expiry is not None:
            expiry.cancel()
        of_token = self._sockets.get(admitted.grant.token_id, set())
        if socket in of_token:
            of_token.discard(socket)
            self._metrics.websocket(-1)
        if not of_token:
            self._sockets.pop(admitted.grant.token_id, None)

    def _cut(self, token_id: str) -> None:
        for socket in list(self._sockets.get(token_id, ())):
            socket.close()

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.edges.close()
        self._tokens.close()
        await send({"type": "lifespan.shutdown.complete"})


class _Watched:
    """A ``send`` that remembers the status; ``CLIENT_GONE`` until there is one."""

    __slots__ = ("_send", "started", "status")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False
        self.status = CLIENT_GONE

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if not self.started:
            self.started = True
            self.status = message["status"]
        await self._send(message)
