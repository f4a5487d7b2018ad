"""Connections to exposed ports: known by the Host of their first request, then copied unread to the node's proxy.

Each exposed port is an origin of its own, ``PORT-ID.DOMAIN``. The proxy checks the token and every request's Host;
here is only decided whose connection it is. Browsers and HTTP libraries keep connections apart by origin.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, cast

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from dsec.api.http import error_body
from dsec.apiserver.asgi import status_sent
from dsec.apiserver.edge_link import Edges
from dsec.errors import DSecError

__all__ = ["MAX_HEAD", "PortConnection", "SortedHttp", "sandbox_of"]

MAX_HEAD = 64 * 1024
_HOST = re.compile(rb"\r\nhost:([^\r\n]*)\r\n", re.IGNORECASE)
_ORIGIN = re.compile(rb"[ \t]*[0-9]{1,5}-(sb-[a-z0-9-]{1,64})\.([a-z0-9.-]+)(?::[0-9]+)?[ \t]*", re.IGNORECASE)


def sandbox_of(head: bytes, domain: str) -> str | None:
    """The sandbox that the first Host line of a request's head names, if that is a port's, below ``domain``."""
    host = _HOST.search(head)
    found = None if host is None else _ORIGIN.fullmatch(host[1])
    if found is None or found[2].lower() != domain.encode():
        return None
    return found[1].decode("latin-1").lower()


class _ProxySide(asyncio.Protocol):
    """The proxy's half: copies to the client, and holds the proxy back while the client does not read."""

    def __init__(self, client: PortConnection) -> None:
        self._client = client

    def data_received(self, data: bytes) -> None:
        self._client.from_proxy(data)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.close()

    def pause_writing(self) -> None:
        self._client.hold(True)

    def resume_writing(self) -> None:
        self._client.hold(False)


class PortConnection(asyncio.Protocol):
    """The client's half of a connection to an exposed port."""

    def __init__(self, edges: Edges, sandbox: str, connections: set[Any], tasks: set[Any]) -> None:
        self._edges = edges
        self._sandbox = sandbox
        self._connections = connections
        self._tasks = tasks
        self._transport: asyncio.Transport | None = None
        self._proxy: asyncio.Transport | None = None
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of asyncio.Protocol."""
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self)
        self.hold(True)
        task = asyncio.get_running_loop().create_task(self._join())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _join(self) -> None:
        try:
            proxy = await self._edges.of_sandbox(self._sandbox).connect_ports(_ProxySide(self))
        except DSecError as error:
            self._refuse(error)
            return
        if self._transport is None:
            proxy.close()
            return
        self._proxy = proxy
        proxy.writelines(self._early)
        self._early.clear()
        self.hold(False)

    def data_received(self, data: bytes) -> None:
        """Part of asyncio.Protocol."""
        if self._proxy is None:
            self._early.append(data)
        else:
            self._proxy.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Part of asyncio.Protocol."""
        self._transport = None
        self._connections.discard(self)
        if self._proxy is not None:
            self._proxy.close()

    def pause_writing(self) -> None:
        """Part of asyncio.Protocol."""
        if self._proxy is not None:
            self._proxy.pause_reading()

    def resume_writing(self) -> None:
        """Part of asyncio.Protocol."""
        if self._proxy is not None:
            self._proxy.resume_reading()

    def shutdown(self) -> None:
        """Called by uvicorn when the server ends."""
        self.close()

    def from_proxy(self, data: bytes) -> None:
        """Bytes for the client."""
        if self._transport is not None:
            self._transport.write(data)

    def hold(self, hold: bool) -> None:
        """Hold the client back, or let it go on."""
        if self._transport is None or self._transport.is_closing():
            return
        if hold:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def close(self) -> None:
        """End it once what was written is sent."""
        if self._transport is not None:
            self._transport.close()

    def _refuse(self, error: DSecError) -> None:
        body = msgspec.json.encode(error_body(error))
        head = f"HTTP/1.1 {status_sent(error)} Refused\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.from_proxy(head.encode() + body)
        self.close()


class SortedHttp(HttpToolsProtocol):
    """uvicorn's HTTP protocol behind a look at the first request: a connection to a port never gets to it."""

    edges: Edges
    """Set in a subclass for each server."""
    ports_domain: str
    """The same."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._first: bytes | None = b""
        """The first request's head so far; None once it is known whose it is."""

    def data_received(self, data: bytes) -> None:
        """Part of asyncio.Protocol."""
        if self._first is not None:
            data = self._first + data
            if b"\r\n\r\n" not in data and len(data) <= MAX_HEAD:
                self._first = data
                return
            self._first = None
            sandbox = sandbox_of(data.partition(b"\r\n\r\n")[0] + b"\r\n", self.ports_domain)
            if sandbox is not None:
                self._hand_over(sandbox, data)
                return
        super().data_received(data)

    def _hand_over(self, sandbox: str, data: bytes) -> None:
        connection = PortConnection(self.edges, sandbox, self.connections, self.tasks)
        self.connections.discard(self)
        connection.connection_made(self.transport)
        connection.data_received(data)
        self.transport.set_protocol(connection)
