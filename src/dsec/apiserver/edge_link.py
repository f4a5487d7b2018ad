"""The seam between the apiserver and the nodes behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

import aiohttp
from yarl import URL

from dsec.api.ids import is_sandbox_id, node_of
from dsec.errors import DSecError, NodeError, NotFound

__all__ = ["EdgeAnswer", "EdgeLink", "Edges", "LocalEdge", "edge_unreachable"]

_CONNECT_S = 5.0


class EdgeAnswer(Protocol):
    """An answer whose body has not been read yet."""

    @property
    def status(self) -> int:
        """HTTP status."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, case-insensitive."""

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes; the edge is held back while nobody reads."""


class EdgeLink(Protocol):
    """One node's edge: over a Unix socket on the same machine, over mutual TLS on another."""

    @property
    def node(self) -> str:
        """The node's name."""

    def request(
        self, method: str, target: str, headers: Mapping[str, str], body: AsyncIterator[bytes] | bytes | None
    ) -> AbstractAsyncContextManager[EdgeAnswer]:
        """Ask; raises NodeError when the edge cannot be reached."""

    async def connect(self, protocol: asyncio.Protocol) -> asyncio.Transport:
        """A byte connection of its own, for a WebSocket; raises NodeError."""

    async def close(self) -> None:
        """Close what is pooled."""


def edge_unreachable(node: str, reason: object) -> NodeError:
    """The error of a node whose edge does not answer."""
    return NodeError(
        f"the edge of node {node!r} does not answer ({reason})",
        retry_after_s=0.2,
        phase="edge",
        remedy="The node restarts it; `dsec status` tells whether it does",
    )


class _AiohttpAnswer:
    def __init__(self, node: str, response: aiohttp.ClientResponse) -> None:
        self._node = node
        self._response = response
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers

    async def chunks(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except aiohttp.ClientError as error:
            raise edge_unreachable(self._node, error) from None


class LocalEdge:
    """The edge of this machine, over ``edge.sock``."""

    def __init__(self, node: str, socket: Path) -> None:
        self.node = node
        self._socket = socket
        self._session: aiohttp.ClientSession | None = None

    def _pool(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(str(self._socket), limit=0, keepalive_timeout=60),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
                auto_decompress=False,
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    @asynccontextmanager
    async def request(
        self, method: str, target: str, headers: Mapping[str, str], body: AsyncIterator[bytes] | bytes | None
    ) -> AsyncIterator[EdgeAnswer]:
        """Ask over a pooled connection."""
        url = URL(f"http://edge{target}", encoded=True)
        try:
            response = await self._pool().request(method, url, headers=headers, data=body, allow_redirects=False)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _cause(error) or edge_unreachable(self.node, error) from None
        async with response:
            yield _AiohttpAnswer(self.node, response)

    async def connect(self, protocol: asyncio.Protocol) -> asyncio.Transport:
        """A new connection to ``edge.sock``."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_CONNECT_S):
                transport, _ = await loop.create_unix_connection(lambda: protocol, str(self._socket))
        except (OSError, TimeoutError) as error:
            raise edge_unreachable(self.node, error) from None
        return transport

    async def close(self) -> None:
        """Close the pool."""
        if self._session is not None:
            await self._session.close()


def _cause(error: BaseException) -> DSecError | None:
    """An error of ours that aiohttp wrapped while it read the request's body."""
    cause = error.__cause__ or error.__context__
    return cause if isinstance(cause, DSecError) else None


class Edges:
    """Every edge behind this apiserver; today one."""

    def __init__(self, only: EdgeLink) -> None:
        self._only = only

    @property
    def any(self) -> EdgeLink:
        """An edge for what belongs to no sandbox."""
        return self._only

    def of_sandbox(self, sandbox: str | None) -> EdgeLink:
        """The edge of a sandbox ID, found from the ID alone; of a name, the only edge. Raises NotFound."""
        if sandbox is not None and is_sandbox_id(sandbox) and node_of(sandbox) != self._only.node:
            raise NotFound(
                f"no node is named {node_of(sandbox)!r} here",
                sandbox_id=sandbox,
                remedy=f"This apiserver serves node {self._only.node!r}",
            )
        return self._only

    async def close(self) -> None:
        """Close all links."""
        await self._only.close()
