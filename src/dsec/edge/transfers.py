"""Transfers: a client's connection is joined to one of the runtime's, and their bytes are copied unread.

A transfer carries gigabytes, so that nothing here parses what it copies. The edge opens the stream in the client's
name; the runtime refuses to open another on that connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, cast
from urllib.parse import parse_qsl, unquote

import msgspec

from dsec.api import frames
from dsec.api.http import error_body, status_of
from dsec.api.ids import check_exec_id
from dsec.edge.caller import acting, caller_of, calling
from dsec.edge.core import Core
from dsec.edge.faults import fault
from dsec.edge.file_streams import check_path, file_place
from dsec.edge.job_record import Claim, claim_of
from dsec.edge.outputs import output_params
from dsec.edge.peers import TrustedPeers
from dsec.errors import DSecError, InvalidArgument, NodeError, NotFound
from dsec.node.joined import Joined, descriptor_of
from dsec.node.services import apiserver_uid

if TYPE_CHECKING:
    from uvicorn.config import Config
    from uvicorn.server import ServerState

__all__ = ["TRANSFER", "Transfer", "peers_of", "transfer_params"]

TRANSFER = b"dsec-transfer"
"""The protocol that a client upgrades to."""
_PREFIX, _SUFFIX = "/v1/sandboxes/", "/transfer"
_DIRECTIONS = {"upload": ("parents", "owners"), "download": ("follow", "name", "offset")}
_SHARED = ("direction", "transfer_id", "resume", "path", "user")
_STREAM = 1


def transfer_params(core: Core, target: str) -> tuple[str, dict[str, Any]]:
    """(method, parameters) of the runtime's for a request's target; raises InvalidArgument, NotFound, SandboxGone."""
    path, _, text = target.partition("?")
    if not path.startswith(_PREFIX) or not path.endswith(_SUFFIX):
        raise NotFound(f"no transfer is at {path[:200]}")
    query = dict(parse_qsl(text, keep_blank_values=True, errors="surrogateescape"))
    own = _DIRECTIONS.get(query.get("direction", ""))
    if own is None:
        raise InvalidArgument("direction is upload or download")
    unknown = set(query) - {*_SHARED, *own}
    if unknown:
        raise InvalidArgument(f"unknown query parameter {min(unknown)[:80]!r}")
    if query["direction"] == "upload":
        calling().need("exec", "an upload")
    record = core.running(unquote(path[len(_PREFIX) : -len(_SUFFIX)]))
    check_exec_id(query.get("transfer_id", ""))
    wanted = query.get("path", "").encode(errors="surrogateescape")
    check_path(wanted)
    offset = query.get("offset", "0")
    if not offset.isascii() or not offset.isdigit() or int(offset) >= 2**63:
        raise InvalidArgument("offset must be a number from 0")
    params = file_place(record, query.get("user")) | {
        "transfer_id": query["transfer_id"],
        "resume": query.get("resume") == "true",
        "offset": int(offset),
        "path": wanted,
    }
    params |= {name: query.get(name) == "true" for name in own if name not in ("name", "offset")}
    if "name" in query:
        params["name"] = query["name"].encode(errors="surrogateescape")
    return f"transfer.{query['direction']}", params


Check = Callable[[Claim, str], object]


class _RuntimeSide(asyncio.Protocol):
    """The runtime's half."""

    def __init__(self, client: Transfer) -> None:
        self._client = client

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.close()


class Transfer(asyncio.Protocol):
    """The client's half of one connection."""

    core: ClassVar[Core]
    check: Check
    """Raises Fenced or Denied for a claim that does not hold."""
    open_ones: ClassVar[dict[Transfer, Claim | None]]

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, Any]) -> None:
        self._connections = cast("set[Any]", server_state.connections)
        self._tasks = cast("set[Any]", server_state.tasks)
        self._transport: asyncio.Transport | None = None
        self._runtime: asyncio.Transport | None = None
        self._joined: Joined | None = None
        self._asked = False
        self._early: list[bytes] = []
        self._lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of asyncio.Protocol."""
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self)
        self.open_ones[self] = None

    def data_received(self, data: bytes) -> None:
        """Part of asyncio.Protocol."""
        if self._asked:
            self._early.append(data)
            if self._transport is not None:
                self._transport.pause_reading()
        else:
            self._open(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Part of asyncio.Protocol."""
        self._lost = True
        self._connections.discard(self)
        self.open_ones.pop(self, None)
        if self._joined is not None:
            self._joined.close()
        if self._runtime is not None:
            self._runtime.close()

    def shutdown(self) -> None:
        """Called by uvicorn when the server ends: clients come back to its successor."""
        self.close()

    def close(self) -> None:
        """End both connections once what was written is sent."""
        if self._transport is not None:
            self._transport.close()

    def _open(self, request: bytes) -> None:
        self._asked = True
        head, _, rest = request.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        target = first.split(" ", 2)[1]
        headers = dict(line.split(": ", 1) for line in lines if ": " in line)
        if rest:
            self._early.append(rest)
        try:
            caller = caller_of(headers)
            claim = claim_of(headers.get("dsec-job"), caller.home)
            if claim is not None:
                self.check(claim, caller.principal)
                self.open_ones[self] = claim
            with acting(caller):
                method, params = output_params(self.core, target) or transfer_params(self.core, target)
        except DSecError as error:
            self._refuse(error)
            return
        task = asyncio.get_running_loop().create_task(self._join(frames.open_frame(_STREAM, method, params)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _join(self, opening: bytes) -> None:
        try:
            await self.core.link.wait_up(5.0)
            runtime = await self.core.link.dial_raw(lambda: _RuntimeSide(self))
        except NodeError as error:
            self._refuse(error)
            return
        fault("edge.transfer.dialled")
        if self._lost or self._transport is None:
            runtime.close()
            return
        self._runtime = runtime
        runtime.pause_reading()
        self._transport.pause_reading()
        answer = b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: " + TRANSFER + b"\r\n\r\n"
        asked = b"".join([len(opening).to_bytes(4, "big"), opening, *self._early])
        self._early.clear()
        ends = descriptor_of(self._transport), descriptor_of(runtime)
        try:
            self._joined = Joined(*ends, first=asked, back=answer, over=self.close)
        except OSError as error:
            self._refuse(NodeError(f"the edge cannot join two connections: {error}", phase="stream"))
            return
        fault("edge.transfer.joined")

    def _refuse(self, error: DSecError) -> None:
        if self._transport is None or self._lost:
            return
        body = msgspec.json.encode(error_body(error))
        head = f"HTTP/1.1 {status_of(error)} Refused\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self._transport.write(head.encode() + body)
        self._transport.close()


def peers_of(
    core: Core, check: Callable[[Claim, str], object], open_ones: dict[Transfer, Claim | None]
) -> type[TrustedPeers]:
    """The HTTP protocol class of an edge's server: its own peers, and transfers besides WebSockets."""
    bound = type("BoundTransfer", (Transfer,), {"core": core, "check": staticmethod(check), "open_ones": open_ones})

    class Peers(TrustedPeers):
        also = apiserver_uid(core.config)

        def _should_upgrade(self) -> bool:
            return self._get_upgrade() == TRANSFER or super()._should_upgrade()

        def handle_websocket_upgrade(self) -> None:
            if self._get_upgrade() == TRANSFER:
                self.ws_protocol_class = cast(Any, bound)
            super().handle_websocket_upgrade()

    return Peers
