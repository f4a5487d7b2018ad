"""Files, images and layers of the fake edge: bytes by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from dsec.api import types
from dsec.api.images import ImageConfig, ImageInfo, ImageProgress
from dsec.api.layers import LayerInfo
from dsec.errors import FileMissing
from dsec.testing.fake_answers import json_answer

if TYPE_CHECKING:
    from dsec.testing.fake_edge import FakeEdge

__all__ = ["StoreRoutes"]


class StoreRoutes:
    """Handlers over the edge's tables."""

    def __init__(self, edge: FakeEdge) -> None:
        self._edge = edge

    def routes(self) -> list[web.RouteDef]:
        """Of this part."""
        return [
            web.get("/v1/sandboxes/{id}/files", self._read),
            web.put("/v1/sandboxes/{id}/files", self._write),
            web.get("/v1/images", self._images),
            web.post("/v1/images/import", self._import),
            web.post("/v1/layers", self._layer),
        ]

    async def _read(self, request: web.Request) -> web.Response:
        key = (self._edge.sandbox(request).id, request.query["path"])
        if key not in self._edge.files:
            raise FileMissing(f"no such file: {key[1]}", sandbox_id=key[0], errno=2, path=key[1])
        offset, limit = int(request.query.get("offset", 0)), request.query.get("limit")
        data = self._edge.files[key][offset:]
        return web.Response(body=data if limit is None else data[: int(limit)])

    async def _write(self, request: web.Request) -> web.Response:
        key = (self._edge.sandbox(request).id, request.query["path"])
        self._edge.files[key] = body = await request.read()
        mode = int(request.query.get("mode", "644"), 8)
        return json_answer(types.FileWritten(path=key[1], bytes=len(body), mode=mode))

    async def _images(self, request: web.Request) -> web.Response:
        return json_answer({"images": list(self._edge.images.values())})

    async def _import(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        reference = request.query.get("reference") or msgspec.json.decode(body)["source"]
        self._edge.uploads[reference] = body
        info = ImageInfo(
            reference=reference, digest="0" * 64, layers=[], size_bytes=len(body), created_at=0,
            config=ImageConfig(),
        )  # fmt: skip
        self._edge.images[reference] = info
        lines = [ImageProgress(phase="copy", done=1, total=2), {"image": info}]
        return web.Response(body=b"".join(msgspec.json.encode(line) + b"\n" for line in lines))

    async def _layer(self, request: web.Request) -> web.Response:
        reference = request.query["reference"]
        self._edge.uploads[reference] = body = await request.read()
        return json_answer(LayerInfo(digest="1" * 64, size_bytes=len(body), reference=reference))
