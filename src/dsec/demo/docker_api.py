"""The few calls of Docker's HTTP API that a comparison needs, over its Unix socket."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

from dsec.errors import InvalidArgument, NodeError

__all__ = ["DockerApi", "demultiplex", "socket_of"]

_DEFAULT_SOCKET = "/var/run/docker.sock"


def socket_of(environ: Mapping[str, str]) -> Path:
    """The daemon's socket: that of ``DOCKER_HOST``, which must be a ``unix://`` address, or the usual one."""
    host = environ.get("DOCKER_HOST", "")
    if not host:
        return Path(_DEFAULT_SOCKET)
    if not host.startswith("unix://"):
        raise InvalidArgument(
            f"DOCKER_HOST is {host!r}", remedy="Only a daemon on this machine (unix://…) is compared"
        )
    return Path(host.removeprefix("unix://"))


def demultiplex(stream: bytes) -> tuple[bytes, bytes]:
    """Standard output and error out of an exec's body: frames of a header (stream, 0, 0, 0, length), data."""
    parts: dict[int, list[bytes]] = {1: [], 2: []}
    at = 0
    while at + 8 <= len(stream):
        length = int.from_bytes(stream[at + 4 : at + 8], "big")
        parts.setdefault(stream[at], []).append(stream[at + 8 : at + 8 + length])
        at += 8 + length
    return b"".join(parts[1]), b"".join(parts[2])


class DockerApi:
    """A connection to a Docker daemon; an async context manager. Raises NodeError for what the daemon refuses."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.UnixConnector(path=str(self._socket), limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        self._session = aiohttp.ClientSession("http://docker", connector=connector, timeout=timeout)
        try:
            await self.call("GET", "/_ping")
        except NodeError:
            await self._session.close()
            raise NodeError(
                f"no Docker daemon answers on {self._socket}",
                remedy="Start Docker (Debian: `apt-get install docker.io`), or leave --docker out",
            ) from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, str] | None = None,
        data: bytes | AsyncIterable[bytes] | None = None,
    ) -> bytes:
        """The body of the answer; raises NodeError for a status of 400 or more and for a daemon that is not there."""
        if self._session is None:
            raise InvalidArgument("DockerApi is used as `async with DockerApi(…)`")
        headers = {"Content-Type": "application/json"}
        content: bytes | AsyncIterable[bytes] | None = data
        if data is not None:
            headers["Content-Type"] = "application/x-tar"
        elif body is not None:
            content = json.dumps(body).encode()
        try:
            async with self._session.request(method, path, params=query, data=content, headers=headers) as answer:
                raw = await answer.read()
        except aiohttp.ClientError as error:
            raise NodeError(f"Docker: {method} {path}: {error}") from None
        if answer.status >= 400:
            raise NodeError(f"Docker: {method} {path}: {answer.status} {raw[:300].decode(errors='replace')}")
        return raw

    async def create(self, image: str, host: Mapping[str, object], **config: object) -> str:
        """Create and start a container that waits; its ID."""
        body = {"Image": image, "Cmd": ["sleep", "infinity"], "HostConfig": {"NetworkMode": "none", **host}, **config}
        made: dict[str, Any] = json.loads(await self.call("POST", "/containers/create", body))
        await self.call("POST", f"/containers/{made['Id']}/start")
        return str(made["Id"])

    async def execute(self, container: str, argv: list[str]) -> tuple[int, bytes, bytes]:
        """Run a program to its end: exit code, standard output, standard error."""
        body = {"Cmd": argv, "AttachStdout": True, "AttachStderr": True}
        made: dict[str, Any] = json.loads(await self.call("POST", f"/containers/{container}/exec", body))
        raw = await self.call("POST", f"/exec/{made['Id']}/start", {"Detach": False, "Tty": False})
        ended: dict[str, Any] = json.loads(await self.call("GET", f"/exec/{made['Id']}/json"))
        return int(ended["ExitCode"]), *demultiplex(raw)

    async def put_archive(self, container: str, archive: bytes) -> None:
        """Unpack a tar archive in the container's root."""
        await self.call("PUT", f"/containers/{container}/archive", query={"path": "/"}, data=archive)

    async def remove(self, container: str) -> None:
        """Kill and remove a container."""
        await self.call("DELETE", f"/containers/{container}", query={"force": "1", "v": "1"})

    async def usage(self, container: str) -> tuple[float, float]:
        """CPU seconds used so far and the peak of memory in MiB (where the kernel keeps none: what is used now)."""
        raw = await self.call("GET", f"/containers/{container}/stats", query={"stream": "false", "one-shot": "true"})
        stats: dict[str, Any] = json.loads(raw)
        memory: dict[str, Any] = stats.get("memory_stats") or {}
        peak = memory.get("max_usage") or memory.get("usage") or 0
        return stats["cpu_stats"]["cpu_usage"]["total_usage"] / 1e9, peak / (1 << 20)

    async def labelled(self, label: str) -> list[str]:
        """IDs of all containers, running or not, with a label."""
        query = {"all": "1", "filters": json.dumps({"label": [label]})}
        found: list[dict[str, Any]] = json.loads(await self.call("GET", "/containers/json", query=query))
        return [str(each["Id"]) for each in found]

    async def has_image(self, name: str) -> bool:
        """Whether the daemon has an image of that name."""
        query = {"filters": json.dumps({"reference": [name]})}
        return bool(json.loads(await self.call("GET", "/images/json", query=query)))

    async def import_image(self, name: str, tag: str, root: AsyncIterable[bytes]) -> None:
        """Make an image of a root filesystem's tar archive."""
        query = {"fromSrc": "-", "repo": name, "tag": tag}
        _raise_streamed(await self.call("POST", "/images/create", query=query, data=root))

    async def build_image(self, name: str, context: bytes) -> None:
        """Build an image of a tar archive that holds a Dockerfile and what it copies."""
        query = {"t": name, "networkmode": "none", "rm": "1", "version": "1"}
        _raise_streamed(await self.call("POST", "/build", query=query, data=context))


def _raise_streamed(answer: bytes) -> None:
    """Errors of imports and builds come in a successful answer's lines."""
    for line in answer.splitlines():
        said = json.loads(line) if line.strip() else {}
        if "error" in said:
            raise NodeError(f"Docker: {said['error']}")
