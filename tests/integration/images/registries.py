"""Registries on loopback: Debian's docker-registry, and one that misbehaves as told."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

_CONFIG = """version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {root}}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""
_TLS_HANDSHAKE = 0x16
_AUTH = """auth: {{htpasswd: {{realm: test, path: {file}}}}}
"""


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def docker_registry(root: Path, htpasswd: str | None = None, port: int | None = None) -> Iterator[str]:
    """Run Debian's registry with its own storage and port; gives HOST:PORT."""
    root.mkdir()
    port = free_port() if port is None else port
    config = _CONFIG.format(root=root / "storage", port=port)
    if htpasswd is not None:
        (root / "htpasswd").write_text(htpasswd)
        config += _AUTH.format(file=root / "htpasswd")
    (root / "config.yml").write_text(config)
    with (root / "log").open("wb") as log:
        process = subprocess.Popen(["docker-registry", "serve", root / "config.yml"], stdout=log, stderr=log)
        try:
            _wait_until_listening(process, port, root / "log")
            yield f"127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(10)


def _wait_until_listening(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    # A connection that is refused comes back at once: the retry is paced by waiting for the process's end.
    for _ in range(200):
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), 5):
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
            break
    raise AssertionError(log.read_text())


class Misbehaving:
    """A registry that does nothing right."""

    def __init__(self) -> None:
        self.address = ""
        self.requests: list[str] = []
        self.asked = asyncio.Event()

    def note(self, line: bytes) -> None:
        """Remember the first line of a request."""
        self.requests.append(line.decode(errors="replace"))
        self.asked.set()


@contextlib.asynccontextmanager
async def misbehaving(status: int | None, headers: str = "", port: int = 0) -> AsyncIterator[Misbehaving]:
    """A registry that answers every request with ``status``, or takes it and never answers (None)."""
    registry = Misbehaving()
    tasks: set[asyncio.Task[None]] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            while line := await reader.readline():
                registry.note(line)
                if line[0] == _TLS_HANDSHAKE and status is not None:
                    return
                while (await reader.readline()).strip():
                    pass
                if status is None:
                    await asyncio.Event().wait()
                writer.write(f"HTTP/1.1 {status} No\r\nContent-Length: 2\r\n{headers}\r\n{{}}".encode())
                await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", port)
    try:
        host, port = server.sockets[0].getsockname()
        registry.address = f"{host}:{port}"
        yield registry
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


def push(layout: Path, registry: str, name: str, creds: str | None = None, *, form: str = "oci") -> None:
    """Put the image of an OCI layout into a registry; ``form`` is oci or v2s2 (Docker's own)."""
    argv = ["skopeo", "--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false", "--format", form]
    argv += ["--dest-creds", creds] if creds else []
    subprocess.run([*argv, f"oci:{layout}", f"docker://{registry}/{name}"], check=True, env=os.environ, timeout=30)


class Gated:
    """A registry behind a gate that holds every fetch of a blob until it is opened."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self.address = ""
        self.fetched: list[bytes] = []
        self.reached = asyncio.Event()
        self.open = asyncio.Event()

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        host, port = self._backend.split(":")
        back_reader, back_writer = await asyncio.open_connection(host, int(port))
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._copy(back_reader, writer))
                await self._copy(reader, back_writer, gated=True)
        except* ConnectionError:
            pass
        finally:
            back_writer.close()
            writer.close()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, gated: bool = False) -> None:
        while data := await reader.read(1 << 16):
            if gated and data.startswith(b"GET") and b"/blobs/" in data.partition(b"\r\n")[0]:
                self.fetched.append(data.split()[1])
                self.reached.set()
                await self.open.wait()
            writer.write(data)
            await writer.drain()
        with contextlib.suppress(OSError):
            writer.write_eof()


@contextlib.asynccontextmanager
async def gated(backend: str, port: int) -> AsyncIterator[Gated]:
    """A gate before the registry at ``backend``, listening on ``port``."""
    gate = Gated(backend)
    tasks: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(gate.forward(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", port)
    gate.address = f"127.0.0.1:{port}"
    try:
        yield gate
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
