"""Images and tokens: ``client.images``, ``client.tokens``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

import msgspec

from dsec.api.images import ImageFetchRequest, ImageInfo, ImagePushed, ImagePushRequest, ImportRequest
from dsec.api.tokens import TokenCreated, TokenInfo, TokenRequest
from dsec.client.link import Query
from dsec.client.progressing import OnImageProgress, OnProgress, last_line
from dsec.client.results import ImageReady
from dsec.client.tarball import Upload, file_pieces, tar_pieces
from dsec.errors import ImageError, InvalidArgument

if TYPE_CHECKING:
    from dsec.client.client import DSecClient

__all__ = ["Images", "Tokens"]


class _ImageList(msgspec.Struct, frozen=True):
    images: list[ImageInfo]


class _TokenList(msgspec.Struct, frozen=True):
    tokens: list[TokenInfo]


class Images:
    """The node's images."""

    def __init__(self, client: DSecClient) -> None:
        self._client = client

    async def list(self) -> list[ImageInfo]:
        """Every image."""
        found = await self._client._link().ask_patiently("GET", "/v1/images", _ImageList)
        return found.images

    async def get(self, reference: str) -> ImageInfo:
        """One image, by reference or digest. Raises ImageNotFound."""
        return await self._client._link().ask_patiently("GET", _image_path(reference), ImageInfo)

    async def remove(self, reference: str) -> None:
        """Remove an image; layers that others, and sandboxes that live, use stay. Raises ImageNotFound."""
        await self._client._link().ask_patiently("DELETE", _image_path(reference), dict[str, Any])

    async def import_(
        self, source: str, *, reference: str | None = None,
        pull: Literal["missing", "always", "never"] = "always", on_progress: OnProgress | None = None,
    ) -> ImageInfo:  # fmt: skip
        """Import an image; returns it when it is there.

        ``source``: a reference or ``docker://REF``, which the node pulls; or ``docker-archive:FILE`` or
        ``oci:DIR``, files of this machine, which are sent (``reference`` then names the image, if the archive does
        not). Raises ImageNotFound, RegistryDenied, RegistryRateLimited, ImageCorrupt.
        """
        kind, _, name = source.partition(":")
        if kind not in ("docker-archive", "oci"):
            body = msgspec.json.encode(ImportRequest(source=source, reference=reference, pull=pull))
            return await self._progressing("/v1/images/import", None, body, "application/json", on_progress)
        query = {"format": kind} | ({} if reference is None else {"reference": reference})
        path = Path(name)
        upload = Upload(tar_pieces(path) if kind == "oci" else file_pieces(path))
        return await self._progressing("/v1/images/import", query, upload, "application/x-tar", on_progress)

    async def build(self, reference: str = "dsec/debian:12", *, on_progress: OnProgress | None = None) -> ImageInfo:
        """Build the image that dsec makes itself."""
        body = msgspec.json.encode({"reference": reference})
        return await self._progressing("/v1/images/build", None, body, "application/json", on_progress)

    async def collapse(self, reference: str, *, on_progress: OnProgress | None = None) -> ImageInfo:
        """Make one layer of each run of an image's small layers, as the node does by itself after an import.

        Sandboxes made from then on mount fewer layers; those that live keep what they have. Nothing to do is no
        error. Raises ImageNotFound, CapacityError, DeadlineExceeded, NodeError.
        """
        body = msgspec.json.encode({"reference": reference})
        return await self._progressing("/v1/images/collapse", None, body, "application/json", on_progress)

    async def push(
        self, reference: str, *, store: str | None = None, move: bool = False, on_progress: OnProgress | None = None
    ) -> ImagePushed:
        """Publish an image of the node in a store, the default one if None: only the layers that it has not are sent.

        Raises ImageNotFound, Conflict (the name means another image there, and ``move`` was not said), StoreFull,
        StoreDenied, StoreUnreachable. Asked again, it goes on where it was cut off.
        """
        body = msgspec.json.encode(ImagePushRequest(reference=reference, store=store, move=move))
        return await last_line(
            self._client._link(), "/v1/images/push", None, body, "application/json", on_progress, "pushed",
            ImagePushed,
        )  # fmt: skip

    async def fetch(
        self, reference: str, *, store: str | None = None, on_progress: OnProgress | None = None
    ) -> ImageInfo:
        """Bring an image from a store, instead of its registry, onto the node: every chunk checked.

        Raises ImageNotFound, ImageCorrupt, StoreDenied, StoreUnreachable, CapacityError.
        """
        body = msgspec.json.encode(ImageFetchRequest(reference=reference, store=store))
        return await self._progressing("/v1/images/fetch", None, body, "application/json", on_progress)

    async def ensure(
        self, references: Sequence[str], *, pull: Literal["missing", "always", "never"] = "missing",
        concurrency: int = 8, on_progress: OnImageProgress | None = None,
    ) -> AsyncGenerator[ImageReady | ImageError]:  # fmt: skip
        """Make sure that images are there: each as it becomes ready, or the ImageError that keeps it from it.

        The error's ``details["reference"]`` names its image; the others go on. ``concurrency`` are pulled at once;
        ``on_progress`` is called with the reference and how far its pull is.
        What is no image's fault is raised: InvalidArgument (a malformed name), NodeError, CapacityError (disk full).
        Leaving the iteration stops asking; pulls that have begun go on at the node.
        """
        if isinstance(references, str):
            raise InvalidArgument("ensure takes a list of references, not one string")
        if concurrency < 1:
            raise InvalidArgument("concurrency must be at least 1")
        turn = asyncio.Semaphore(concurrency)
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self._ensured(one, pull, turn, on_progress)) for one in dict.fromkeys(references)]
        try:
            for next_ready in asyncio.as_completed(tasks):
                yield await next_ready
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    async def _progressing(
        self, path: str, query: Query | None, body: bytes | Upload, content_type: str, on_progress: OnProgress | None
    ) -> ImageInfo:
        return await last_line(self._client._link(), path, query, body, content_type, on_progress, "image", ImageInfo)

    async def _ensured(
        self, reference: str, pull: Literal["missing", "always", "never"], turn: asyncio.Semaphore,
        on_progress: OnImageProgress | None,
    ) -> ImageReady | ImageError:  # fmt: skip
        async with turn:
            begun = asyncio.get_running_loop().time()
            try:
                image = await self.import_(
                    reference, pull=pull, on_progress=None if on_progress is None else partial(on_progress, reference)
                )
            except ImageError as error:
                error.details["reference"] = reference
                return error
            return ImageReady(reference, image, asyncio.get_running_loop().time() - begun)


def _image_path(reference: str) -> str:
    if not reference.strip("/"):
        raise InvalidArgument("an image's reference is empty")
    return "/v1/images/" + quote(reference, safe="/:@")


class Tokens:
    """The node's tokens; an admin's matter."""

    def __init__(self, client: DSecClient) -> None:
        self._client = client

    async def create(
        self, name: str = "", *, ttl_s: float | None = None, scope: str = "exec", project: str | None = None,
        principal: str | None = None,
    ) -> TokenCreated:  # fmt: skip
        """Make a token; its secret is seen only here. Raises InvalidArgument; Denied unless the caller is an admin.

        ``ttl_s`` None: until revoked. ``scope`` is "read", "exec" or "admin", each with the former; ``project`` is
        "default" unless named, "*" for all of them (an admin's); ``principal`` is the caller's own unless named.
        """
        body = TokenRequest(name=name, ttl_s=ttl_s, scope=scope, project=project, principal=principal)
        return await self._client._link().ask("POST", "/v1/tokens", TokenCreated, body=body)

    async def list(self) -> list[TokenInfo]:
        """All tokens of the node, without their secrets."""
        found = await self._client._link().ask_patiently("GET", "/v1/tokens", _TokenList)
        return found.tokens

    async def revoke(self, token_id: str) -> None:
        """Make a token invalid at once, its open WebSockets included. Raises NotFound."""
        await self._client._link().ask("DELETE", f"/v1/tokens/{quote(token_id, safe='')}", dict[str, Any])
