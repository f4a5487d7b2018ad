"""What the apiserver answers itself: version, document, tokens, metrics."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable

import msgspec

from dsec.api.access import DEFAULT_PROJECT, EVERY_PROJECT
from dsec.api.tokens import TokenRequest
from dsec.api.types import VersionInfo
from dsec.apiserver.asgi import Receive, Send, read_body, send_bytes, send_json
from dsec.apiserver.edge_link import Edges
from dsec.apiserver.metrics import Metrics
from dsec.apiserver.openapi import document
from dsec.apiserver.routes import Match
from dsec.decoding import MALFORMED
from dsec.errors import InvalidArgument, NodeError, NotFound, Unsupported
from dsec.iam.tokens import Grant, Tokens

__all__ = ["CAPABILITIES", "Own"]

CAPABILITIES = (
    "containers",
    "exec",
    "files",
    "images",
    "jobs",
    "kept-disks",
    "layers",
    "logs",
    "pause",
    "snapshots",
    "tokens",
    "usage",
)
"""What clients may ask about in ``GET /v1/version``."""
_SMALL = 64 * 1024


class Own:
    """Answers of the apiserver's own. ``revoked`` is told the ID of each revoked token."""

    def __init__(
        self, version: str, edges: Edges, tokens: Tokens, metrics: Metrics, revoked: Callable[[str], None]
    ) -> None:
        self._version = version
        self._edges = edges
        self._tokens = tokens
        self._metrics = metrics
        self._revoked = revoked
        self._document = msgspec.json.encode(document(version))

    async def answer(self, found: Match, grant: Grant | None, receive: Receive, send: Send) -> None:
        """Answer a route whose ``where`` is ``own``; only the version is asked without a grant."""
        route = found.route
        if route.path == "/v1/version":
            node = self._edges.any.node
            info = VersionInfo(version=self._version, api="v1", capabilities=list(CAPABILITIES), node=node)
            await send_json(send, info)
            return
        assert grant is not None
        if route.path == "/v1/openapi.json":
            await send_bytes(send, 200, b"application/json", self._document)
        elif route.path == "/metrics":
            await self._send_metrics(grant, send)
        elif route.method == "GET":
            await send_json(send, {"tokens": self._tokens.list()})
        elif route.method == "POST":
            await self._create_token(grant, receive, send)
        else:
            await self._revoke_token(found.last or "", send)

    async def _create_token(self, grant: Grant, receive: Receive, send: Send) -> None:
        asked = _token_request(await read_body(receive, _SMALL))
        project = asked.project
        if project is None:
            project = EVERY_PROJECT if asked.scope == "admin" else DEFAULT_PROJECT
        principal = grant.principal if asked.principal is None else asked.principal
        make = functools.partial(self._tokens.create, name=asked.name, ttl_s=asked.ttl_s, scope=asked.scope)
        made = await asyncio.to_thread(make, principal, project=project)
        await send_json(send, made)

    async def _revoke_token(self, token_id: str, send: Send) -> None:
        await asyncio.to_thread(self._tokens.revoke, token_id)
        self._revoked(token_id)
        await send_json(send, {})

    async def _send_metrics(self, grant: Grant, send: Send) -> None:
        text = self._metrics.text()
        try:
            async with self._edges.any.request("GET", "/metrics", grant.headers, None) as answer:
                if answer.status != 200:
                    raise NotFound(f"the edge answered {answer.status} to /metrics")
                text += await answer.read()
        except (NodeError, NotFound):
            text += b"# the edge does not answer\n"
        await send_bytes(send, 200, b"text/plain; version=0.0.4; charset=utf-8", text)


def _token_request(body: bytes) -> TokenRequest:
    try:
        return msgspec.json.decode(body or b"{}", type=TokenRequest)
    except msgspec.ValidationError as error:
        if "unknown field" in str(error):
            raise Unsupported(str(error)) from None
        raise InvalidArgument(str(error)) from None
    except MALFORMED as error:
        raise InvalidArgument(f"the body is not JSON: {error}") from None
