"""Which neighbouring layers of an image become one. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["FEW", "Part", "runs"]

FEW = 4
"""An image of so many layers stays as it is: mounting them and looking through them costs nothing that is felt."""


class Part(NamedTuple):
    """A layer of an image."""

    digest: str
    size: int
    """Bytes."""
    images: frozenset[str]
    """The images that have it."""


def runs(parts: Sequence[Part], *, most_bytes: int, most_layers: int) -> list[tuple[str, ...]]:
    """An image's layers, bottom first, in runs that become one layer each; a run of one stays what it is.

    Layers that other images share are put together only with those that the same images share, so that what images
    had in common stays in common. Of those a run takes as many as fit into ``most_bytes``. Where that leaves more
    than ``most_layers``, the smallest neighbours are joined whatever they are, for a sandbox mounts every one.
    ``most_bytes`` 0 joins nothing at all.
    """
    if not most_bytes or len(parts) <= FEW:
        return [(part.digest,) for part in parts]
    groups: list[list[Part]] = []
    for part in parts:
        last = groups[-1] if groups else None
        if last and last[-1].images == part.images and _size(last) + part.size <= most_bytes:
            last.append(part)
        else:
            groups.append([part])
    while len(groups) > most_layers:
        at = min(range(len(groups) - 1), key=lambda i: _size(groups[i]) + _size(groups[i + 1]))
        groups[at : at + 2] = [groups[at] + groups[at + 1]]
    return [tuple(part.digest for part in group) for group in groups]


def _size(group: Sequence[Part]) -> int:
    return sum(itertools.starmap(lambda _, size, __: size, group))
