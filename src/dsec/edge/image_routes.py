"""Routes of images and layers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response

from dsec.api.images import ImageInfo, ImageProgress, ImportRequest
from dsec.edge.core import Core
from dsec.edge.layer_routes import evict
from dsec.edge.node_stores import NodeStores
from dsec.edge.progressing import Tell, line, progressing
from dsec.edge.router import Route
from dsec.edge.web import answered, body_as, json_answer, query_of
from dsec.edge.wire_layers import image_info
from dsec.errors import InvalidArgument, Unsupported
from dsec.images import Image, OnProgress, Progress

__all__ = ["image_routes"]

_log = structlog.get_logger("dsec.edge.images")
_encode = msgspec.json.Encoder().encode
_Work = Callable[[OnProgress], Awaitable[Image]]


class _BuildRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reference: str = "dsec/debian:12"


class _CollapseRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reference: str


class _Images:
    """The answers."""

    def __init__(self, core: Core, stores: NodeStores) -> None:
        self._core = core
        self._images = core.images
        self._stores = stores

    async def list(self, _: Request) -> Response:
        return json_answer({"images": [image_info(each) for each in self._images.list()]})

    async def get(self, request: Request) -> Response:
        return json_answer(image_info(self._images.get(request.path_params["reference"])))

    async def remove(self, request: Request) -> Response:
        image = self._images.get(request.path_params["reference"])
        gone = await self._images.remove(image.reference)
        await evict(self._core, sorted({*image.layers, *gone}))
        await self._stores.let_go(gone)
        return json_answer({})

    async def import_(self, request: Request) -> Response:
        query = query_of(request, "reference", "format")
        if "format" in query:
            reference = query["reference"][0] if "reference" in query else None
            return await self._import_stream(request, query["format"][0], reference)
        asked = await body_as(request, ImportRequest)
        source = asked.source if "://" in asked.source else f"docker://{asked.source}"
        if not source.startswith("docker://"):
            raise Unsupported(f"the server imports from registries only, not {asked.source[:200]!r}")

        async def work(progress: OnProgress) -> Image:
            if asked.pull != "always" and asked.reference is None:
                name = source.removeprefix("docker://")
                return await self._images.resolve(name, pull=asked.pull, progress=progress)
            return await self._images.import_(source, asked.reference, progress=progress)

        return _answer(work)

    async def _import_stream(self, request: Request, transport: str, reference: str | None) -> Response:
        if transport == "docker-archive":
            image = await self._images.import_stream("docker-archive", request.stream(), reference)
        elif transport == "oci":
            image = await self._images.import_stream("oci", request.stream(), reference)
        else:
            raise InvalidArgument(f"format is docker-archive or oci, not {transport[:40]!r}")
        return Response(line({"image": image_info(image)}), media_type="application/x-ndjson")

    async def build(self, request: Request) -> Response:
        asked = await body_as(request, _BuildRequest)
        if asked.reference != "dsec/debian:12":
            raise Unsupported(f"the image that dsec builds is dsec/debian:12, not {asked.reference[:80]!r}")
        return _answer(lambda progress: self._images.build_default(progress=progress))

    async def collapse(self, request: Request) -> Response:
        asked = await body_as(request, _CollapseRequest)
        self._images.get(asked.reference)

        async def work(progress: OnProgress) -> Image:
            return await self._images.collapse(asked.reference)

        return _answer(work)


def _answer(work: _Work) -> Response:
    async def told(progress: Tell) -> dict[str, ImageInfo]:
        return {"image": image_info(await work(lambda moment: progress(_moment(moment))))}

    return progressing(told)


def _moment(progress: Progress) -> ImageProgress:
    if progress.layers_total is not None and progress.bytes_total is None:
        return ImageProgress(
            phase=progress.phase, done=progress.layers_done, total=progress.layers_total, unit="layers",
            detail=progress.reference,
        )  # fmt: skip
    return ImageProgress(
        phase=progress.phase, done=progress.bytes_done, total=progress.bytes_total or 0, detail=progress.reference
    )


def image_routes(core: Core, stores: NodeStores) -> list[Route]:
    """All of them; the fixed paths come before the references."""
    own = _Images(core, stores)
    return [
        Route("GET", "/v1/images", answered(own.list)),
        Route("POST", "/v1/images/import", answered(own.import_)),
        Route("POST", "/v1/images/build", answered(own.build)),
        Route("POST", "/v1/images/collapse", answered(own.collapse)),
        Route("GET", "/v1/images/{reference:path}", answered(own.get)),
        Route("DELETE", "/v1/images/{reference:path}", answered(own.remove)),
    ]
