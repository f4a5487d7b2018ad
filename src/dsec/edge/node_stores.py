"""The node's layers and the stores of its configuration: push, pull, and what else is asked of a store."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import Event

import structlog

from dsec.api.types import LayerPushed, StoredTag, StoreInfo
from dsec.edge.claimant import claimant_of
from dsec.edge.wire_layers import wire_environment
from dsec.errors import Conflict, ImageCorrupt, InvalidArgument, NotFound, StoreError
from dsec.images import Images, LayerEnvironment, LayerTag
from dsec.images.references import LayerReference, parse_layer, parse_layer_choice
from dsec.images.threads import in_thread
from dsec.node.config import NodeConfig, default_store
from dsec.stores.bucket import BucketStore
from dsec.stores.check import check_stored
from dsec.stores.collect import Collected, collect, release
from dsec.stores.contract import Store
from dsec.stores.directory import DirectoryStore
from dsec.stores.fetch import fetch, fetch_claimed
from dsec.stores.layout import TagRecord
from dsec.stores.publish import Published, publish
from dsec.stores.settings import DirectoryAddress, parse_address
from dsec.stores.tags import drop_tag, list_tags, put_tag, read_tag, versions_of

__all__ = ["NodeStores", "OnStoreBytes"]

_log = structlog.get_logger()

OnStoreBytes = Callable[[int, int], None]
"""Bytes of data that are done, and all; called on the event loop."""


class NodeStores:
    """Push, pull, verify, collect. Used on one event loop; the work itself is done in threads."""

    def __init__(
        self,
        config: NodeConfig,
        images: Images,
        *,
        clock: Callable[[], float],
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._config = config
        self._images = images
        self._clock = clock
        self._environment = environment
        self._pulling: dict[str, asyncio.Lock] = {}

    def infos(self) -> list[StoreInfo]:
        """The stores of the configuration, by name."""
        default = default_store(self._config.stores)
        return [
            StoreInfo(name=name, url=each.url, default=name == default)
            for name, each in sorted(self._config.stores.items())
        ]

    def open(self, name: str | None) -> tuple[str, Store]:
        """A store by name, or the default; raises InvalidArgument, NotFound. Nothing is asked of it yet."""
        chosen = name or default_store(self._config.stores)
        if chosen is None:
            raise InvalidArgument(
                "this node has no store, or several and no default", argument="store", remedy=_SETTINGS
            )
        own = self._config.stores.get(chosen)
        if own is None:
            known = ", ".join(sorted(self._config.stores)) or "none"
            raise NotFound(f"this node has no store {chosen[:80]!r}, but {known}", remedy=_SETTINGS)
        # Anew each time: credentials in files are renewed by others.
        address = parse_address(own.url, endpoint=own.endpoint, region=own.region, environment=self._environment)
        if isinstance(address, DirectoryAddress):
            return chosen, DirectoryStore(address.path)
        return chosen, BucketStore(address)

    async def push(
        self, reference: str, store_name: str | None, progress: OnStoreBytes, *, move: bool, mend: bool
    ) -> LayerPushed:
        """Publish a layer of this node under its tag; what the store has already is not sent.

        Raises NotFound, Conflict (the tag means another layer there; not all of the layer is here), StoreFull,
        StoreDenied, StoreUnreachable, ImageCorrupt.
        """
        tag, own = _tag_of(reference), self._images.layers.find(reference)
        self._images.layers.check_whole(own.digest)
        name, store = self.open(store_name)
        record = TagRecord(digest=own.digest, at=self._clock(), by=self._config.node, environment=own.environment)
        with self._images.holding([own.digest]):
            # Whoever may not have the tag learns it before gigabytes are sent.
            neighbours = await in_thread(lambda _: _prepared(store, tag, record, move=move))
            done = await self.published(store, own.digest, neighbours, progress, mend=mend)
            await in_thread(lambda _: put_tag(store, tag, record, move=move))
        return LayerPushed(
            reference=str(tag), digest=done.digest, store=name, size_bytes=done.size, stored_bytes=done.stored,
            sent_bytes=done.sent,
        )  # fmt: skip

    async def published(
        self, store: Store, digest: str, neighbours: list[str], progress: OnStoreBytes, *, mend: bool
    ) -> Published:
        """Publish a layer of this node without a tag, which the caller holds; errors as for ``push``."""
        self._images.layers.check_whole(digest)
        directory, manifest = self._images.layers.path(digest), self._images.layers.manifest(digest)
        told = _on_loop(progress)
        return await in_thread(
            lambda stop: publish(
                store, directory, manifest, stop=stop, progress=told, neighbours=neighbours, mend=mend
            )
        )

    async def pull(self, reference: str, store_name: str | None, progress: OnStoreBytes, *, move: bool) -> LayerTag:
        """Bring a layer onto this node, every chunk checked, and let the tag mean it here.

        Whole, or where the node reads layers on demand without its data.

        One that was cut off goes on where it was. Raises NotFound, Conflict (the tag means another layer here),
        ImageCorrupt, StoreDenied, StoreUnreachable, CapacityError.
        """
        choice = parse_layer_choice(reference)
        _, store = self.open(store_name)
        digest, environment = choice.digest or "", LayerEnvironment()
        if choice.reference is not None:
            tag = choice.reference
            record = await in_thread(lambda _: read_tag(store, tag))
            if choice.digest not in (None, record.digest):
                raise Conflict(
                    f"{tag} is @sha256:{record.digest} in {store.title}",
                    remedy=f"Pull @sha256:{choice.digest} without the tag",
                    digest=record.digest,
                )
            digest, environment = record.digest, record.environment
        name = str(choice.reference or choice)
        self._check_own(name, digest, move=move)
        async with self._pulling.setdefault(digest, asyncio.Lock()):
            return await self._received(store, digest, name, environment, progress)

    def _check_own(self, name: str, digest: str, *, move: bool) -> None:
        own = self._images.layers.meaning(name)
        if own is not None and own.digest != digest and not move:
            raise Conflict(
                f"{name} means another layer on this node: @sha256:{own.digest}",
                remedy="Say that the tag is to move (--move), or remove it here first",
                digest=own.digest,
            )

    async def _received(
        self, store: Store, digest: str, name: str, environment: LayerEnvironment, progress: OnStoreBytes
    ) -> LayerTag:
        layers = self._images.layers
        with self._images.holding([digest]):
            if layers.has(digest):
                return layers.retag(name, digest, environment)
            told = _on_loop(progress)
            if self._config.on_demand:
                return await self._received_sparse(store, digest, name, environment)
            with layers.receiving(digest) as target:
                manifest = await in_thread(lambda stop: fetch(store, digest, target, stop=stop, progress=told))
                return await layers.adopt(target, manifest, name, environment)

    async def _received_sparse(self, store: Store, digest: str, name: str, environment: LayerEnvironment) -> LayerTag:
        """Without its data, which is fetched as it is read; a claim keeps it in the store for this node."""
        layers = self._images.layers
        claimant = claimant_of(self._config)
        with layers.receiving(digest) as target:
            manifest = await in_thread(lambda _: fetch_claimed(store, digest, target, claimant))
            return await layers.adopt_sparse(target, manifest, name, environment)

    async def let_go(self, digests: Sequence[str]) -> None:
        """These layers have left the node: no store need keep them for it. One that is away keeps them.

        A layer that is here, or is being pulled again, keeps its claims.
        """
        if not self._config.on_demand:
            return
        away: set[str] = set()
        for digest in digests:
            async with self._pulling.setdefault(digest, asyncio.Lock()):
                if not self._images.layers.has(digest):
                    await self._released(digest, away)

    async def _released(self, digest: str, away: set[str]) -> None:
        claimant = claimant_of(self._config)
        for name in self._config.stores.keys() - away:
            try:
                _, store = self.open(name)
                await in_thread(partial(_release, store, digest, claimant))
            except StoreError as error:
                away.add(name)
                _log.warning("a store keeps layers for this node", store=name, digest=digest, error=error.message)

    async def verify(
        self, reference: str, store_name: str | None, progress: OnStoreBytes, *, deep: bool
    ) -> tuple[str, list[str]]:
        """Digest of a layer, and what is wrong with it in a store, in words; raises NotFound."""
        choice = parse_layer_choice(reference)
        _, store = self.open(store_name)
        digest = choice.digest
        if choice.reference is not None:
            tag = choice.reference
            digest = (await in_thread(lambda _: read_tag(store, tag))).digest
        told, own = _on_loop(progress), digest or ""
        scratch = self._config.paths.data / "scratch"
        return own, await in_thread(
            lambda stop: check_stored(store, own, scratch, deep=deep, stop=stop, progress=told)
        )

    async def collect(self, store_name: str, *, dry_run: bool) -> Collected:
        """Clean up a store; see ``dsec.stores.collect``."""
        _, store = self.open(store_name)
        return await in_thread(lambda _: collect(store, dry_run=dry_run))

    async def tags(self, store_name: str) -> list[StoredTag]:
        """The tags of a store, by name, without those that cannot be read: a clean-up names them."""
        _, store = self.open(store_name)
        found = await in_thread(lambda _: list_tags(store, _passed_over))
        return [
            StoredTag(
                reference=str(tag), digest=each.digest, at=each.at, by=each.by,
                environment=wire_environment(each.environment),
            )
            for tag, each in sorted(found.items(), key=lambda item: str(item[0]))
        ]  # fmt: skip

    async def drop(self, reference: str, store_name: str) -> None:
        """Remove a tag from a store; raises NotFound."""
        tag = parse_layer(reference)
        _, store = self.open(store_name)
        await in_thread(lambda _: drop_tag(store, tag))


_SETTINGS = 'Name it with --store, or set it up: [stores.NAME] url = "file:///DIRECTORY" or "s3://BUCKET/PREFIX"'


def _passed_over(error: ImageCorrupt) -> None:
    _log.warning("a tag of a store cannot be read", error=error.message)


def _release(store: Store, digest: str, claimant: str, _stop: Event) -> None:
    release(store, digest, claimant)


def _tag_of(reference: str) -> LayerReference:
    choice = parse_layer_choice(reference)
    if choice.reference is None:
        raise InvalidArgument(
            "a layer is published under a tag", argument="reference", remedy="Push KIND/NAME:VERSION"
        )
    return choice.reference


def _prepared(store: Store, tag: LayerReference, record: TagRecord, *, move: bool) -> list[str]:
    try:
        there = read_tag(store, tag)
    except NotFound:
        there = None
    except ImageCorrupt:
        if not move:
            raise
        there = None
    if there is not None and there.digest != record.digest and not move:
        put_tag(store, tag, record, move=False)
    return versions_of(store, tag)


def _on_loop(progress: OnStoreBytes) -> OnStoreBytes:
    loop = asyncio.get_running_loop()

    def tell(done: int, total: int) -> None:
        loop.call_soon_threadsafe(progress, done, total)

    return tell
