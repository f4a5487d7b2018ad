"""A real apiserver over a fake edge, in a thread with an event loop of its own.

For tests of the SDK; needs no root.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import uvicorn

from dsec.apiserver.edge_link import Edges, LocalEdge
from dsec.apiserver.gate import Gate
from dsec.apiserver.limits import Limits
from dsec.apiserver.server import listen, make_server
from dsec.iam.first import ensure_first_token
from dsec.iam.tokens import Tokens
from dsec.testing.fake_edge import FakeEdge

__all__ = ["FakeNode"]

T = TypeVar("T")


class FakeNode:
    """``with FakeNode(directory) as node``: then ``node.url`` and ``node.token`` are good for a client.

    The listening socket outlives the apiserver, as it does under the keeper, so a restart refuses nobody.
    """

    def __init__(
        self, directory: Path, *, node: str = "fake", limits: Limits | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.directory = directory
        self.edge = FakeEdge(node)
        self._limits = limits
        self._tls = tls
        self.iam_db = directory / "iam.db"
        self.token = ensure_first_token(self.iam_db, directory / "token")
        self._listener: socket.socket = listen("127.0.0.1", 0)
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self._listener.getsockname()[1]}"
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._over: asyncio.Event | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="fake-node")

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._loop is not None and self._over is not None
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()
        self._listener.close()

    def node_json(self, root: Path) -> Path:
        """Write ``node.json`` of a node ``local`` below ``root``, as ``dsec up --root`` does."""
        path = root / "run/dsec/local/node.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        token_path = str(self.directory / "token")
        path.write_text(json.dumps({"url": self.url, "token_path": token_path, "node": self.edge.node}))
        return path

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something in the node's loop, from another thread."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def restart_apiserver(self) -> None:
        """End the apiserver and its connections, start another on the same listening socket."""
        self.do(self._restart())

    def stop_apiserver(self) -> None:
        """End the apiserver; who connects now waits."""
        self.do(self._end_server())

    def start_apiserver(self) -> None:
        """Start one again."""
        self.do(self._start_server())

    async def _restart(self) -> None:
        await self._end_server()
        await self._start_server()

    async def _start_server(self) -> None:
        link = LocalEdge(self.edge.node, self.directory / "edge.sock", self.directory / "ports.sock")
        self._server = make_server(Gate("test", Edges(link), Tokens(self.iam_db)), self._limits, self._tls)
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._listener.dup()]))

    async def _end_server(self) -> None:
        assert self._server is not None and self._serving is not None
        self._server.should_exit = True
        await self._serving

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        await self.edge.start(self.directory / "edge.sock")
        await self._start_server()
        self._ready.set()
        await self._over.wait()
        await self._end_server()
        await self.edge.stop()
