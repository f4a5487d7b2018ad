"""Routes of images and layers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from dsec.api.types import ImageConfig, ImageInfo, ImageProgress, ImportRequest, LayerInfo
from dsec.edge.core import Core
from dsec.edge.router import Route
from dsec.edge.web import answered, body_as, json_answer, query_of
from dsec.errors import DSecError, InvalidArgument, PlatformError, Unsupported
from dsec.images import Image, LayerTag, OnProgress, Progress

__all__ = ["image_routes"]

_log = structlog.get_logger("dsec.edge.images")
_encode = msgspec.json.Encoder().encode
_Work = Callable[[OnProgress], Awaitable[Image]]


class _BuildRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reference: str = "dsec/debian:12"


def image_info(image: Image) -> ImageInfo:
    """The API's form of an image."""
    config = image.config
    return ImageInfo(
        reference=image.reference,
        digest=image.digest,
        layers=list(image.layers),
        size_bytes=image.bytes,
        created_at=image.created_at,
        config=ImageConfig(
            env=[f"{name}={value}" for name, value in config.env.items()],
            user=config.user,
            workdir=config.workdir,
            entrypoint=list(config.entrypoint),
            cmd=list(config.cmd),
        ),
    )


def _layer_info(layer: LayerTag) -> LayerInfo:
    return LayerInfo(digest=layer.digest, size_bytes=layer.bytes, reference=layer.tag, created_at=layer.created_at)


class _Images:
    """The answers."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._images = core.images

    async def list(self, _: Request) -> Response:
        return json_answer({"images": [image_info(each) for each in self._images.list()]})

    async def get(self, request: Request) -> Response:
        return json_answer(image_info(self._images.get(request.path_params["reference"])))

    async def remove(self, request: Request) -> Response:
        gone = await self._images.remove(request.path_params["reference"])
        await self._evict(gone.layers)
        return json_answer({})

    async def remove_layer(self, request: Request) -> Response:
        reference = request.path_params["reference"]
        digest = self._images.resolve_layer(reference)
        await self._images.remove_layer(reference)
        await self._evict([digest])
        return json_answer({})

    async def _evict(self, layers: Sequence[str]) -> None:
        unused = [each for each in layers if not self._core.uses_layer(each)]
        try:
            await self._core.backend.call("layer.evict", {"digests": unused})
        except DSecError as error:
            # A mounted layer without files costs space until the next eviction, nothing else.
            _log.warning("layers stay mounted", digests=unused, error=error.message)

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

        return _progressing(work)

    async def _import_stream(self, request: Request, transport: str, reference: str | None) -> Response:
        if transport == "docker-archive":
            image = await self._images.import_stream("docker-archive", request.stream(), reference)
        elif transport == "oci":
            image = await self._images.import_stream("oci", request.stream(), reference)
        else:
            raise InvalidArgument(f"format is docker-archive or oci, not {transport[:40]!r}")
        return Response(_line({"image": image_info(image)}), media_type="application/x-ndjson")

    async def build(self, request: Request) -> Response:
        asked = await body_as(request, _BuildRequest)
        if asked.reference != "dsec/debian:12":
            raise Unsupported(f"the image that dsec builds is dsec/debian:12, not {asked.reference[:80]!r}")
        return _progressing(lambda progress: self._images.build_default(progress=progress))

    async def layers(self, _: Request) -> Response:
        return json_answer({"layers": [_layer_info(each) for each in self._images.list_layers()]})

    async def build_layer(self, request: Request) -> Response:
        query = query_of(request, "reference", "at", "owner")
        if "reference" not in query:
            raise InvalidArgument("reference is missing")
        layer = await self._images.build_layer(
            query["reference"][0],
            request.stream(),
            at=query.get("at", ["/"])[0],
            owner=_owner(query.get("owner", ["0:0"])[0]),
        )
        return json_answer(_layer_info(layer))


def _owner(text: str) -> tuple[int, int]:
    uid, separator, gid = text.partition(":")
    try:
        return int(uid), int(gid if separator else uid)
    except ValueError:
        raise InvalidArgument(f"owner is UID:GID, not {text[:40]!r}") from None


def _line(content: Any) -> bytes:
    return _encode(content) + b"\n"


def _progressing(work: _Work) -> Response:
    """NDJSON: a line for each moment (the latest only, for a slow reader), then the image or the error."""
    return StreamingResponse(_lines(work), media_type="application/x-ndjson")


async def _lines(work: _Work) -> AsyncIterator[bytes]:
    latest: list[Progress] = []
    moved = asyncio.Event()

    def progress(moment: Progress) -> None:
        latest[:] = [moment]
        moved.set()

    task = asyncio.ensure_future(work(progress))
    task.add_done_callback(lambda _: moved.set())
    try:
        while not task.done():
            await moved.wait()
            moved.clear()
            while latest:
                yield _line(_moment(latest.pop()))
        yield _line(_outcome(task))
    finally:
        # The reader is gone: the pull itself goes on for whoever asks next.
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _outcome(task: asyncio.Future[Image]) -> dict[str, Any]:
    try:
        return {"image": image_info(task.result())}
    except DSecError as error:
        return {"error": error.to_wire()}
    except Exception as error:
        _log.exception("import failed")
        return {"error": PlatformError(f"import failed: {type(error).__name__}: {error}").to_wire()}


def _moment(progress: Progress) -> ImageProgress:
    if progress.layers_total is not None and progress.bytes_total is None:
        return ImageProgress(
            phase=progress.phase, done=progress.layers_done, total=progress.layers_total, unit="layers",
            detail=progress.reference,
        )  # fmt: skip
    return ImageProgress(
        phase=progress.phase, done=progress.bytes_done, total=progress.bytes_total or 0, detail=progress.reference
    )


def image_routes(core: Core) -> list[Route]:
    """All of them; the fixed paths come before the references."""
    own = _Images(core)
    return [
        Route("GET", "/v1/images", answered(own.list)),
        Route("POST", "/v1/images/import", answered(own.import_)),
        Route("POST", "/v1/images/build", answered(own.build)),
        Route("GET", "/v1/images/{reference:path}", answered(own.get)),
        Route("DELETE", "/v1/images/{reference:path}", answered(own.remove)),
        Route("GET", "/v1/layers", answered(own.layers)),
        Route("POST", "/v1/layers", answered(own.build_layer)),
        Route("DELETE", "/v1/layers/{reference:path}", answered(own.remove_layer)),
    ]
