"""The node's layers and the stores of its configuration: push, pull, and what else is asked of a store."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import structlog

from dsec.api.layers import LayerPushed, StoredTag, StoreInfo
from dsec.edge.claims import Claims
from dsec.edge.turns import Turns
from dsec.edge.wire_layers import wire_environment
from dsec.errors import CapacityError, Conflict, DSecError, ImageCorrupt, InvalidArgument, NotFound, StoreError
from dsec.images import Images, LayerEnvironment, LayerTag
from dsec.images.references import LayerReference, parse_layer, parse_layer_choice
from dsec.images.store import LayerManifest
from dsec.images.threads import in_thread
from dsec.node.config import NodeConfig, default_store
from dsec.stores.bucket import BucketStore
from dsec.stores.check import check_stored
from dsec.stores.collect import Collected, collect
from dsec.stores.contract import Store
from dsec.stores.directory import DirectoryStore
from dsec.stores.fetch import fetch
from dsec.stores.layout import TagRecord
from dsec.stores.publish import Published, publish
from dsec.stores.settings import DirectoryAddress, parse_address
from dsec.stores.tags import drop_tag, list_tags, put_tag, read_tag, versions_of

__all__ = ["NodeStores", "OnStoreBytes"]

_log = structlog.get_logger()

T = TypeVar("T")
_Put = Callable[[Path, LayerManifest, bool], Awaitable[T]]
"""Puts a fetched layer in place; the last says that its data is still in the store."""

OnStoreBytes = Callable[[int, int], None]
"""Bytes of data that are done, and all; called on the event loop."""


async def _no_room(_: str) -> bool:
    return False


def _untold(_: int, __: int) -> None:
    return None


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
        self.turns = Turns()
        """Of whoever brings a layer, evicts it, or gives its claims back."""
        self.claims = Claims(config, images.copies, lambda name: self.open(name)[1])
        self.make_room: Callable[[str], Awaitable[bool]] = _no_room
        """Makes room for a layer on a disk that is full; whether there is more now."""

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
        record = TagRecord(
            digest=own.digest, at=self._clock(), by=self._config.node, environment=own.environment,
            provenance=self._images.layers.provenance(own.digest),
        )  # fmt: skip
        with self._images.holding([own.digest]):
            # Whoever may not have the tag learns it before gigabytes are sent.
            neighbours = await in_thread(lambda _: _prepared(store, tag, record, move=move))
            done = await self.published(store, own.digest, neighbours, progress, mend=mend)
            await in_thread(lambda _: put_tag(store, tag, record, move=move))
        self._images.copies.note(own.digest, name)
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
        from_store, store = self.open(store_name)
        digest, environment, provenance = choice.digest or "", LayerEnvironment(), None
        if choice.reference is not None:
            tag = choice.reference
            record = await in_thread(lambda _: read_tag(store, tag))
            if choice.digest not in (None, record.digest):
                raise Conflict(
                    f"{tag} is @sha256:{record.digest} in {store.title}",
                    remedy=f"Pull @sha256:{choice.digest} without the tag",
                    digest=record.digest,
                )
            digest, environment, provenance = record.digest, record.environment, record.provenance
        name = str(choice.reference or choice)
        self._check_own(name, digest, move=move)
        layers = self._images.layers

        async def adopt(target: Path, manifest: LayerManifest, sparse: bool) -> LayerTag:
            put = layers.adopt_sparse if sparse else layers.adopt
            adopted = await put(target, manifest, name, environment)
            layers.note_provenance(digest, provenance)
            return adopted

        async with self.turns.of(digest):
            with self._images.holding([digest]):
                if layers.has(digest):
                    self._images.copies.note(digest, from_store)
                    return layers.retag(name, digest, environment)
                return await self._with_room(digest, lambda: self._received(from_store, digest, progress, adopt))

    def _check_own(self, name: str, digest: str, *, move: bool) -> None:
        own = self._images.layers.meaning(name)
        if own is not None and own.digest != digest and not move:
            raise Conflict(
                f"{name} means another layer on this node: @sha256:{own.digest}",
                remedy="Say that the tag is to move (--move), or remove it here first",
                digest=own.digest,
            )

    async def _with_room(self, digest: str, bring: Callable[[], Awaitable[T]]) -> T:
        """Bring a layer; on a full disk, once more after others have made room."""
        try:
            return await bring()
        except CapacityError:
            if not await self.make_room(digest):
                raise
            return await bring()

    async def _received(self, name: str, digest: str, progress: OnStoreBytes, put: _Put[T]) -> T:
        """Fetch a layer from a store, as this node reads them, and put it in place."""
        _, store = self.open(name)
        layers = self._images.layers
        with layers.receiving(digest) as target:
            sparse = self._config.reading == "filled"
            if sparse:
                # Its data is fetched as it is read, and the store keeps it for this node meanwhile.
                manifest = await self.claims.fetched(name, store, digest, target)
            else:
                told = _on_loop(progress)
                manifest = await in_thread(lambda stop: fetch(store, digest, target, stop=stop, progress=told))
            done = await put(target, manifest, sparse)
        self._images.copies.note(digest, name)
        return done

    async def bring(self, digest: str, store_name: str, progress: OnStoreBytes) -> None:
        """Bring a layer that the caller holds from a store, if it is not here, without a name.

        Raises NotFound, ImageCorrupt, StoreDenied, StoreUnreachable, CapacityError. What was brought is this node's,
        and goes with the next clean-up unless something needs it by then.
        """
        async with self.turns.of(digest):
            if self._images.layers.has(digest):
                self._images.copies.note(digest, store_name)
            else:
                await self._with_room(digest, lambda: self._received(store_name, digest, progress, self._put_back))

    async def bring_back(self, digest: str) -> None:
        """Fetch an evicted layer again, from whichever store has it.

        Raises NotFound when none has it any more, ImageCorrupt, StoreDenied, StoreUnreachable, CapacityError.
        """
        async with self.turns.of(digest):
            with self._images.holding([digest]):
                if not self._images.layers.missing([digest]):
                    return
                await self._with_room(digest, lambda: self._from_any(digest, self._put_back))

    async def _put_back(self, target: Path, manifest: LayerManifest, sparse: bool) -> None:
        await self._images.layers.put_back(target, manifest, sparse=sparse)

    async def _from_any(self, digest: str, put: _Put[None]) -> None:
        failure: DSecError = NotFound(
            f"layer {digest} was evicted from this node, and none of its stores has it",
            phase="image",
            remedy="Build it or import its image again, or push it from a node that has it",
            digest=digest,
        )
        # Those that had it first; another may have been given it since.
        for name in dict.fromkeys([*self._images.copies.stores(digest), *sorted(self._config.stores)]):
            try:
                return await self._received(name, digest, _untold, put)
            except (NotFound, StoreError, ImageCorrupt, InvalidArgument) as error:
                _log.warning("not fetched again", store=name, digest=digest, error=error.message)
                if not isinstance(error, NotFound):
                    failure = error
        raise failure

    async def let_go(self, digests: Sequence[str]) -> None:
        """These layers have left the node: no store need keep them for it. One that is away is told later.

        A layer that is the node's, or is being pulled again, keeps its claims. Nobody's turn is waited for: that pull
        may be waiting for the caller to make room. What it leaves without need is given back by ``settle``.
        """
        away: set[str] = set()
        for digest in digests:
            if self.turns.taken(digest):
                continue
            async with self.turns.of(digest):
                if not self._images.layers.knows(digest) and not self._images.layers.is_held(digest):
                    await self.claims.given_back(digest, away)

    async def settle(self) -> None:
        """Give back what pulls that broke off, and nodes that died between removing and giving back, have claimed."""
        await self.let_go(self.claims.stale())

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
