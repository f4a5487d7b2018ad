"""The layers on the node's disk as a cache of its stores: brought back when they are needed, evicted when it fills.

A layer is evicted whole, when no record, kept disk or work in progress needs it and a store has it and keeps it for
this node. Its tags and images stay: it is known, and not here. The order of the acts: claim in the store, unmount,
take out of sight (one rename, from which on the layer is not here), delete. A death between any two leaves at most a
claim for a layer that is here, or a directory that the next start deletes. Whoever has the files open reads on.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import structlog

from dsec.edge.core import Core
from dsec.edge.eviction import Cached, Marks, in_order, marks_of
from dsec.edge.faults import fault
from dsec.edge.node_stores import NodeStores
from dsec.errors import Conflict, DSecError
from dsec.images.threads import in_thread

__all__ = ["LayerCache"]

_SCAN_S = 15.0
_NOTE_S = 30.0
_SETTLE_S = 60.0
_MANY_SETTLED = 64
_log = structlog.get_logger("dsec.edge.layer_cache")


class LayerCache:
    """Used on one event loop; ``keep`` is called every few seconds."""

    def __init__(self, core: Core, stores: NodeStores) -> None:
        self._core = core
        self._images = core.images
        self._stores = stores
        self._dir = core.config.paths.layers
        self._evicting = asyncio.Lock()
        self._used = self._images.copies.uses()
        self._scanned = self._noted = self._settled = float("-inf")
        self._is_stuck = False
        self.cached_bytes = 0
        """Of all layers of this node's own directory, when it was last looked."""
        stores.make_room = self.make_room

    # Bringing back

    async def ensure(self, digests: Iterable[str]) -> None:
        """Return when all of these layers, which the caller holds, are here.

        Raises NotFound (no store has it any more), ImageCorrupt, StoreDenied, StoreUnreachable, CapacityError.
        """
        missing = self._images.layers.missing(digests)
        if missing:
            self._core.counters["layers", "brought back"] += len(missing)
            await asyncio.gather(*(self._stores.bring_back(each) for each in missing))

    def last_use(self, digest: str) -> float:
        """When a sandbox had it last, or took it up; now for one that is in use. 0: never, as far as is known."""
        if self._core.uses_layer(digest):
            return self._core.clock()
        return max(self._core.layers_used.get(digest, 0.0), self._used.get(digest, 0.0))

    # Keeping below the marks

    async def keep(self) -> None:
        """Look whether layers take too much, write down what was used, give back stale claims; each now and then."""
        now = asyncio.get_running_loop().time()
        if now - self._scanned >= _SCAN_S or (self.cached_bytes > self.marks().high and not self._is_stuck):
            self._scanned = now
            gone = await self.shrink()
            # What could not go a moment ago cannot now: looking at all layers, and asking stores, costs something.
            self._is_stuck = not gone and self.cached_bytes > self.marks().high
        if now - self._noted >= _NOTE_S:
            self._noted = now
            await self.note_uses()
        if now - self._settled >= _SETTLE_S:
            self._settled = now
            await self._stores.settle()

    def marks(self) -> Marks:
        """How much layers may take, as the disk is now."""
        return self._marks(_free(self._dir))

    def _marks(self, free_bytes: int) -> Marks:
        return marks_of(
            cache_mib=self._core.config.layer_cache_mib, cached_bytes=self.cached_bytes, free_bytes=free_bytes
        )

    async def note_uses(self) -> None:
        """Write down the uses since the last time: none costs a create anything."""
        used, self._core.layers_used = self._core.layers_used, {}
        # A clock that jumped back makes no layer older than it was.
        self._used |= {each: max(at, self._used.get(each, 0.0)) for each, at in used.items()}
        if used:
            await in_thread(lambda _: self._images.copies.note_uses(used))

    async def shrink(self) -> list[str]:
        """Evict until the layers are below the low mark, if they are above the high one; returns what went."""
        async with self._evicting:
            sizes = await self._measured()
            marks = self.marks()
            if self.cached_bytes <= marks.high:
                return []
            return await self._evict_to(marks.low, sizes, spare=None)

    async def make_room(self, digest: str) -> bool:
        """The disk is full while this layer is brought: evict others down to the low mark. Whether any went."""
        async with self._evicting:
            sizes = await self._measured()
            return bool(await self._evict_to(self._marks(0).low, sizes, spare=digest))

    async def _measured(self) -> dict[str, int]:
        sizes = await in_thread(lambda _: self._images.layers.own_bytes())
        self.cached_bytes = sum(sizes.values())
        return sizes

    async def _evict_to(self, low: int, sizes: dict[str, int], spare: str | None) -> list[str]:
        # What nothing needs goes first, and needs no store.
        gone = [each for each in await self._images.prune() if each in sizes]
        await self._unmount(gone)
        await self._stores.let_go(gone)
        copies = await in_thread(lambda _: self._images.copies.all())
        cached = [
            Cached(digest=each, bytes=size, used_at=self.last_use(each))
            for each, size in sizes.items()
            if each in copies and each not in gone and each != spare and not self._is_needed(each)
        ]
        self.cached_bytes -= sum(sizes[each] for each in gone)
        # What counts is what went: layers of a store that is away stay, and those of another go in their place.
        away: set[str] = set()
        for each in in_order(cached):
            if self.cached_bytes <= low:
                break
            try:
                if await self._evicted(each, away):
                    gone.append(each)
                    self.cached_bytes -= sizes[each]
            except DSecError as error:
                _log.warning("a layer could not be evicted", digest=each, error=error.message)
        if self.cached_bytes > low:
            _log.info("layers take more than they may", bytes=self.cached_bytes, low=low)
        return gone

    async def evict(self, digest: str) -> bool:
        """Evict one layer now; whether it was here. Raises Conflict (it is in use, or no store has it)."""
        async with self._evicting:
            if not self._images.layers.has(digest):
                return False
            if self._is_needed(digest):
                raise Conflict(f"layer {digest} is in use", digest=digest)
            if not await self._evicted(digest, set()):
                raise Conflict(
                    f"layer {digest} stays: it is in use, or no store is known to have it",
                    remedy="Push it first: dsec layer push REF",
                    digest=digest,
                )
            return True

    def _is_needed(self, digest: str) -> bool:
        return self._core.uses_layer(digest) or self._images.layers.is_held(digest)

    async def _evicted(self, digest: str, away: set[str]) -> bool:
        """Whether the layer went; a store that does not answer joins ``away``, and is not asked again."""
        if self._stores.turns.taken(digest):
            return False
        async with self._stores.turns.of(digest):
            if self._is_needed(digest) or await self._stores.claims.kept_by(digest, away) is None:
                return False
            fault("edge.evict.claimed")
            await self._core.backend.call("layer.evict", {"digests": [digest]})
            fault("edge.evict.unmounted")
            # No await from here to the rename: whoever begins to need it finds it here, or not here, never half.
            if self._is_needed(digest):
                return False
            grave = self._images.layers.evict(digest)
            fault("edge.evict.buried")
        if grave is not None:
            self._core.counters["layers", "evicted"] += 1
            await in_thread(lambda _: shutil.rmtree(grave, ignore_errors=True))
        return grave is not None

    async def _unmount(self, digests: list[str]) -> None:
        unused = [each for each in digests if not self._core.uses_layer(each)]
        if unused:
            await self._core.backend.call("layer.evict", {"digests": unused})


def _free(directory: Path) -> int:
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize
