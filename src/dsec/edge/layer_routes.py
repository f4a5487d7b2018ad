"""Routes of layers and stores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from threading import Event
from typing import Any, TypeVar

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response

from dsec.api.images import ImageProgress
from dsec.api.layers import (
    ChangedFile,
    HiddenFile,
    LayerChecked,
    LayerCheckRequest,
    LayerClash,
    LayerCollected,
    LayerCollectRequest,
    LayerDetail,
    LayerDifferences,
    LayerDiffRequest,
    LayerEvicted,
    LayerEvictRequest,
    LayerInfo,
    LayerPullRequest,
    LayerPushRequest,
    LayerVerified,
    LayerVerifyRequest,
)
from dsec.edge.core import Core
from dsec.edge.environment import DEFAULT_PATH
from dsec.edge.layer_cache import LayerCache
from dsec.edge.node_stores import NodeStores, OnStoreBytes
from dsec.edge.progressing import Tell, progressing
from dsec.edge.router import Route
from dsec.edge.stored_images import stored_image_routes
from dsec.edge.web import answered, body_as, json_answer, query_of
from dsec.edge.wire_layers import layer_info, parse_environment, wire_environment
from dsec.errors import DSecError, InvalidArgument
from dsec.images import LayerTag, is_base_reference
from dsec.images.clashes import clashing_programs, clashing_variables, path_of, twice_in_path
from dsec.images.compare import Named, differences, hidden_files
from dsec.images.threads import in_thread

__all__ = ["evict", "layer_routes"]

T = TypeVar("T")
_MOST_SHOWN = 1_000
_MOST_FOUND = 1_000_000
_log = structlog.get_logger("dsec.edge.layers")


class _Layers:
    """The answers."""

    def __init__(self, core: Core, stores: NodeStores, cache: LayerCache) -> None:
        self._core = core
        self._images = core.images
        self.stores = stores
        self._cache = cache

    async def list(self, _: Request) -> Response:
        copies = self._images.copies.all()
        return json_answer({"layers": [self._info(each, copies) for each in self._images.list_layers()]})

    def _info(self, layer: LayerTag, copies: Mapping[str, Sequence[str]]) -> LayerInfo:
        here = self._images.layers.here(layer.digest)
        return msgspec.structs.replace(
            layer_info(layer),
            local_bytes=0 if here is None else here.total,
            used_at=self._cache.last_use(layer.digest),
            stores=list(copies.get(layer.digest, ())),
        )

    async def build(self, request: Request) -> Response:
        query = query_of(request, "reference", "at", "owner", "environment")
        if "reference" not in query:
            raise InvalidArgument("reference is missing")
        layer = await self._images.build_layer(
            query["reference"][0],
            request.stream(),
            at=query.get("at", ["/"])[0],
            owner=_owner(query.get("owner", ["0:0"])[0]),
            environment=parse_environment(query.get("environment", ["{}"])[0]),
        )
        return json_answer(layer_info(layer))

    async def show(self, request: Request) -> Response:
        layers = self._images.layers
        found = layers.find(request.path_params["reference"])
        here = layers.here(found.digest)
        return json_answer(
            LayerDetail(
                digest=found.digest,
                size_bytes=found.bytes,
                here=here is not None,
                metadata_bytes=0 if here is None else here.metadata,
                data_bytes=0 if here is None else here.data,
                local_bytes=0 if here is None else here.local,
                used_at=self._cache.last_use(found.digest),
                stores=self._images.copies.stores(found.digest),
                references=[each.tag for each in layers.tags_of(found.digest)],
                images=layers.images_with(found.digest),
                sandboxes=self._core.users_of(found.digest),
                environment=wire_environment(found.environment),
                provenance=layers.provenance(found.digest),
            )
        )

    async def evict(self, request: Request) -> Response:
        asked = await body_as(request, LayerEvictRequest)
        digest = self._images.layers.find(asked.reference).digest
        return json_answer(LayerEvicted(digest=digest, evicted=await self._cache.evict(digest)))

    async def remove(self, request: Request) -> Response:
        reference, query = request.path_params["reference"], query_of(request, "store")
        if "store" in query:
            await self.stores.drop(reference, query["store"][0])
            return json_answer({})
        digest = self._images.resolve_layer(reference)
        gone = await self._images.remove_layer(reference)
        await evict(self._core, sorted({digest, *gone}))
        await self.stores.let_go(gone)
        return json_answer({})

    async def push(self, request: Request) -> Response:
        asked = await body_as(request, LayerPushRequest)

        async def work(tell: Tell) -> dict[str, Any]:
            progress = _moments(tell, "push", asked.reference)
            await self._here(asked.reference)
            done = await self.stores.push(asked.reference, asked.store, progress, move=asked.move, mend=asked.mend)
            return {"pushed": done}

        return progressing(work)

    async def pull(self, request: Request) -> Response:
        asked = await body_as(request, LayerPullRequest)

        async def work(tell: Tell) -> dict[str, Any]:
            progress = _moments(tell, "pull", asked.reference)
            return {
                "layer": layer_info(await self.stores.pull(asked.reference, asked.store, progress, move=asked.move))
            }

        return progressing(work)

    async def verify(self, request: Request) -> Response:
        asked = await body_as(request, LayerVerifyRequest)

        async def work(tell: Tell) -> dict[str, Any]:
            if asked.store is None:
                digest = await self._here(asked.reference)
                faults = await self._images.layers.faults(digest)
            else:
                progress = _moments(tell, "verify", asked.reference)
                digest, faults = await self.stores.verify(asked.reference, asked.store, progress, deep=asked.deep)
            return {"verified": LayerVerified(digest=digest, faults=faults)}

        return progressing(work)

    async def collect(self, request: Request) -> Response:
        asked = await body_as(request, LayerCollectRequest)
        if asked.store is None:
            return json_answer(await self._collect_here(dry_run=asked.dry_run))
        done = await self.stores.collect(asked.store, dry_run=asked.dry_run)
        return json_answer(
            LayerCollected(
                removed_layers=done.removed_layers,
                removed_blobs=len(done.removed_blobs),
                removed_bytes=done.removed_bytes,
                doomed_layers=done.doomed_layers,
                doomed_blobs=len(done.doomed_blobs),
                doomed_bytes=done.doomed_bytes,
                damaged_layers=done.damaged_layers,
            )
        )

    async def _collect_here(self, *, dry_run: bool) -> LayerCollected:
        sizes = {digest: self._images.layers.size(digest) for digest in self._images.garbage()}
        gone = list(sizes) if dry_run else await self._images.prune()
        if not dry_run:
            await evict(self._core, gone)
            await self.stores.let_go(gone)
        return LayerCollected(removed_layers=list(gone), removed_bytes=sum(sizes.get(digest, 0) for digest in gone))

    async def check(self, request: Request) -> Response:
        asked = await body_as(request, LayerCheckRequest)
        named: list[tuple[str, str]] = []
        bottom, env, over = "dsec", {"PATH": DEFAULT_PATH}, asked.layers
        if asked.image is not None and is_base_reference(asked.image):
            over = [asked.image, *over]
        elif asked.image is not None:
            image = self._images.get(asked.image)
            bottom, env = image.reference, env | image.config.env
            named += [(image.reference, digest) for digest in image.layers]
        tags = [self._images.layers.find(each) for each in over]
        named += [(each.tag, each.digest) for each in tags]
        brought = [(each.tag, each.environment) for each in tags]
        path = path_of(bottom, env["PATH"], brought)
        with self._images.holding(digest for _, digest in named):
            await self._cache.ensure(digest for _, digest in named)
            layers = [Named(name, self._images.layers.path(digest)) for name, digest in named]
            found = await in_thread(lambda stop: _some(hidden_files(layers), stop))
            programs = await in_thread(lambda stop: _some(clashing_programs(layers, path), stop))
        clashes = [*clashing_variables(bottom, env, brought), *twice_in_path(path), *programs]
        hidden = [
            HiddenFile(path=_text(each.path), upper=each.upper, lower=each.lower, how=each.how)
            for each in found[:_MOST_SHOWN]
        ]
        return json_answer(
            LayerChecked(
                hidden=hidden,
                total=len(found),
                clashes=[LayerClash(**each._asdict()) for each in clashes[:_MOST_SHOWN]],
                clashes_total=len(clashes),
                path=":".join(each.directory for each in path),
            )
        )

    async def diff(self, request: Request) -> Response:
        asked = await body_as(request, LayerDiffRequest)
        old, new = (self._images.layers.find(each).digest for each in (asked.old, asked.new))
        layers = self._images.layers
        with self._images.holding([old, new]):
            await self._cache.ensure([old, new])
            for each in (old, new):
                # What has not been fetched would be read as zeros.
                layers.check_whole(each)
            found = await in_thread(lambda stop: _some(differences(layers.path(old), layers.path(new)), stop))
        files = [
            ChangedFile(path=_text(each.path), how=each.how, fields=list(each.fields))
            for each in sorted(found)[:_MOST_SHOWN]
        ]
        return json_answer(LayerDifferences(files=files, total=len(found)))

    async def _here(self, reference: str) -> str:
        """Digest of a layer, whose files are here when this returns."""
        digest = self._images.layers.find(reference).digest
        with self._images.holding([digest]):
            await self._cache.ensure([digest])
        return digest

    async def infos(self, _: Request) -> Response:
        return json_answer({"stores": self.stores.infos()})

    async def stored(self, request: Request) -> Response:
        return json_answer({"layers": await self.stores.tags(request.path_params["name"])})


async def evict(core: Core, layers: Sequence[str]) -> None:
    """Let the runtime unmount those of the layers that no sandbox uses."""
    unused = [each for each in layers if not core.uses_layer(each)]
    try:
        await core.backend.call("layer.evict", {"digests": unused})
    except DSecError as error:
        # A mounted layer without files costs space until the next eviction, nothing else.
        _log.warning("layers stay mounted", digests=unused, error=error.message)


def _moments(tell: Tell, phase: str, reference: str) -> OnStoreBytes:
    def progress(done: int, total: int) -> None:
        tell(ImageProgress(phase=phase, done=done, total=total, detail=reference))

    return progress


def _some(found: Iterator[T], stop: Event) -> list[T]:
    taken: list[T] = []
    for each in found:
        if stop.is_set() or len(taken) >= _MOST_FOUND:
            break
        taken.append(each)
    return taken


def _text(path: bytes) -> str:
    return "/" + path.decode(errors="backslashreplace")


def _owner(text: str) -> tuple[int, int] | None:
    if text == "keep":
        return None
    uid, separator, gid = text.partition(":")
    try:
        return int(uid), int(gid if separator else uid)
    except ValueError:
        raise InvalidArgument(f"owner is UID:GID or keep, not {text[:40]!r}") from None


def layer_routes(core: Core, stores: NodeStores, cache: LayerCache) -> list[Route]:
    """All of them; the fixed paths come before the references."""
    own = _Layers(core, stores, cache)
    return [
        Route("GET", "/v1/layers", answered(own.list)),
        Route("POST", "/v1/layers", answered(own.build)),
        Route("POST", "/v1/layers/push", answered(own.push)),
        Route("POST", "/v1/layers/pull", answered(own.pull)),
        Route("POST", "/v1/layers/verify", answered(own.verify)),
        Route("POST", "/v1/layers/gc", answered(own.collect)),
        Route("POST", "/v1/layers/evict", answered(own.evict)),
        Route("POST", "/v1/layers/check", answered(own.check)),
        Route("POST", "/v1/layers/diff", answered(own.diff)),
        Route("GET", "/v1/layers/{reference:path}", answered(own.show)),
        Route("DELETE", "/v1/layers/{reference:path}", answered(own.remove)),
        Route("GET", "/v1/stores", answered(own.infos)),
        Route("GET", "/v1/stores/{name}/layers", answered(own.stored)),
        *stored_image_routes(core, own.stores, cache),
    ]
