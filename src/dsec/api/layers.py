"""Layers and the stores that they come from: requests and answers of ``/v1``."""

from __future__ import annotations

import msgspec

from dsec.api.packing import Provenance

__all__ = [
    "ChangedFile",
    "HiddenFile",
    "LayerCheckRequest",
    "LayerChecked",
    "LayerClash",
    "LayerCollectRequest",
    "LayerCollected",
    "LayerDetail",
    "LayerDiffRequest",
    "LayerDifferences",
    "LayerEnvironment",
    "LayerEvictRequest",
    "LayerEvicted",
    "LayerInfo",
    "LayerPullRequest",
    "LayerPushRequest",
    "LayerPushed",
    "LayerVerified",
    "LayerVerifyRequest",
    "StoreInfo",
    "StoredTag",
]


class LayerEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """What a layer's tag brings to the environment of the sandboxes that it is in, below what the caller gives."""

    env: dict[str, str] = {}
    path_prepend: list[str] = []
    """Directories before those of PATH, in this order."""
    path_append: list[str] = []


class LayerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A layer: its digest, its tag, its bytes."""

    digest: str
    size_bytes: int
    reference: str | None = None
    created_at: float = 0.0
    environment: LayerEnvironment = LayerEnvironment()
    local_bytes: int = 0
    """What it takes on this node: 0 for one that was evicted, and is fetched again when it is needed."""
    used_at: float = 0.0
    """When a sandbox had it last; 0 for never."""
    stores: list[str] = []
    """The node's stores that are known to have it."""


class LayerDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A layer of this node and who needs it."""

    digest: str
    size_bytes: int
    metadata_bytes: int
    data_bytes: int
    local_bytes: int
    """What of its data is on this node: all of it, but for a layer that is read on demand, or was evicted."""
    here: bool = True
    """False: it was evicted, and is fetched again when it is needed."""
    used_at: float = 0.0
    """When a sandbox had it last; 0 for never."""
    stores: list[str] = []
    """The node's stores that are known to have it."""
    references: list[str] = []
    images: list[str] = []
    sandboxes: list[str] = []
    environment: LayerEnvironment = LayerEnvironment()
    """Of the tag that was asked for."""
    provenance: Provenance | None = None
    """Where it comes from, if it was packed from a sandbox."""


class LayerPushRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``store`` None: the node's default. ``move``: also when the tag means another layer there."""

    reference: str
    store: str | None = None
    move: bool = False
    mend: bool = False
    """Write anew what the store holds of the layer: for one that was found damaged there."""


class LayerPushed(msgspec.Struct, frozen=True, kw_only=True):
    """What a push did."""

    reference: str
    digest: str
    store: str
    size_bytes: int
    stored_bytes: int
    """What the store holds for the layer, each chunk once, compressed."""
    sent_bytes: int
    """What had to be written now."""


class LayerPullRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``reference``: a tag, ``@sha256:DIGEST``, or both. ``move``: also when the tag means another layer here."""

    reference: str
    store: str | None = None
    move: bool = False


class LayerVerifyRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``store`` None: this node's own copy, all of which is read; of a store's, with ``deep`` only."""

    reference: str
    store: str | None = None
    deep: bool = False


class LayerVerified(msgspec.Struct, frozen=True, kw_only=True):
    """``faults``: what is wrong, in words; empty when nothing is."""

    digest: str
    faults: list[str] = []


class LayerEvictRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A layer of this node, by tag or digest."""

    reference: str


class LayerEvicted(msgspec.Struct, frozen=True, kw_only=True):
    """``evicted``: whether it was here."""

    digest: str
    evicted: bool


class LayerCollectRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``store`` None: this node's own layers."""

    store: str | None = None
    dry_run: bool = False


class LayerCollected(msgspec.Struct, frozen=True, kw_only=True):
    """What a clean-up removed (would remove, when dry). ``doomed``: what one that comes a day later removes."""

    removed_layers: list[str] = []
    removed_blobs: int = 0
    removed_bytes: int = 0
    doomed_layers: list[str] = []
    doomed_blobs: int = 0
    doomed_bytes: int = 0
    damaged_layers: list[str] = []
    """Layers of a store with a tag whose index cannot be read: while there are any, no blob is removed."""


class LayerCheckRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a sandbox would be composed of: ``layers`` over the image (None: only among themselves), bottom first."""

    image: str | None = None
    layers: list[str]


class HiddenFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that two layers have: the upper one's is seen. ``how``: replaced, removed, emptied (a directory)."""

    path: str
    """From the root; bytes that are no UTF-8 are written as \\xNN."""
    upper: str
    lower: str
    how: str


class LayerClash(msgspec.Struct, frozen=True, kw_only=True):
    """A ``variable`` that two layers set, a directory that two put into ``path``, or a ``program`` of one name in two
    directories of PATH: a sandbox gets that of ``upper``.
    """

    kind: str
    name: str
    upper: str
    lower: str
    seen: str
    """The variable's value, the directory, or the program that is run."""
    hidden: str = ""
    """The program that is not."""


class LayerChecked(msgspec.Struct, frozen=True, kw_only=True):
    """``hidden``: the first of them; ``total``: how many there are; likewise ``clashes``."""

    hidden: list[HiddenFile] = []
    total: int = 0
    clashes: list[LayerClash] = []
    clashes_total: int = 0
    path: str = ""
    """PATH as sandboxes would have it."""


class LayerDiffRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Two layers of this node, by tag or digest."""

    old: str
    new: str


class ChangedFile(msgspec.Struct, frozen=True, kw_only=True):
    """``how``: added, removed or changed; ``fields``: kind, mode, owner, size, target, device, content."""

    path: str
    how: str
    fields: list[str] = []


class LayerDifferences(msgspec.Struct, frozen=True, kw_only=True):
    """``files``: the first of them by path; ``total``: how many there are. Times are not looked at."""

    files: list[ChangedFile] = []
    total: int = 0


class StoreInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A store of the node's configuration."""

    name: str
    url: str
    default: bool = False


class StoredTag(msgspec.Struct, frozen=True, kw_only=True):
    """A tag of a store: what it means, when and by which node it was published."""

    reference: str
    digest: str
    at: float
    by: str
    environment: LayerEnvironment = LayerEnvironment()
