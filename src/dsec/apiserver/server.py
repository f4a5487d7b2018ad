"""Runs the application on uvicorn, with limits that hold before a token is seen."""

from __future__ import annotations

import os
import socket
import ssl
from typing import Any

import uvicorn

from dsec.apiserver.gate import Gate
from dsec.apiserver.limits import LimitedHttp, Limits
from dsec.apiserver.splice import splice_class
from dsec.apiserver.tls import TlsServer
from dsec.errors import InvalidArgument

__all__ = ["inherited_socket", "listen", "make_server"]

_INHERITED = 3


def make_server(
    gate: Gate, limits: Limits | None = None, tls: ssl.SSLContext | None = None, *, ports_domain: str = "localhost"
) -> uvicorn.Server:
    """The server, not yet serving: ``await server.serve(sockets=[…])``. With ``tls`` it speaks nothing else."""
    bound = {"edges": gate.edges, "limits": Limits() if limits is None else limits, "ports_domain": ports_domain}
    config = uvicorn.Config(
        gate,
        loop="uvloop",
        http=type("BoundHttp", (LimitedHttp,), bound),
        ws=_as_ws(splice_class(gate.admit, gate.opened, gate.closed)),
        lifespan="on",
        access_log=False,
        log_config=None,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=2,
    )
    return uvicorn.Server(config) if tls is None else TlsServer(config, tls)


def _as_ws(protocol: Any) -> Any:
    return protocol


def inherited_socket() -> socket.socket | None:
    """The listening socket passed as descriptor 3 (``LISTEN_FDS``), or None."""
    if int(os.environ.get("LISTEN_FDS", "0")) < 1:
        return None
    listener = socket.socket(fileno=_INHERITED)
    _send_at_once(listener)
    return listener


def listen(host: str, port: int) -> socket.socket:
    """A listening socket of our own; raises InvalidArgument when the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
        _send_at_once(listener)
    except OSError as error:
        listener.close()
        raise InvalidArgument(
            f"cannot listen on {host}:{port}: {error.strerror}", remedy="Choose another with `port` in the settings"
        ) from None
    return listener


def _send_at_once(listener: socket.socket) -> None:
    """Accepted connections inherit this; asyncio sets it only where it knows the socket's protocol number."""
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
