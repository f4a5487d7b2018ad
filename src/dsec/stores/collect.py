"""Clearing away what no tag and no image leads to, while others publish and read.

Nothing is removed that was not *doomed* a whole grace period before: the first clean-up leaves a mark, and one that
comes later than that removes what is still not needed. A publisher never relies on what is doomed, so what one is
about to name can at the earliest be doomed after it looked, and is named long before it could be removed. The time
that has passed is told by the store's clock, from one object to another.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dsec.errors import ImageCorrupt, NotFound
from dsec.stores.contract import Entry, Store
from dsec.stores.index import decode_index
from dsec.stores.layout import BLOBS, CLAIMS, DOOMED, LAYERS, index_name, manifest_name, metadata_name
from dsec.stores.stored_images import list_images
from dsec.stores.tags import list_tags

__all__ = ["GRACE_S", "Collected", "claim", "collect", "release"]

GRACE_S = 86_400.0
_CLOCK = f"{DOOMED}/clock"


class Collected(msgspec.Struct, kw_only=True):
    """What a clean-up did, or would do."""

    removed_layers: list[str] = []
    removed_blobs: list[str] = []
    removed_bytes: int = 0
    doomed_layers: list[str] = []
    """Without a tag: removed by a clean-up that comes a grace period later."""
    doomed_blobs: list[str] = []
    doomed_bytes: int = 0
    swept: int = 0
    """Files that dead publishers left without a name."""
    damaged_layers: list[str] = []
    """Layers with a tag whose index cannot be read: while there are any, no blob is removed."""


def claim(store: Store, digest: str, claimant: str) -> None:
    """Keep a layer in the store, tag or no tag, while this node reads it on demand.

    ``claimant`` is a name that no other node has. A clean-up that is under way stops at the layer, unless it has
    begun to remove it: whoever claims looks afterwards whether it is there.
    """
    store.delete(f"{DOOMED}/{LAYERS}/{digest}")
    store.put(f"{CLAIMS}/{digest}/{claimant}", b"")


def release(store: Store, digest: str, claimant: str) -> None:
    """The node has the layer whole, or no longer needs it."""
    store.delete(f"{CLAIMS}/{digest}/{claimant}")


def collect(store: Store, *, grace_s: float = GRACE_S, dry_run: bool = False) -> Collected:
    """Remove what was doomed long enough ago and is not needed, doom what is not needed now; blocks.

    Can be cut off at any point and repeated, by several at once. Raises ImageCorrupt when the record of a tag or an
    image cannot be read.
    """
    return _Collection(store, grace_s, dry_run).run()


class _Collection:
    def __init__(self, store: Store, grace_s: float, dry_run: bool) -> None:
        self._store = store
        self._grace_s = grace_s
        self._dry_run = dry_run
        self._done = Collected()

    def run(self) -> Collected:
        store = self._store
        if not self._dry_run:
            self._done.swept = store.sweep(self._grace_s)
        # In this order: what is needed is looked up after what there is, so nothing new is ever taken for old.
        blobs = {_last(entry): entry for entry in store.list(BLOBS)}
        marks = {entry.name.removeprefix(f"{DOOMED}/"): entry for entry in store.list(DOOMED)}
        self._now = self._clock(marks)
        folders = _folders(store.list(LAYERS))
        live = {record.digest for record in list_tags(store).values()}
        live |= {digest for record in list_images(store) for digest in record.layers}
        live |= {entry.name.split("/")[1] for entry in store.list(CLAIMS)}
        needed: set[str] = set()
        for digest, entries in folders.items():
            if digest in live:
                self._keep(f"{LAYERS}/{digest}", marks)
                needed |= self._blobs_of(digest)
            elif self._is_due(f"{LAYERS}/{digest}", marks):
                if not self._remove_layer(digest, entries):
                    needed |= self._blobs_of(digest)
            else:
                self._doom_layer(digest, entries, marks)
                needed |= self._blobs_of(digest, is_live=False)
        for name, entry in blobs.items():
            self._blob(name, entry, marks, needed)
        self._forget_marks(marks, folders, blobs)
        return self._done

    def _clock(self, marks: dict[str, Entry]) -> float:
        """Now, as the store has it. A dry run takes the newest time that it sees: it removes nothing anyway."""
        if not self._dry_run:
            self._store.put(_CLOCK, b"")
        entry = self._store.stat(_CLOCK)
        marks.pop("clock", None)
        return entry.modified if entry is not None else 0.0

    def _is_due(self, name: str, marks: dict[str, Entry]) -> bool:
        mark = marks.get(name)
        return mark is not None and self._now - mark.modified >= self._grace_s

    def _is_due_yet(self, name: str) -> bool:
        """Asked of the store right before each removal: the list of marks is as old as this clean-up."""
        mark = self._store.stat(f"{DOOMED}/{name}")
        return mark is not None and self._now - mark.modified >= self._grace_s

    def _keep(self, name: str, marks: dict[str, Entry]) -> None:
        if name in marks and not self._dry_run:
            self._store.delete(f"{DOOMED}/{name}")

    def _doom(self, name: str, marks: dict[str, Entry]) -> None:
        mark = marks.get(name)
        if self._dry_run:
            return
        if mark is None:
            self._store.swap(f"{DOOMED}/{name}", b"", None)
        elif mark.modified > self._now:
            # Of before the store's clock jumped back: its day would end with that time come again.
            self._store.put(f"{DOOMED}/{name}", b"")

    def _blobs_of(self, digest: str, *, is_live: bool = True) -> set[str]:
        try:
            return set(decode_index(self._store.read(index_name(digest))).blobs)
        except (NotFound, ImageCorrupt):
            if is_live and self._store.stat(manifest_name(digest)) is not None:
                self._done.damaged_layers.append(digest)
            return set()

    def _doom_layer(self, digest: str, entries: Iterable[Entry], marks: dict[str, Entry]) -> None:
        self._doom(f"{LAYERS}/{digest}", marks)
        self._done.doomed_layers.append(digest)
        self._done.doomed_bytes += sum(entry.size for entry in entries)

    def _remove_layer(self, digest: str, entries: Iterable[Entry]) -> bool:
        """Its manifest first: from then on it is not whole, and nobody begins to read it. False: it stays."""
        if not self._dry_run:
            for name in (manifest_name(digest), index_name(digest), metadata_name(digest)):
                if not self._is_due_yet(f"{LAYERS}/{digest}"):
                    return False  # Somebody has begun to publish it again, or claimed it.
                self._store.delete(name)
            self._store.delete(f"{DOOMED}/{LAYERS}/{digest}")
        self._done.removed_layers.append(digest)
        self._done.removed_bytes += sum(entry.size for entry in entries)
        return True

    def _blob(self, name: str, entry: Entry, marks: dict[str, Entry], needed: set[str]) -> None:
        own = f"{BLOBS}/{name}"
        if name in needed:
            self._keep(own, marks)
        elif self._done.damaged_layers:
            return
        elif self._is_due(own, marks):
            if not self._dry_run:
                if not self._is_due_yet(own):
                    return  # Another clean-up was first: by now it may have been published anew.
                self._store.delete(own)
                self._store.delete(f"{DOOMED}/{own}")
            self._done.removed_blobs.append(name)
            self._done.removed_bytes += entry.size
        else:
            self._doom(own, marks)
            self._done.doomed_blobs.append(name)
            self._done.doomed_bytes += entry.size

    def _forget_marks(self, marks: dict[str, Entry], folders: Iterable[str], blobs: Iterable[str]) -> None:
        """Marks of what is gone: left by a clean-up that died between the two."""
        there = {f"{LAYERS}/{digest}" for digest in folders} | {f"{BLOBS}/{name}" for name in blobs}
        for name in marks.keys() - there:
            if not self._dry_run and self._is_due(name, marks):
                self._store.delete(f"{DOOMED}/{name}")


def _folders(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        parts = entry.name.split("/")
        if len(parts) == 3:
            found.setdefault(parts[1], []).append(entry)
    return found


def _last(entry: Entry) -> str:
    return entry.name.rpartition("/")[2]
