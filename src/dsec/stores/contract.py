"""What a store is, to everything above it: named bytes, each put whole or not at all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Protocol

import msgspec

from dsec.errors import InvalidArgument, NotFound

__all__ = ["Entry", "Store", "checked_name", "missing"]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")
_MOST_NAME = 700


class Entry(msgspec.Struct, frozen=True):
    """An object of a store, without its bytes."""

    name: str
    size: int
    modified: float
    """By the store's clock, seconds since 1970."""
    mark: str
    """Changes whenever the object is replaced; for ``swap``."""


class Store(Protocol):
    """A flat name space of objects. Every method blocks, and may be called from many threads at once.

    All raise StoreDenied, StoreUnreachable; those that write, StoreFull. A process that dies in the middle of a call
    leaves the object as it was, and at most something without a name, which ``sweep`` removes.
    """

    @property
    def title(self) -> str:
        """The store as a person knows it, without secrets: its URL."""
        ...

    def stat(self, name: str) -> Entry | None:
        """What is known of an object; None if there is none."""
        ...

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """Bytes of an object: fewer than ``length`` where it ends. Raises NotFound."""
        ...

    def put(self, name: str, content: bytes) -> None:
        """Make or replace an object in one step; it lasts when this returns."""
        ...

    def swap(self, name: str, content: bytes, mark: str | None) -> bool:
        """``put``, if the object is still what ``mark`` says (None: if there is none); whether it was done.

        Of two that swap at the same time one at most is told that it did (``docs/stores.md`` says of which
        directories that is true).
        """
        ...

    def remove(self, name: str, mark: str) -> bool:
        """``delete``, if the object is still what ``mark`` says; whether it was done.

        Not conditional in buckets, whose servers know no such request (see ``docs/stores.md``).
        """
        ...

    def list(self, folder: str) -> Iterator[Entry]:
        """The objects below a folder, at whatever depth, in no order."""
        ...

    def delete(self, name: str) -> None:
        """Remove an object; one that is not there is no error."""
        ...

    def sweep(self, older_than_s: float) -> int:
        """Remove what dead writers left without a name, if it is that old; returns how many."""
        ...


def checked_name(name: str) -> str:
    """The name, if it can be an object's; raises InvalidArgument. Nothing that passes leaves the store's folder."""
    if len(name) > _MOST_NAME or not _NAME.fullmatch(name):
        raise InvalidArgument(f"{name[:100]!r} is not a name in a store")
    return name


def missing(title: str, name: str) -> NotFound:
    """The error for an object that is not there."""
    return NotFound(f"{title} has no {name}", phase="store", remedy="Push the layer again", object=name)
