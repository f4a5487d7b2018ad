"""The seam between the apiserver and the nodes behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from dsec.api.http_pool import HttpPool
from dsec.api.ids import is_sandbox_id, node_of
from dsec.errors import NodeError, NotFound

__all__ = ["EdgeAnswer", "EdgeLink", "Edges", "LocalEdge", "edge_unreachable"]

_CONNECT_S = 5.0
_IDLE_S = 60.0
"""Less than the edge keeps them."""


class EdgeAnswer(Protocol):
    """An answer whose body has not been read yet."""

    @property
    def status(self) -> int:
        """HTTP status."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, their names in lower case."""

    async def read(self) -> bytes:
        """The rest of the body."""

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

    async def connect_ports(self, protocol: asyncio.Protocol) -> asyncio.Transport:
        """A byte connection to the node's proxy, for requests to exposed ports; raises NodeError."""

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


class LocalEdge:
    """The edge of this machine, over ``edge.sock``, and its proxy, over ``ports.sock``.

    Paths may be relative: a user who cannot pass the directories above stands in that of the sockets.
    """

    def __init__(self, node: str, socket: Path, ports: Path) -> None:
        self.node = node
        self._socket = str(socket)
        self._ports = str(ports)
        self._pool = HttpPool(
            lambda factory: asyncio.get_running_loop().create_unix_connection(factory, self._socket),
            lambda error: edge_unreachable(node, error),
            headers={"host": "edge"},
            connect_s=_CONNECT_S,
            idle_s=_IDLE_S,
        )

    def request(
        self, method: str, target: str, headers: Mapping[str, str], body: AsyncIterator[bytes] | bytes | None
    ) -> AbstractAsyncContextManager[EdgeAnswer]:
        """Ask over a pooled connection."""
        length = None if body is None or isinstance(body, bytes) else headers.get("content-length")
        if length is None:
            return self._pool.exchange(method, target, headers, body)
        others = {name: value for name, value in headers.items() if name != "content-length"}
        return self._pool.exchange(method, target, others, body, int(length))

    async def connect(self, protocol: asyncio.Protocol) -> asyncio.Transport:
        """A new connection to ``edge.sock``."""
        try:
            return await self._connect(protocol, self._socket)
        except OSError as error:
            raise edge_unreachable(self.node, error) from None

    async def connect_ports(self, protocol: asyncio.Protocol) -> asyncio.Transport:
        """A new connection to ``ports.sock``."""
        try:
            return await self._connect(protocol, self._ports)
        except OSError as error:
            raise NodeError(
                f"the proxy of node {self.node!r} does not answer ({error})", retry_after_s=0.2, phase="ports"
            ) from None

    async def _connect(self, protocol: asyncio.Protocol, socket: str) -> asyncio.Transport:
        async with asyncio.timeout(_CONNECT_S):
            transport, _ = await asyncio.get_running_loop().create_unix_connection(lambda: protocol, socket)
        return transport

    async def close(self) -> None:
        """Close the pool."""
        self._pool.close()


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
