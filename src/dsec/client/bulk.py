"""One transfer's way to the node: a connection of its own, made again at the right offset when it breaks.

Plain blocking sockets, for a thread: a transfer is limited by how often bytes are touched, and the event loop has
other calls to serve. The first window of bytes that the other side has not confirmed is kept to be sent again.
"""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import msgspec

from dsec.api import frames
from dsec.api.frames import STDIN, STDOUT, Kind
from dsec.decoding import MALFORMED
from dsec.errors import Denied, DSecError, NodeError, NotFound, ProtocolError, error_from_wire

__all__ = ["WINDOW", "Bulk", "BulkAddress", "Cancelled", "Forgotten"]

WINDOW = 4 << 20
"""As the runtime has it: ``until`` is what was taken plus this."""
_STREAM = 1
_CHUNK = 255 * 1024
_CONNECT_S = 10.0
_SILENT_S = 120.0
"""A node that says nothing for so long while something is awaited of it is asked again on another connection."""
_PATIENCE_S = 30.0
_REFUSED_S = 3.0
_MOST_HEAD = 64 * 1024
_decode = msgspec.msgpack.Decoder(list[Any]).decode


class Cancelled(Exception):
    """The caller wants no more."""


class Forgotten(Exception):
    """The node knows nothing of the transfer any more: it must begin anew."""


class _Broken(Exception):
    """The connection ended."""

    refused = False


@dataclass(frozen=True)
class BulkAddress:
    """Where to connect, and how to ask."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    before: str
    """What the URL has before ``/v1``."""
    token: str
    headers: dict[str, str]
    """What each request says besides."""
    sandbox_id: str

    def upgrade(self, path: str, query: dict[str, str | bytes]) -> bytes:
        """The request for an upgrade, at a path of the sandbox's."""
        target = f"{self.before}/v1/sandboxes/{self.sandbox_id}/{path}?{urlencode(query)}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        request = f"GET {target} HTTP/1.1\r\nhost: {host}:{self.port}\r\nauthorization: Bearer {self.token}\r\n"
        request += "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        return (request + "connection: Upgrade\r\nupgrade: dsec-transfer\r\n\r\n").encode("latin-1")


class Bulk:
    """A transfer. ``send`` or ``receive`` once, in a thread; ``cancel`` from anywhere."""

    def __init__(self, address: BulkAddress, transfer_id: str, query: dict[str, str | bytes]) -> None:
        self._address = address
        self._query = query | {"transfer_id": transfer_id}
        self._socket: socket.socket | None = None
        self._cancelled = threading.Event()
        self._begun = False
        self._buffer = bytearray(2 * frames.MAX_FRAME_BYTES)
        self._start = self._end = 0
        self._silent_since: float | None = None
        self._silent_at = self._attempt = 0
        self.result: dict[str, Any] = {}
        """The runtime's ``end``, when all was received."""
        self.reconnects = 0
        """How often the connection was made again."""

    def cancel(self) -> None:
        """Make ``send`` or ``receive`` raise Cancelled soon."""
        self._cancelled.set()
        held = self._socket
        if held is not None:
            with contextlib.suppress(OSError):
                held.shutdown(socket.SHUT_RDWR)

    # Uploads

    def send(self, pieces: Iterable[bytes], progress: Callable[[int], None]) -> dict[str, Any]:
        """Send it all; the runtime's ``end``. Raises the runtime's error, Forgotten, Cancelled, NodeError."""
        sending = _Sending(iter(pieces), progress)
        while True:
            try:
                self._connect(sending.confirmed)
                return self._send_on(sending)
            except _Broken as error:
                broken = error
            finally:
                self._close()
            self._wait_after(broken, sending.confirmed)

    def _send_on(self, sending: _Sending) -> dict[str, Any]:
        sending.rewind(self._awaited_at())
        while True:
            while sending.sent >= sending.until or sending.over:
                end = self._take_until(sending)
                if end is not None:
                    return end
            piece = sending.next()
            self._write(sending.sent, piece)
            sending.sent += len(piece)

    def _awaited_at(self) -> int:
        frame = self._next()
        if frame[1] != Kind.ITEM or "at" not in frame[2]:
            raise ProtocolError("the node did not say where the transfer stands")
        return int(frame[2]["at"])

    def _take_until(self, sending: _Sending) -> dict[str, Any] | None:
        frame = self._next()
        if frame[1] == Kind.UNTIL and frame[2] == STDIN:
            sending.granted(frame[3])
        elif frame[1] == Kind.END:
            return self._acknowledged(frame[2])
        return None

    def _write(self, offset: int, piece: memoryview) -> None:
        head = b"\x95\x01\x01\x00\xcf" + offset.to_bytes(8, "big") + b"\xc6" + len(piece).to_bytes(4, "big")
        head = (len(head) + len(piece)).to_bytes(4, "big") + head
        held = self._connected()
        try:
            if isinstance(held, ssl.SSLSocket):
                held.sendall(head)
                held.sendall(piece)
                return
            sent = held.sendmsg([head, piece])
            if sent < len(head):
                held.sendall(head[sent:])
                sent = len(head)
            if sent < len(head) + len(piece):
                held.sendall(piece[sent - len(head) :])
        except OSError as error:
            raise _Broken(str(error)) from None

    # Downloads

    def receive(self) -> Generator[memoryview]:
        """The archive in pieces, each valid until the next is asked for; then ``result``. Raises as ``send``."""
        taken = 0
        while True:
            try:
                self._connect(taken)
                granted = taken + WINDOW
                while True:
                    frame = self._next()
                    if frame[1] == Kind.DATA and frame[2] == STDOUT:
                        if frame[3] != taken:
                            raise ProtocolError(f"the archive continues at {taken}, not at {frame[3]}")
                        yield frame[4]
                        taken += len(frame[4])
                        if taken + WINDOW - granted >= WINDOW // 4:
                            granted = taken + WINDOW
                            self._send_frame(frames.until_frame(_STREAM, STDOUT, granted))
                    elif frame[1] == Kind.END:
                        self.result = self._acknowledged(frame[2])
                        return
            except _Broken as error:
                broken = error
            finally:
                self._close()
            self._wait_after(broken, taken)

    # Both

    def _wait_after(self, broken: _Broken, offset: int) -> None:
        """Wait before the next connection; raises NodeError after too long a silence, Cancelled."""
        if self._cancelled.is_set():
            raise Cancelled
        now = time.monotonic()
        if self._silent_since is None or offset != self._silent_at:
            self._silent_since, self._silent_at, self._attempt = now, offset, 0
        self._attempt += 1
        if now - self._silent_since > (_REFUSED_S if broken.refused else _PATIENCE_S):
            raise NodeError(
                f"the connection to the apiserver broke ({broken})",
                phase="stream",
                sandbox_id=self._address.sandbox_id,
            )
        self.reconnects += 1
        self._cancelled.wait(min(2.0, 0.05 * 2**self._attempt) * (0.5 + random.random() / 2))  # noqa: S311

    def _connect(self, offset: int) -> None:
        if self._cancelled.is_set():
            raise Cancelled
        address = self._address
        self._start = self._end = 0
        try:
            plain = socket.create_connection((address.host, address.port), _CONNECT_S)
        except OSError as error:
            broken = _Broken(str(error))
            broken.refused = isinstance(error, ConnectionRefusedError)
            raise broken from None
        self._socket = plain
        if self._cancelled.is_set():
            raise Cancelled
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.tls is not None:
                self._socket = address.tls.wrap_socket(plain, server_hostname=address.host)
            self._socket.settimeout(_SILENT_S)
            self._upgrade(offset)
        except OSError as error:
            raise _Broken(str(error)) from None

    def _upgrade(self, offset: int) -> None:
        query = self._query | {"resume": "true" if self._begun else "false"}
        if query["direction"] == "download":
            query["offset"] = str(offset)
        self._connected().sendall(self._address.upgrade("transfer", query))
        self._begun = True
        while (end := self._buffer.find(b"\r\n\r\n", 0, self._end)) < 0:
            if self._end > _MOST_HEAD:
                raise ProtocolError("the answer is not HTTP/1.1")
            self._fill()
        head = bytes(self._buffer[:end]).decode("latin-1")
        self._start = end + 4
        if head[9:12] != "101":
            self._refused(head)

    def _refused(self, head: str) -> None:
        """An answer instead of the upgrade; the connection ends after it."""
        with contextlib.suppress(_Broken, OSError):
            while self._end - self._start < _MOST_HEAD:
                self._fill()
        body = bytes(self._buffer[self._start : self._end])
        try:
            error = error_from_wire(msgspec.json.decode(body)["error"])
        except (*MALFORMED, KeyError, TypeError):
            if head[9:12] in ("401", "403"):
                raise Denied("the token is unknown, revoked or expired", phase="token") from None
            raise _Broken(head.partition("\r\n")[0]) from None
        if isinstance(error, NodeError) and error.phase in ("connect", "stream", "edge", "runtime"):
            raise _Broken(error.message)
        raise error

    def _acknowledged(self, result: dict[str, Any]) -> dict[str, Any]:
        with contextlib.suppress(_Broken):
            self._send_frame(frames.close_frame(_STREAM))
        return result

    def _send_frame(self, frame: bytes) -> None:
        try:
            self._connected().sendall(len(frame).to_bytes(4, "big") + frame)
        except OSError as error:
            raise _Broken(str(error)) from None

    def _next(self) -> list[Any]:
        """The next frame, its bytes a view that lasts until the next call; raises the error of an error frame."""
        while self._end - self._start < 4:
            self._fill()
        length = int.from_bytes(self._buffer[self._start : self._start + 4], "big")
        if length > frames.MAX_FRAME_BYTES:
            raise ProtocolError(f"the node sent a frame of {length} bytes")
        while self._end - self._start < 4 + length:
            self._fill()
        start = self._start + 4
        self._start = start + length
        view = memoryview(self._buffer)[start : self._start]
        try:
            frame = _data_frame(view) or _decode(view)
        except (*MALFORMED, IndexError) as error:
            raise ProtocolError(f"not a frame: {error}") from None
        if frame[1] == Kind.ERROR:
            raise _error_of(frame[2])
        return frame

    def _fill(self) -> None:
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start and len(self._buffer) - self._end < frames.MAX_FRAME_BYTES:
            left = self._end - self._start
            self._buffer[:left] = self._buffer[self._start : self._end]
            self._start, self._end = 0, left
        try:
            count = self._connected().recv_into(memoryview(self._buffer)[self._end :])
        except OSError as error:
            raise _Broken(str(error)) from None
        if count == 0:
            raise _Broken("it ended")
        self._end += count

    def _connected(self) -> socket.socket:
        if self._socket is None or self._cancelled.is_set():
            raise _Broken("it was closed")
        return self._socket

    def _close(self) -> None:
        held, self._socket = self._socket, None
        if held is not None:
            held.close()


def _data_frame(view: memoryview) -> list[Any] | None:
    """A data frame without a copy of its bytes; None for any other."""
    if len(view) < 9 or view[0] != 0x95 or view[1] != _STREAM or view[2] != Kind.DATA:
        return None
    at = 4
    width = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}.get(view[at])
    if width is None:
        offset, at = view[at], at + 1
    else:
        offset, at = int.from_bytes(view[at + 1 : at + 1 + width], "big"), at + 1 + width
    width = {0xC4: 1, 0xC5: 2, 0xC6: 4}[view[at]] if view[at] in (0xC4, 0xC5, 0xC6) else 0
    length = int.from_bytes(view[at + 1 : at + 1 + width], "big")
    at += 1 + width
    if width == 0 or at + length != len(view):
        return None
    return [_STREAM, Kind.DATA, view[3], offset, view[at:]]


def _error_of(wire: dict[str, Any]) -> Exception:
    error: DSecError = error_from_wire(wire)
    if isinstance(error, NotFound) and error.phase == "transfer":
        return Forgotten()
    return error


class _Sending:
    """What is sent and not yet confirmed, and what follows."""

    def __init__(self, pieces: Iterable[bytes], progress: Callable[[int], None]) -> None:
        self._pieces = iter(pieces)
        self._progress = progress
        self._kept: deque[tuple[int, memoryview]] = deque()
        self._again: deque[memoryview] = deque()
        self._rest = memoryview(b"")
        self._made = 0
        self.sent = 0
        self.until = 0
        self.confirmed = 0
        self.over = False

    def rewind(self, at: int) -> None:
        """Go on at an offset that the runtime confirmed."""
        self.granted(at + WINDOW)
        self._again = deque(piece[max(0, at - offset) :] for offset, piece in self._kept if offset + len(piece) > at)
        if at > self._made or (self._kept and at < self._kept[0][0]) or (not self._kept and at != self._made):
            raise ProtocolError(f"the node wants the archive from {at}")
        self.sent, self.over = at, False

    def granted(self, until: int) -> None:
        """The runtime has taken everything up to one window before this offset."""
        self.until = max(self.until, until)
        self.confirmed = max(self.confirmed, self.until - WINDOW)
        while self._kept and self._kept[0][0] + len(self._kept[0][1]) <= self.confirmed:
            self._kept.popleft()
        self._progress(self.confirmed)

    def next(self) -> memoryview:
        """At most a frame's worth, and no more than is granted; empty at the end."""
        if self._again:
            piece = self._again.popleft()
            allowed = self.until - self.sent
            if len(piece) > allowed:
                self._again.appendleft(piece[allowed:])
                piece = piece[:allowed]
            return piece
        if not self._rest:
            self._rest = memoryview(next(self._pieces, b""))
        piece = self._rest[: min(_CHUNK, self.until - self.sent)]
        self._rest = self._rest[len(piece) :]
        if piece:
            self._kept.append((self._made, piece))
            self._made += len(piece)
        else:
            self.over = True
        return piece
