"""One event loop's way to the apiserver: a pool of HTTP connections and one WebSocket."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

import aiohttp
import msgspec
from yarl import URL

from dsec.api import frames
from dsec.api.http1 import Answer, Connection
from dsec.api.http_pool import Exchange, HttpPool
from dsec.client.bulk import BulkAddress
from dsec.client.discovery import Address
from dsec.client.lane import Lane
from dsec.client.streams import Flowing
from dsec.client.waiting import Patience
from dsec.client.wire import Wire
from dsec.decoding import MALFORMED
from dsec.errors import Denied, DSecError, InvalidArgument, NodeError, ProtocolError, error_from_wire

__all__ = ["Link"]

T = TypeVar("T")
_CONNECT_S = 10.0
_IDLE_S = 30.0
"""Less than the apiserver keeps them."""
_JSON = {"content-type": "application/json"}
_PATIENCE_S = 30.0
_HEARTBEAT_S = 30.0
_MOST_TRANSFERS = 16
_MOST_LANES = 16
_NO_LANE_S = 30.0
"""After a lane that gave nothing."""
_OTHER_ADDRESS_S = 0.25
"""After this, a host's next address is tried beside the first (RFC 8305)."""
Query = Mapping[str, str | bytes] | list[tuple[str, str]]


class _NotConnected(ConnectionError):
    """There is nobody to connect to."""


def _has_addresses(host: str) -> bool:
    """Whether a host is a name. One address needs no race, in which asyncio loses the socket of a cancelled call."""
    try:
        ip_address(host)
    except ValueError:
        return True
    return False


class Link:
    """Lives as long as its loop, or until ``close``. Not shared between loops."""

    def __init__(self, address: Address, max_creates: int) -> None:
        self.address = address
        self.creates = asyncio.Semaphore(max_creates)
        self.transfers = asyncio.Semaphore(_MOST_TRANSFERS)
        """Each is a thread and a connection."""
        parts = urlsplit(address.url)
        self._host, self._port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = address.context()
        self._other_address_s = _OTHER_ADDRESS_S if _has_addresses(self._host) else None
        self._before = parts.path.rstrip("/")
        token = {"authorization": f"Bearer {address.token}"} | address.headers
        self._pool = HttpPool(
            self._connect_http, self._unreachable, headers={"host": parts.netloc.rpartition("@")[2]} | token,
            connect_s=_CONNECT_S, idle_s=_IDLE_S,
        )  # fmt: skip
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            headers=token,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("Accept-Encoding", "Accept", "User-Agent"),
        )
        """For the WebSocket."""
        self._lanes = 0
        self._lanes_after = 0.0
        self._wire: Wire | None = None
        self._connecting: asyncio.Task[Wire] | None = None
        self._begun: set[asyncio.Task[None]] = set()
        self.closing = False
        """Whether nothing may begin any more."""

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Let something go on by itself, until it is done or this is closed."""
        task = asyncio.get_running_loop().create_task(work)
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)
        return task

    async def close(self) -> None:
        """Close everything. The sandboxes and execs go on."""
        self.closing = True
        for task in [*self._begun]:
            task.cancel()
            await asyncio.wait({task})
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait({self._connecting})
        if self._wire is not None:
            await self._wire.close()
            self._wire = None
        self._pool.close()
        await self._session.close()
        # The connections' sockets are closed in the next turn of the loop.
        await asyncio.sleep(0)

    # HTTP

    async def _connect_http(self, factory: Callable[[], Connection]) -> tuple[Any, Connection]:
        loop = asyncio.get_running_loop()
        try:
            return await loop.create_connection(
                factory, self._host, self._port, ssl=self._tls, happy_eyeballs_delay=self._other_address_s
            )
        except ssl.SSLError as error:
            raise _untrusted(self.address.url, error) from None
        except OSError as error:
            raise _NotConnected(error.strerror or str(error)) from None

    def _request(
        self, method: str, path: str, query: Query | None, body: bytes | AsyncIterable[bytes] | None,
        content_type: str | None = None, length: int | None = None,
    ) -> Exchange:  # fmt: skip
        target = f"{self._before}{path}?{urlencode(query)}" if query else self._before + path
        headers = {} if body is None else _JSON if content_type is None else {"content-type": content_type}
        try:
            return self._pool.exchange(method, target, headers, body, length)
        except ValueError as error:
            raise InvalidArgument(str(error)) from None

    @asynccontextmanager
    async def exchange(
        self, method: str, path: str, query: Query | None = None, body: bytes | AsyncIterable[bytes] | None = None,
        content_type: str = "application/json",
        length: int | None = None,
    ) -> AsyncIterator[Answer]:  # fmt: skip
        """One request, its answer not yet read; error answers and broken connections become errors of ours."""
        async with self._request(method, path, query, body, content_type, length) as answer:
            if answer.status >= 400:
                raise _error_of(answer.status, await answer.read())
            yield answer

    async def ask(
        self, method: str, path: str, kind: type[T], *, query: Query | None = None, body: object = None,
    ) -> T:  # fmt: skip
        """One JSON request and its answer."""
        raw = None if body is None else msgspec.json.encode(body)
        async with self._request(method, path, query, raw) as answer:
            content = await answer.read()
        if answer.status >= 400:
            raise _error_of(answer.status, content)
        return decode_answer(content, kind)

    async def ask_patiently(
        self, method: str, path: str, kind: type[T], *, query: Query | None = None, body: object = None,
        patience_s: float = _PATIENCE_S,
    ) -> T:  # fmt: skip
        """The same for what may be asked twice: goes on while the node does not answer."""
        patience = Patience(patience_s)
        while True:
            try:
                return await self.ask(method, path, kind, query=query, body=body)
            except NodeError as error:
                await patience.before_retry(error)

    def bulk_address(self, sandbox_id: str) -> BulkAddress:
        """Where a transfer connects to."""
        known = self.address
        return BulkAddress(
            self._host, self._port, self._tls, self._before, known.token, dict(known.headers), sandbox_id
        )  # fmt: skip

    # Lanes

    def has_lanes(self) -> bool:
        """Whether a stream that comes fast may have a lane now."""
        return self._lanes < _MOST_LANES and asyncio.get_running_loop().time() >= self._lanes_after

    @asynccontextmanager
    async def lane(
        self, sandbox_id: str, exec_id: str, offsets: dict[int, int], receiver: Flowing
    ) -> AsyncIterator[Lane | None]:
        """A connection for an exec's output from the offsets on; None where there is none to be had."""
        query: dict[str, str | bytes] = {"stdout": str(offsets[1]), "stderr": str(offsets[2])}
        request = self.bulk_address(sandbox_id).upgrade(f"execs/{exec_id}/output", query)
        self._lanes += 1
        lane = None
        try:
            lane = await self._connect_lane(request, receiver)
            yield lane
        finally:
            self._lanes -= 1
            if lane is not None:
                lane.close()
            if lane is None or not lane.received:
                # Nothing came: not supported by somebody on the way, or something is broken.
                self._lanes_after = asyncio.get_running_loop().time() + _NO_LANE_S

    async def _connect_lane(self, request: bytes, receiver: Flowing) -> Lane | None:
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, lane = await asyncio.get_running_loop().create_connection(
                    lambda: Lane(request, receiver), self._host, self._port, ssl=self._tls,
                    happy_eyeballs_delay=self._other_address_s,
                )  # fmt: skip
        except OSError:  # TimeoutError is one
            return None
        return lane

    # WebSocket

    async def wire(self) -> Wire:
        """The WebSocket, opened if there is none. Raises NodeError or Denied."""
        known = self.open_wire()
        if known is not None:
            return known
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
            self._connecting.add_done_callback(_look_at)
        return await asyncio.shield(self._connecting)

    def open_wire(self) -> Wire | None:
        """The WebSocket if it is open."""
        return self._wire if self._wire is not None and self._wire.alive else None

    async def _connect(self) -> Wire:
        old, self._wire = self._wire, None
        if old is not None:
            await old.close()
        try:
            async with asyncio.timeout(_CONNECT_S):
                socket = await self._session.ws_connect(
                    URL(self.address.url + "/v1/ws", encoded=True),
                    heartbeat=_HEARTBEAT_S,
                    max_msg_size=4 * frames.MAX_FRAME_BYTES,
                    timeout=aiohttp.ClientWSTimeout(ws_close=0.5),
                    ssl=True if self._tls is None else self._tls,
                )
        except aiohttp.WSServerHandshakeError as error:
            raise _error_of(error.status, b"") from None
        except aiohttp.ClientSSLError as error:
            raise _untrusted(self.address.url, error) from None
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(error) from None
        self._wire = Wire(socket)
        return self._wire

    def _unreachable(self, error: BaseException) -> NodeError:
        refused = isinstance(error, _NotConnected | aiohttp.ClientConnectorError)
        details: dict[str, Any] = {"refused": True} if refused else {}
        return NodeError(
            f"the apiserver at {self.address.url} does not answer ({str(error) or type(error).__name__})",
            phase="connect",
            remedy="`dsec status` says whether the node is up; `dsec up` starts or repairs it",
            **details,
        )


def _untrusted(url: str, error: BaseException) -> DSecError:
    """Nothing was sent: whoever answers there is not who is meant, or speaks no TLS."""
    return Denied(
        f"the server at {url} is not trusted ({getattr(error, 'verify_message', None) or error})",
        phase="tls",
        remedy="Set DSEC_TRUST to its certificate's fingerprint (`dsec up` prints it), or to a file of authorities",
    )


def decode_answer(body: bytes, kind: type[T]) -> T:
    """An answer of the server's; raises ProtocolError for what is none."""
    try:
        return msgspec.json.decode(body, type=kind)
    except MALFORMED as error:
        raise ProtocolError(f"the server's answer is malformed: {error}") from None


def _error_of(status: int, body: bytes) -> DSecError:
    try:
        wire = msgspec.json.decode(body)["error"]
        return error_from_wire(wire)
    except (*MALFORMED, KeyError, TypeError):
        pass
    if status in (401, 403):
        return Denied("the token is unknown, revoked or expired", phase="token", remedy="Set DSEC_TOKEN")
    if status in (502, 503, 504):
        return NodeError(f"the node does not answer (status {status})", phase="connect")
    return ProtocolError(
        f"the server answered {status} without an error of dsec's",
        remedy="Look whether DSEC_URL leads to a dsec apiserver, and what proxy stands between",
        status=status,
    )


def _look_at(task: asyncio.Task[Wire]) -> None:
    if not task.cancelled():
        task.exception()
