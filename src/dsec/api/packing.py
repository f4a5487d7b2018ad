"""Layers packed from sandboxes: requests and answers of ``/v1``."""

from __future__ import annotations

import msgspec

__all__ = ["PackRequest", "PackedLayer", "Provenance", "Residual", "Residue"]

_LONGEST = 1024


class Residue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What packing leaves out: by the rules of ``docs/snapshots.md``, unless ``defaults`` is false.

    ``extra`` are further patterns, ``keep`` those of what stays whatever a rule says. ``*`` and ``?`` stand for what
    is within a name, ``**`` for any number of names; one that begins with a slash begins at the root, any other one
    anywhere; one that ends with a slash means directories only. A directory goes, or stays, with all below it.
    """

    defaults: bool = True
    extra: list[str] = []
    keep: list[str] = []

    def problem(self) -> str | None:
        """The first that is no pattern of paths, in words."""
        for each in (*self.extra, *self.keep):
            if not each.strip("/") or "\0" in each or len(each.encode(errors="surrogateescape")) > _LONGEST:
                return f"{each[:80]!r} is no pattern of paths"
        return None


class PackRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Make a layer of what a sandbox has written. Idempotent by ``key``."""

    key: str
    reference: str
    residue: Residue = Residue()
    description: str = ""
    commands: list[str] | None = None
    """How it came about; None: the commands that were run in the sandbox, as far as they are known."""


class Provenance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a packed layer comes from. Told by whoever packed it: nothing of it is proven by the digest."""

    sandbox_id: str
    at: float
    """Unix time of the moment that the layer shows."""
    by: str
    """The principal that packed it."""
    image: str
    parents: list[str]
    """Digests of the layers that it lay over, the bottom one first."""
    merged: list[str] = []
    """Those of them that are part of it: the workspace that the sandbox had."""
    description: str = ""
    commands: list[str] = []
    removed_files: int = 0
    """What the rules left out."""
    removed_bytes: int = 0


class Residual(msgspec.Struct, frozen=True, kw_only=True):
    """A path that was left out with all below it, by which rule, and what it took."""

    path: str
    rule: str
    bytes: int


class PackedLayer(msgspec.Struct, frozen=True, kw_only=True):
    """A layer that was packed from a sandbox."""

    reference: str
    digest: str
    size_bytes: int
    entries: int
    """Files, directories and the rest that the sandbox had written and that are in it."""
    whiteouts: int
    """Files of the layers below that it removes."""
    dropped_attributes: int
    """Extended attributes that no layer can have."""
    removed: list[Residual]
    """What the rules left out, the topmost path of each; the first thousand."""
    removed_files: int
    removed_bytes: int
    frozen_s: float
    """How long the sandbox stood still."""
    partial: bool
    """Not every process could be made to stand still (one waited for the kernel)."""
    provenance: Provenance
