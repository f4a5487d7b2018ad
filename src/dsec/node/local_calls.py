"""Plain blocking calls over a node's own sockets, for ``down``, ``restart`` and the leak check. Root only."""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path
from types import TracebackType
from typing import Any

from dsec.api import frames
from dsec.errors import DSecError, NodeError, ProtocolError, error_from_wire

__all__ = ["EdgeCalls", "RuntimeCalls"]

_HELLO_S = 5.0
"""A runtime that lives says hello at once; one that is starting, soon."""
CALLER = {"dsec-principal": "node", "dsec-project": "*", "dsec-scope": "admin"}
"""Root of this machine, by the peer credentials that ``edge.sock`` looks at; the actor of what ``dsec down`` does."""


def _connect(path: Path, timeout_s: float) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    connection.settimeout(timeout_s)
    try:
        connection.connect(str(path))
    except OSError as error:
        connection.close()
        raise NodeError(f"{path} does not answer: {error.strerror or error}", remedy="Run `dsec up`") from None
    return connection


class RuntimeCalls:
    """One connection to ``runtime.sock``: calls without channels, one at a time."""

    def __init__(self, path: Path, *, timeout_s: float = 60.0) -> None:
        self._socket = _connect(path, min(timeout_s, _HELLO_S))
        self._stream = 0
        self.call("hello", {"version": 1})
        self._socket.settimeout(timeout_s)

    def __enter__(self) -> RuntimeCalls:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The result of one call; raises the runtime's error, NodeError when it hangs or hangs up."""
        self._stream += 1
        frame = frames.open_frame(self._stream, method, params)
        try:
            self._socket.sendall(len(frame).to_bytes(4, "big") + frame)
            while True:
                stream, kind, *rest = frames.decode(self._read_frame())
                if stream != self._stream:
                    raise ProtocolError(f"the runtime answered stream {stream}, not {self._stream}")
                if kind == frames.Kind.ERROR:
                    raise error_from_wire(rest[0])
                if kind == frames.Kind.END:
                    return dict(rest[0] or {})
        except (OSError, EOFError) as error:
            if isinstance(error, DSecError):
                raise
            raise NodeError(f"the runtime did not answer {method}: {error}", remedy="Run `dsec up`") from None

    def _read_frame(self) -> bytes:
        return self._read(int.from_bytes(self._read(4), "big"))

    def _read(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            part = self._socket.recv(size - len(parts))
            if not part:
                raise EOFError("it hung up")
            parts += part
        return bytes(parts)


class _UnixHttp(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("edge", timeout=timeout_s)
        self._path, self._timeout_s = path, timeout_s

    def connect(self) -> None:
        self.sock = _connect(self._path, self._timeout_s)


class EdgeCalls:
    """The edge's HTTP routes over ``edge.sock``, a connection for each call; safe from several threads."""

    def __init__(self, path: Path, *, timeout_s: float = 60.0) -> None:
        self._path, self._timeout_s = path, timeout_s

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """The JSON answer; raises the edge's error, NodeError when it does not answer."""
        connection = _UnixHttp(self._path, self._timeout_s)
        headers = CALLER | {"content-type": "application/json"}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            parsed = json.loads(answer.read() or b"{}")
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(error, DSecError):
                raise
            raise NodeError(f"the edge did not answer {method} {path}: {error}", remedy="Run `dsec up`") from None
        finally:
            connection.close()
        if answer.status >= 400:
            raise error_from_wire(parsed.get("error") or {"message": f"status {answer.status}"})
        return dict(parsed)
