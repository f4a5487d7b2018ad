"""TLS in front of the server: each connection is unwrapped, and served as if it had come without.

uvicorn could speak TLS itself. But connections that carry bulk bytes are joined by their descriptors, which takes
plain bytes. So TLS ends in a thin layer of its own, and what is behind it holds one end of a socket pair.
"""

from __future__ import annotations

import asyncio
import ctypes
import socket
import ssl
from collections.abc import Callable
from typing import cast

import uvicorn

__all__ = ["TlsServer", "keep_memory"]

_HANDSHAKE_S = 10.0
_SHUTDOWN_S = 5.0
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT = 16 << 20


def keep_memory() -> None:
    """Keep up to 16 MiB of freed memory in this process.

    Every piece of a stream is a buffer of some 256 KiB, for an instant. By default each of them goes back to the
    kernel and comes anew, page by page, which takes longer than to encrypt it.
    """
    libc = ctypes.CDLL(None)
    for threshold in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
        libc.mallopt(threshold, _KEPT)


class _Plain(asyncio.Protocol):
    """Our end of the pair: what the server sends goes out encrypted."""

    def __init__(self, outer: _Encrypted) -> None:
        self._outer = outer

    def data_received(self, data: bytes) -> None:
        self._outer.transport.write(data)

    def pause_writing(self) -> None:
        self._outer.hold(True)

    def resume_writing(self) -> None:
        self._outer.hold(False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._outer.close()


class _Encrypted(asyncio.Protocol):
    """The client's connection."""

    transport: asyncio.Transport

    def __init__(
        self, serve: Callable[[], asyncio.Protocol], tasks: set[asyncio.Task[None]], open_ones: set[_Encrypted]
    ) -> None:
        self._serve = serve
        self._tasks = tasks
        self._open_ones = open_ones
        self._plain: asyncio.Transport | None = None
        self._early: list[bytes] = []
        self._lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._open_ones.add(self)
        self.hold(True)
        task = asyncio.get_running_loop().create_task(self._join())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _join(self) -> None:
        loop = asyncio.get_running_loop()
        ours, servers = socket.socketpair()
        ours.setblocking(False)
        servers.setblocking(False)
        try:
            await loop.connect_accepted_socket(self._serve, servers)
            plain, _ = await loop.create_connection(lambda: _Plain(self), sock=ours)
        except OSError:
            ours.close()
            servers.close()
            self.close()
            return
        if self._lost:
            plain.close()
            return
        self._plain = plain
        plain.writelines(self._early)
        self._early.clear()
        self.hold(False)

    def data_received(self, data: bytes) -> None:
        if self._plain is None:
            self._early.append(data)
        else:
            self._plain.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._open_ones.discard(self)
        if self._plain is not None:
            self._plain.close()

    def pause_writing(self) -> None:
        if self._plain is not None:
            self._plain.pause_reading()

    def resume_writing(self) -> None:
        if self._plain is not None:
            self._plain.resume_reading()

    def hold(self, hold: bool) -> None:
        """Hold the client back, or let it go on."""
        if self._lost or self.transport.is_closing():
            return
        if hold:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def close(self) -> None:
        """End it once what was written is sent."""
        if not self._lost:
            self.transport.close()


class TlsServer(uvicorn.Server):
    """A server whose listening sockets speak TLS, and nothing else."""

    def __init__(self, config: uvicorn.Config, context: ssl.SSLContext) -> None:
        super().__init__(config)
        self._context = context
        self._open_ones: set[_Encrypted] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Part of uvicorn.Server."""
        await super().startup(sockets=[])
        loop = asyncio.get_running_loop()
        for listener in sockets or ():
            server = await loop.create_server(
                lambda: _Encrypted(self._protocol, self.server_state.tasks, self._open_ones), sock=listener,
                ssl=self._context, ssl_handshake_timeout=_HANDSHAKE_S, ssl_shutdown_timeout=_SHUTDOWN_S,
                backlog=self.config.backlog,
            )  # fmt: skip
            self.servers.append(server)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Part of uvicorn.Server. Who does not say goodbye in TLS is not waited for."""
        await super().shutdown(sockets)
        for each in list(self._open_ones):
            each.transport.abort()
        await asyncio.sleep(0)

    def _protocol(self) -> asyncio.Protocol:
        make = cast("Callable[..., asyncio.Protocol]", self.config.http_protocol_class)
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
