"""Who may call the edge: root, its own user and the apiserver's, by the credentials of the connection."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from typing import cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["TrustedPeers"]

_CREDENTIALS = struct.Struct("3i")
"""PID, UID and GID, as SO_PEERCRED gives them."""


class TrustedPeers(HttpToolsProtocol):
    """HTTP for those who could read the node's files anyway; the connections of all others are cut unread.

    The socket's mode says the same. But a socket that was opened up by mistake would let anybody name any principal.
    """

    also: int | None = None
    """The apiserver's user; set in a subclass for each server."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Look at who called."""
        super().connection_made(transport)
        connection = cast("socket.socket", transport.get_extra_info("socket"))
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, uid, _ = _CREDENTIALS.unpack(raw)
        if uid not in (0, os.geteuid(), self.also):
            transport.abort()
