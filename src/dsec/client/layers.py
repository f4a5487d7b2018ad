"""Layers and stores: ``client.layers``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import msgspec

from dsec.api.layers import (
    LayerChecked,
    LayerCheckRequest,
    LayerCollected,
    LayerCollectRequest,
    LayerDetail,
    LayerDifferences,
    LayerDiffRequest,
    LayerEnvironment,
    LayerEvicted,
    LayerEvictRequest,
    LayerInfo,
    LayerPullRequest,
    LayerPushed,
    LayerPushRequest,
    LayerVerified,
    LayerVerifyRequest,
    StoredTag,
    StoreInfo,
)
from dsec.client.link import Link, decode_answer
from dsec.client.progressing import OnProgress, last_line
from dsec.client.tarball import Upload, file_pieces, tar_pieces
from dsec.errors import DSecError, InvalidArgument

if TYPE_CHECKING:
    from dsec.client.client import DSecClient

__all__ = ["Layers"]

T = TypeVar("T")
StoreInfos = list[StoreInfo]
StoredTags = list[StoredTag]


class _LayerList(msgspec.Struct, frozen=True):
    layers: list[LayerInfo]


class _StoredList(msgspec.Struct, frozen=True):
    layers: list[StoredTag]


class _StoreList(msgspec.Struct, frozen=True):
    stores: list[StoreInfo]


class Layers:
    """The node's layers, and the stores that it shares them through.

    A layer is named by its tag, ``workspace/NAME:VERSION``, ``toolkit/…`` or ``base/…``; by ``@sha256:DIGEST``; or by
    a tag that must mean that digest.
    """

    def __init__(self, client: DSecClient) -> None:
        self._client = client

    async def list(self) -> list[LayerInfo]:
        """Every layer that has a tag."""
        found = await self._client._link().ask_patiently("GET", "/v1/layers", _LayerList)
        return found.layers

    async def get(self, reference: str) -> LayerDetail:
        """One layer: its sizes, its tags, and what needs it. Raises NotFound."""
        return await self._client._link().ask_patiently("GET", _layer_path(reference), LayerDetail)

    async def remove(self, reference: str, *, store: str | None = None) -> None:
        """Remove a layer's tag here, or in a store; sandboxes that use it keep it until they end. Raises NotFound.

        In a store what nothing needs any more goes with the ``gc`` that comes a day later.
        """
        query = None if store is None else {"store": store}
        await self._client._link().ask_patiently("DELETE", _layer_path(reference), dict[str, Any], query=query)

    async def build(
        self, source: str | Path, reference: str, *, at: str = "/", owner: str = "0:0",
        env: Mapping[str, str] | None = None, path_prepend: Sequence[str] = (), path_append: Sequence[str] = (),
    ) -> LayerInfo:  # fmt: skip
        """Make a layer of this machine's directory or tar file (.tar.gz), laid over ``at``; modes kept, owner set.

        ``reference``: ``workspace/NAME:VERSION``, ``toolkit/…`` or ``base/…``. ``owner``: ``UID:GID`` of all files,
        or ``keep`` for each one's own, as a root file system needs it. ``env`` and the directories for PATH are what
        the tag brings to sandboxes, below what their callers give. Sent in constant memory.
        """
        if isinstance(path_prepend, str) or isinstance(path_append, str):
            raise InvalidArgument("path_prepend and path_append take lists of directories")
        brings = LayerEnvironment(env=dict(env or {}), path_prepend=[*path_prepend], path_append=[*path_append])
        query = {"reference": reference, "at": at, "owner": owner}
        if brings != LayerEnvironment():
            query["environment"] = msgspec.json.encode(brings).decode()
        upload = Upload(_pieces(Path(source), owners=owner == "keep"))
        link: Link = self._client._link()
        try:
            async with link.exchange("POST", "/v1/layers", query, upload, "application/x-tar") as answer:
                return decode_answer(await answer.read(), LayerInfo)
        except DSecError as error:
            if upload.failure is not None:
                raise upload.failure from error
            raise

    async def push(
        self, reference: str, *, store: str | None = None, move: bool = False, mend: bool = False,
        on_progress: OnProgress | None = None,
    ) -> LayerPushed:  # fmt: skip
        """Publish a layer in a store, the default one if None; only what the store has not yet is sent.

        Raises NotFound, Conflict (the tag means another layer there, and ``move`` was not said), StoreFull,
        StoreDenied, StoreUnreachable, ImageCorrupt. Asked again, it goes on where it was cut off.
        """
        asked = LayerPushRequest(reference=reference, store=store, move=move, mend=mend)
        return await self._long("/v1/layers/push", asked, on_progress, "pushed", LayerPushed)

    async def pull(
        self, reference: str, *, store: str | None = None, move: bool = False, on_progress: OnProgress | None = None
    ) -> LayerInfo:
        """Bring a layer whole from a store onto the node, every chunk checked against its digest.

        Raises NotFound, Conflict (the tag means another layer here, and ``move`` was not said), ImageCorrupt,
        StoreDenied, StoreUnreachable, CapacityError. Asked again, it goes on where it was cut off.
        """
        asked = LayerPullRequest(reference=reference, store=store, move=move)
        return await self._long("/v1/layers/pull", asked, on_progress, "layer", LayerInfo)

    async def verify(
        self, reference: str, *, store: str | None = None, deep: bool = False, on_progress: OnProgress | None = None
    ) -> LayerVerified:
        """Hold the node's copy of a layer (``store`` None) or a store's against its digest; ``faults`` says all.

        Of a store's, the data is read only with ``deep``; without, its objects need only be there and long enough.
        """
        asked = LayerVerifyRequest(reference=reference, store=store, deep=deep)
        return await self._long("/v1/layers/verify", asked, on_progress, "verified", LayerVerified)

    async def evict(self, reference: str) -> LayerEvicted:
        """Take a layer's files off the node now; it stays known, and is fetched again when it is needed.

        What a full node does by itself with those that were not used for longest. Raises NotFound, and Conflict for
        one that is in use, or that no store has.
        """
        body = LayerEvictRequest(reference=reference)
        return await self._client._link().ask_patiently("POST", "/v1/layers/evict", LayerEvicted, body=body)

    async def gc(self, *, store: str | None = None, dry_run: bool = False) -> LayerCollected:
        """Remove the layers that nothing needs: the node's own (``store`` None), or those of a store without a tag.

        In a store nothing goes at once: the first run marks what is not needed, one a day later removes it.
        """
        body = LayerCollectRequest(store=store, dry_run=dry_run)
        return await self._client._link().ask("POST", "/v1/layers/gc", LayerCollected, body=body)

    async def check(self, layers: Sequence[str], *, image: str | None = None) -> LayerChecked:
        """Which files of the ``layers`` (bottom first), laid over the image, hide one that another of them has.

        What a sandbox of them would show is the upper one's; directories merge. Raises NotFound, ImageNotFound.
        """
        if isinstance(layers, str):
            raise InvalidArgument("check takes a list of layers, not one string")
        body = LayerCheckRequest(image=image, layers=[*layers])
        return await self._client._link().ask("POST", "/v1/layers/check", LayerChecked, body=body)

    async def diff(self, old: str, new: str) -> LayerDifferences:
        """What differs between two layers of the node, times left out. Raises NotFound."""
        body = LayerDiffRequest(old=old, new=new)
        return await self._client._link().ask("POST", "/v1/layers/diff", LayerDifferences, body=body)

    async def stores(self) -> StoreInfos:
        """The stores of the node's configuration."""
        found = await self._client._link().ask_patiently("GET", "/v1/stores", _StoreList)
        return found.stores

    async def stored(self, store: str) -> StoredTags:
        """The tags of a store. Raises NotFound, StoreDenied, StoreUnreachable."""
        path = f"/v1/stores/{quote(store, safe='')}/layers"
        found = await self._client._link().ask("GET", path, _StoredList)
        return found.layers

    async def _long(
        self, path: str, asked: msgspec.Struct, on_progress: OnProgress | None, field: str, kind: type[T]
    ) -> T:
        body = msgspec.json.encode(asked)
        return await last_line(self._client._link(), path, None, body, "application/json", on_progress, field, kind)


def _pieces(source: Path, *, owners: bool) -> Iterator[bytes]:
    return file_pieces(source) if source.is_file() else tar_pieces(source, owners=owners)


def _layer_path(reference: str) -> str:
    if not reference.strip("/"):
        raise InvalidArgument("a layer's reference is empty")
    return "/v1/layers/" + quote(reference, safe="/:@")
