"""What stores keep for this node: claims, each written down before it is made and until it is given back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from threading import Event

import structlog

from dsec.edge.claimant import claimant_of
from dsec.edge.faults import fault
from dsec.errors import NotFound, StoreDenied, StoreError
from dsec.images.copies import Copies
from dsec.images.store import LayerManifest
from dsec.images.threads import in_thread
from dsec.node.config import NodeConfig
from dsec.stores.collect import claim, release
from dsec.stores.contract import Store
from dsec.stores.fetch import fetch_claimed
from dsec.stores.layout import index_name, manifest_name

__all__ = ["Claims"]

_log = structlog.get_logger("dsec.edge.claims")


class Claims:
    """This node's claims. ``opened`` gives the store of a name, which is then asked in threads."""

    def __init__(self, config: NodeConfig, copies: Copies, opened: Callable[[str], Store]) -> None:
        self._config = config
        self._copies = copies
        self._opened = opened

    async def fetched(self, name: str, store: Store, digest: str, target: Path) -> LayerManifest:
        """Fetch a layer without its data, and keep it in the store; see ``fetch_claimed`` for the errors."""
        await in_thread(lambda _: self._copies.intend_claim(digest, name))
        fault("edge.pull.intended")
        try:
            manifest = await in_thread(lambda _: fetch_claimed(store, digest, target, claimant_of(self._config)))
        except NotFound:
            self._copies.unclaimed(digest, name)
            self._copies.lost(digest, name)
            raise
        fault("edge.pull.claimed")
        return manifest

    async def kept_by(self, digest: str, away: set[str]) -> str | None:
        """A store that has the layer, whole, and keeps it for this node from now on; None when none does.

        Those in ``away`` are not asked; one that does not answer joins them.
        """
        for name in self._copies.stores(digest):
            if name in away:
                continue
            try:
                if await self._claimed(name, digest):
                    return name
            except (StoreError, NotFound) as error:  # away, or no longer in the settings
                if not isinstance(error, StoreDenied):  # which may be of this layer alone, and costs no wait
                    away.add(name)
                _log.info("a store cannot keep a layer", store=name, digest=digest, error=error.message)
        return None

    async def _claimed(self, name: str, digest: str) -> bool:
        store = self._opened(name)
        await in_thread(lambda _: self._copies.intend_claim(digest, name))
        if await in_thread(lambda _: _claim(store, digest, claimant_of(self._config))):
            return True
        self._copies.unclaimed(digest, name)
        self._copies.lost(digest, name)
        return False

    async def given_back(self, digest: str, away: set[str]) -> None:
        """No store need keep the layer for this node; one that does not answer joins ``away``, and is asked later."""
        for name in self._copies.claims(digest):
            if name in away:
                continue
            try:
                await in_thread(partial(_release, self._opened(name), digest, claimant_of(self._config)))
            except (StoreError, NotFound) as error:
                away.add(name)
                _log.warning("a store keeps layers for this node", store=name, digest=digest, error=error.message)
            else:
                self._copies.unclaimed(digest, name)
                self._copies.lost(digest, name)

    def stale(self) -> Sequence[str]:
        """Layers that are claimed and no longer the node's: of pulls that broke off, and of stores that were away."""
        return self._copies.stale()


def _claim(store: Store, digest: str, claimant: str) -> bool:
    """Whether the layer is there, after it was claimed: a clean-up may have been removing it until then."""
    claim(store, digest, claimant)
    if all(store.stat(name) is not None for name in (manifest_name(digest), index_name(digest))):
        return True
    release(store, digest, claimant)
    return False


def _release(store: Store, digest: str, claimant: str, _stop: Event) -> None:
    release(store, digest, claimant)
