"""A registry on loopback that serves one image and fails as it is told, then as often as it is told."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from aiohttp import web

from .registries import free_port

Fault = Callable[[web.Request], web.Response | int | None]
"""For a request: an answer instead, after how many bytes of the blob the connection breaks, or None."""


class FaultyRegistry:
    """Serves what an OCI layout holds, as ``team/app``; ``fault`` is asked about every request first."""

    def __init__(self, layout: Path) -> None:
        self._blobs = layout / "blobs" / "sha256"
        self.manifest = json.loads((layout / "index.json").read_bytes())["manifests"][0]["digest"]
        self.fault: Fault = lambda _: None
        self.asked: list[str] = []
        self.address = ""

    def blob(self, digest: str) -> bytes:
        """What the layout has."""
        return (self._blobs / digest.removeprefix("sha256:")).read_bytes()

    @property
    def layers(self) -> list[str]:
        """Digests of the image's blobs."""
        return [each["digest"] for each in json.loads(self.blob(self.manifest))["layers"]]

    def count(self, word: str) -> int:
        """How many requests had it in their path."""
        return sum(word in each for each in self.asked)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """One request."""
        self.asked.append(request.path)
        fault = self.fault(request)
        if isinstance(fault, web.Response):
            return fault
        if request.path == "/v2/":
            return web.json_response({})
        name = request.path.rsplit("/", 1)[1]
        if "/manifests/" in request.path:
            kind = "application/vnd.oci.image.manifest.v1+json"
            body = self.blob(name if name.startswith("sha256:") else self.manifest)
            index = json.loads(body).get("mediaType", kind)
            return web.Response(body=body, content_type=index)
        body = self.blob(name)
        response = web.StreamResponse(headers={"Content-Length": str(len(body))})
        await response.prepare(request)
        await response.write(body if fault is None else body[:fault])
        if fault is not None and request.transport is not None:
            request.transport.close()
        return response


@contextlib.asynccontextmanager
async def faulty_registry(layout: Path) -> AsyncIterator[FaultyRegistry]:
    """One, listening while the block runs."""
    registry = FaultyRegistry(layout)
    app = web.Application()
    app.router.add_get("/{path:.*}", registry.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    registry.address = f"127.0.0.1:{port}"
    try:
        yield registry
    finally:
        await runner.cleanup()
