"""An edge over a fake runtime, on real Unix sockets, that tests can crash and start again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import uvicorn

from dsec.api import frames, ids
from dsec.api.access import EVERY_PROJECT
from dsec.api.frames import Kind
from dsec.edge.app import Edge
from dsec.edge.caller import Caller, acting
from dsec.edge.capacity import Machine
from dsec.errors import DSecError, error_from_wire
from dsec.images import ImageConfig, Images, ImagesConfig, Tools
from dsec.images.catalogue import Catalogue
from dsec.images.fakes import FakeTools
from dsec.node.config import NodeConfig
from dsec.testing.fake_runtime import FakeRuntime

__all__ = [
    "IMAGE",
    "LAYER",
    "MACHINE",
    "Api",
    "Clock",
    "Socket",
    "World",
    "caller_headers",
    "failing",
    "opened_world",
    "until",
]

IMAGE = "dsec/debian:12"
LAYER = "a" * 64
MACHINE = Machine(memory_bytes=9 << 30, cpus=2, pids=32_768, descriptors=20_000, disk_bytes=64 << 30)


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Socket:
    """A client's WebSocket: opens streams, collects what comes back."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        self.ws = ws
        self.next = 1

    async def open(self, method: str, **params: Any) -> int:
        """Open a stream and return its number."""
        stream, self.next = self.next, self.next + 1
        await self.ws.send_bytes(frames.open_frame(stream, method, params))
        return stream

    async def frame(self) -> list[Any]:
        """The next frame; ConnectionError when the socket closes, with its code."""
        message = await self.ws.receive()
        if message.type is not aiohttp.WSMsgType.BINARY:
            raise ConnectionError(self.ws.close_code)
        return frames.decode(message.data)

    async def result(self, stream: int) -> tuple[Any, dict[int, bytes], list[Any]]:
        """(end, bytes by channel, items) of a stream; raises its error, with ``partial`` bytes."""
        output: dict[int, bytes] = {1: b"", 2: b""}
        items: list[Any] = []
        while True:
            frame = await self.frame()
            assert frame[0] == stream, frame
            if frame[1] == Kind.DATA:
                assert frame[3] == len(output[frame[2]])
                output[frame[2]] += frame[4]
                await self.ws.send_bytes(frames.until_frame(stream, frame[2], frame[3] + (1 << 20)))
            elif frame[1] == Kind.ITEM:
                items.append(frame[2])
            elif frame[1] == Kind.ERROR:
                raise error_from_wire(frame[2])
            else:
                return frame[2], output, items

    async def run(self, sandbox_id: str, *argv: bytes, **fields: Any) -> tuple[Any, dict[int, bytes], list[Any]]:
        """Run a program to its end."""
        params = {"sandbox_id": sandbox_id, "key": ids.new_key(), "mode": "collect"} | fields
        if "shell" not in params:
            params["argv"] = list(argv)
        return await self.result(await self.open("exec", **params))


class Api:
    """The edge's HTTP as calls that raise typed errors."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session

    async def call(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """The JSON answer."""
        project, scope = options.pop("project", "*"), options.pop("scope", "admin")
        headers = caller_headers(options.pop("principal", "alice"), options.pop("job", None), project, scope)
        async with self.session.request(
            method, "http://edge" + path, json=body, headers=headers, **options
        ) as answer:
            if answer.status >= 400:
                raise error_from_wire((await answer.json())["error"])
            return await answer.json()

    async def create(self, *, principal: str = "alice", project: str = "*", **fields: Any) -> dict[str, Any]:
        """A sandbox."""
        body = {"image": IMAGE, "key": ids.new_key()} | fields
        answer = await self.call("POST", "/v1/sandboxes", body, principal=principal, project=project)
        assert isinstance(answer, dict)
        return answer

    @contextlib.asynccontextmanager
    async def socket(self, job: str | None = None, project: str = "*", scope: str = "admin") -> AsyncIterator[Socket]:
        """A WebSocket, in the name of a job's holder."""
        headers = caller_headers("alice", job, project, scope)
        async with self.session.ws_connect("http://edge/v1/ws", headers=headers) as ws:
            yield Socket(ws)


def caller_headers(
    principal: str = "alice", job: str | None = None, project: str = "*", scope: str = "admin"
) -> dict[str, str]:
    """What the apiserver says of whoever asks."""
    named = {"dsec-principal": principal, "dsec-project": project, "dsec-scope": scope}
    return named | ({} if job is None else {"dsec-job": job})


class World:
    """A node's files, its fake runtime, and edges over them one after the other."""

    def __init__(self, root: Path, runtime: FakeRuntime, **settings: Any) -> None:
        self.runtime = runtime
        self.clock = Clock()
        self.config = NodeConfig(node="test", root=str(root), boot_id="boot-1", **settings)
        self.images_config = ImagesConfig(
            layers_dir=self.config.paths.layers,
            catalogue=self.config.paths.catalogue_db,
            scratch_dir=self.config.paths.data / "scratch",
        )
        self.programs: dict[str, Any] = {}

    def boot(self, boot_id: str) -> None:
        """The machine was booted again."""
        self.config = msgspec.structs.replace(self.config, boot_id=boot_id)

    def seed(self) -> None:
        """Put an image into the catalogue."""
        catalogue = Catalogue(self.config.paths.catalogue_db)
        catalogue.put_layer(LAYER, 1000)
        config = ImageConfig({"PATH": "/bin", "LANG": "C", "FROM": "image"}, "app", "/srv", ("echo",), ("hello",))
        catalogue.put_image(IMAGE, "sha256:" + "b" * 64, config, [LAYER])
        catalogue.close()
        (self.config.paths.layers / LAYER).mkdir(parents=True)
        (self.config.paths.layers / LAYER / "layer.json").write_bytes(b"{}")

    def images(self, in_use: Callable[[str], bool], _: Tools) -> Images:
        """The node's images."""
        return Images(self.images_config, FakeTools(self.programs), in_use=in_use)

    @contextlib.asynccontextmanager
    async def edge(self) -> AsyncIterator[tuple[Edge, Api]]:
        """An edge that serves. Leaving the block is its crash: it does nothing more for its sandboxes."""
        edge = Edge(self.config, self.images, clock=self.clock, machine=MACHINE)
        socket = self.config.paths.edge_socket
        socket.unlink(missing_ok=True)
        server = uvicorn.Server(
            uvicorn.Config(
                edge.app, uds=str(socket), http=edge.peers(), ws="websockets-sansio", lifespan="off",
                log_config=None, access_log=False, ws_ping_interval=None, timeout_graceful_shutdown=0,
            )
        )  # fmt: skip
        async with edge.running():
            serving = asyncio.create_task(server.serve())
            try:
                await until(lambda: server.started)
                await until(lambda: edge.recovered)
                connector = aiohttp.UnixConnector(str(socket), force_close=False)
                async with aiohttp.ClientSession(connector=connector, headers=caller_headers()) as session:
                    # For calls past HTTP; the server began outside, and is told by each request.
                    with acting(Caller("alice", EVERY_PROJECT, "admin")):
                        yield edge, Api(session)
            finally:
                server.should_exit = True
                server.force_exit = True
                await serving


async def until(condition: Callable[[], bool]) -> None:
    """Return once the condition holds; TimeoutError after five seconds."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  (there is no event to wait for)
            await asyncio.sleep(0.001)


async def failing(work: Any) -> DSecError:
    """The error that a call raises."""
    try:
        await work
    except DSecError as error:
        return error
    raise AssertionError("the call did not fail")


@contextlib.asynccontextmanager
async def opened_world(root: Path, **settings: Any) -> AsyncIterator[World]:
    """A world with one image under a directory."""
    paths = NodeConfig(node="test", root=str(root)).paths
    for directory in (paths.run, paths.data, paths.layers, paths.output):
        directory.mkdir(parents=True)
    async with FakeRuntime(paths.runtime_socket) as runtime:
        world = World(root, runtime, **settings)
        world.seed()
        yield world
