"""The WebSocket's way through: an authenticated upgrade, then bytes copied unread in both directions.

uvicorn hands an upgrade request to its WebSocket protocol class together with the connection. Ours parses no frame:
it asks the edge for the same upgrade in the caller's name and then joins the two connections. So a message costs
one read and one write, frames arrive unchanged, and a side that does not read holds back the other through the
kernel's own buffers. Of connections that carry bulk bytes not even those come here: ``dsec.node.joined``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import msgspec

from dsec.api.http import error_body
from dsec.apiserver.asgi import status_sent
from dsec.apiserver.edge_link import EdgeLink
from dsec.errors import DSecError, NodeError
from dsec.iam.tokens import Grant
from dsec.node.joined import Joined, descriptor_of

if TYPE_CHECKING:
    from uvicorn.config import Config
    from uvicorn.server import ServerState

__all__ = ["UPGRADES", "Admitted", "Splice", "splice_class"]

_BULK = b"dsec-transfer"
UPGRADES = (b"websocket", _BULK)
"""Protocols that a connection may become; of both, only the upgrade itself is read here."""
_PASSED_ON = (b"sec-websocket-key", b"sec-websocket-version", b"dsec-job")


class Admitted(msgspec.Struct, frozen=True):
    """An upgrade that may go on, and where to."""

    link: EdgeLink
    grant: Grant
    expires_at: float | None = None
    """When the token ends, seconds since 1970."""


Admit = Callable[[str, dict[bytes, bytes]], Admitted]
"""(path, headers) → Admitted, or raises the error that is sent instead of the upgrade."""


class _EdgeSide(asyncio.Protocol):
    """The edge's half: copies to the client, and holds the edge back while the client does not read."""

    def __init__(self, client: Splice) -> None:
        self._client = client

    def data_received(self, data: bytes) -> None:
        self._client.from_edge(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.close()

    def pause_writing(self) -> None:
        self._client.pause_reading()

    def resume_writing(self) -> None:
        self._client.resume_reading()


class Splice(asyncio.Protocol):
    """The client's half of one WebSocket."""

    admit: Admit
    opened: Callable[[Admitted, Splice], None]
    closed: Callable[[Admitted, Splice], None]

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, Any]) -> None:
        self._connections = cast("set[Any]", server_state.connections)
        self._tasks = cast("set[Any]", server_state.tasks)
        self._transport: asyncio.Transport | None = None
        self._edge: asyncio.Transport | None = None
        self._admitted: Admitted | None = None
        self._joined: Joined | None = None
        self._early: list[bytes] = []
        self._lost = False

    # The client's connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self._edge is not None:
            self._edge.write(data)
        elif self._admitted is None:
            self._upgrade(data)
        else:
            self._early.append(data)
            self.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._connections.discard(self)
        if self._admitted is not None:
            self.closed(self._admitted, self)
        if self._joined is not None:
            self._joined.close()
        if self._edge is not None:
            self._edge.close()

    def pause_writing(self) -> None:
        if self._edge is not None:
            self._edge.pause_reading()

    def resume_writing(self) -> None:
        if self._edge is not None:
            self._edge.resume_reading()

    def shutdown(self) -> None:
        """Called by uvicorn when the server ends: clients reconnect to its successor."""
        self.close()

    # The edge's connection

    def from_edge(self, data: bytes) -> None:
        """Bytes of the edge, its answer to the upgrade included."""
        if self._transport is not None and not self._lost:
            self._transport.write(data)

    def pause_reading(self) -> None:
        """Hold the client back."""
        if self._transport is not None and not self._lost:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Let the client go on."""
        if self._transport is not None and not self._lost:
            self._transport.resume_reading()

    def close(self) -> None:
        """End both connections once what was written is sent."""
        if self._transport is not None:
            self._transport.close()

    # The upgrade

    def _upgrade(self, request: bytes) -> None:
        head, _, rest = request.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        target = lines[0].split(b" ")[1].decode("latin-1")
        headers = dict(line.split(b": ", 1) for line in lines[1:] if b": " in line)
        try:
            self._admitted = self.admit(target.split("?", 1)[0], headers)
        except DSecError as error:
            self._refuse(error)
            return
        if rest:
            self._early.append(rest)
        asked = [b"GET %s HTTP/1.1" % target.encode("latin-1"), b"host: edge", b"connection: Upgrade"]
        upgrade = headers.get(b"upgrade", b"").lower()
        asked += [
            b"upgrade: " + (upgrade if upgrade in UPGRADES else UPGRADES[0]),
        ]
        asked += [f"{name}: {value}".encode() for name, value in self._admitted.grant.headers.items()]
        asked += [name + b": " + headers[name] for name in _PASSED_ON if name in headers]
        joining = self._join(b"\r\n".join(asked) + b"\r\n\r\n", self._admitted, bulk=upgrade == _BULK)
        task = asyncio.get_running_loop().create_task(joining)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _join(self, request: bytes, admitted: Admitted, *, bulk: bool) -> None:
        try:
            edge = await admitted.link.connect(_EdgeSide(self))
        except NodeError as error:
            self._refuse(error)
            return
        if self._lost or self._transport is None:
            edge.close()
            return
        if bulk:
            self._edge = edge
            edge.pause_reading()
            self.pause_reading()
            ends = descriptor_of(self._transport), descriptor_of(edge)
            try:
                self._joined = Joined(*ends, first=b"".join([request, *self._early]), back=b"", over=self.close)
            except OSError as error:
                self._refuse(NodeError(f"the apiserver cannot join two connections: {error}", phase="stream"))
                return
            self._early.clear()
            self.opened(admitted, self)
            return
        edge.write(request)
        edge.writelines(self._early)
        self._early.clear()
        self._edge = edge
        self.resume_reading()
        self.opened(admitted, self)

    def _refuse(self, error: DSecError) -> None:
        if self._transport is None or self._lost:
            return
        body = msgspec.json.encode(error_body(error))
        head = f"HTTP/1.1 {status_sent(error)} Refused\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self._transport.write(head.encode() + body)
        self._transport.close()


def splice_class(
    admit: Admit, opened: Callable[[Admitted, Splice], None], closed: Callable[[Admitted, Splice], None]
) -> type[Splice]:
    """The protocol class that uvicorn instantiates, bound to one server's decisions."""
    bound = {"admit": staticmethod(admit), "opened": staticmethod(opened), "closed": staticmethod(closed)}
    return type("BoundSplice", (Splice,), bound)
