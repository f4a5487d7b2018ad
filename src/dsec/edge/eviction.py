"""Which layers leave the node's disk when they take too much of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

__all__ = ["Cached", "Marks", "in_order", "marks_of"]

_RESERVE = 2 << 30
_RESERVED_PART = 20
_HIGH = 0.9
_LOW = 0.8


class Cached(msgspec.Struct, frozen=True, kw_only=True):
    """A layer that could leave: nobody uses it, and a store is known to have had it."""

    digest: str
    bytes: int
    """On disk, holes not counted."""
    used_at: float
    """Seconds since 1970; 0 for never."""


class Marks(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of all layers: above ``high`` some leave, until no more than ``low`` are left."""

    high: int
    low: int


def marks_of(*, cache_mib: int | None, cached_bytes: int, free_bytes: int) -> Marks:
    """The marks of a disk on which layers have so much, and so much is free.

    By default nine tenths of what layers have and could have. What a setting says is bounded by the last twentieth of
    the disk, at most 2 GiB, which always stays free: a full disk stops whatever is written. ``low`` is eight ninths
    of ``high``.
    """
    room = cached_bytes + free_bytes
    reserve = min(_RESERVE, room // _RESERVED_PART)
    asked = int(room * _HIGH) if cache_mib is None else cache_mib << 20
    high = max(0, min(asked, room - reserve))
    return Marks(high=high, low=int(high * _LOW / _HIGH))


def in_order(layers: Iterable[Cached]) -> list[str]:
    """Digests of those that could leave, the longest unused first; without those of which nothing is here."""
    return [each.digest for each in sorted(layers, key=lambda one: (one.used_at, one.digest)) if each.bytes]
