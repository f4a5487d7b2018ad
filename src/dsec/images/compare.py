"""Layers held against each other: what an upper one hides of a lower one, and what differs between two."""

from __future__ import annotations

import itertools
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from dsec.layering.erofs_tree import LayerTree, Node

__all__ = ["Difference", "Hidden", "Named", "differences", "hidden_files"]


class Named(NamedTuple):
    """Where a layer's files are, and what people call it (an image's name for all of its layers)."""

    name: str
    directory: Path


class Hidden(NamedTuple):
    """A file that two layers have, or a directory that an upper layer hides."""

    path: bytes
    upper: str
    lower: str
    how: Literal["replaced", "removed", "emptied"]
    """Emptied: a directory whose lower content is hidden (an opaque one)."""


class Difference(NamedTuple):
    """A file that is not the same in both layers."""

    path: bytes
    how: Literal["added", "removed", "changed"]
    fields: tuple[str, ...] = ()
    """What changed: kind, mode, owner, size, target, device, content."""


def hidden_files(layers: Sequence[Named]) -> Iterator[Hidden]:
    """What layers, bottom first, hide of those below them; what an image's own layers do among themselves is its own.

    Directories that several layers have are no conflict: they merge. Of the lowest layer nothing is remembered.
    """
    above: dict[bytes, tuple[str, Node]] = {}
    told: set[Hidden] = set()
    for number, layer in reversed(list(enumerate(layers))):
        with LayerTree(layer.directory) as tree:
            own: dict[bytes, tuple[str, Node]] = {}
            covered: set[bytes] = set()
            for node in tree.walk():
                if node.path in covered or _parent(node.path) in covered:
                    # All below a directory that is gone is gone with it: said once.
                    if node.is_directory:
                        covered.add(node.path)
                    continue
                upper = above.get(node.path)
                if upper is not None and upper[0] != layer.name:
                    how = _how(upper[1], node)
                    if how is not None:
                        found = Hidden(node.path, upper[0], layer.name, how)
                        if found not in told:
                            told.add(found)
                            yield found
                        if node.is_directory:
                            covered.add(node.path)
                if number and upper is None:
                    own[node.path] = (layer.name, node)
            above |= own


def _how(upper: Node, lower: Node) -> Literal["replaced", "removed", "emptied"] | None:
    if lower.is_whiteout:
        return None
    if upper.is_whiteout:
        return "removed"
    if upper.is_directory and lower.is_directory:
        return "emptied" if upper.opaque else None
    return "replaced"


def _parent(path: bytes) -> bytes:
    return path.rpartition(b"/")[0] if b"/" in path else b"\0"


def differences(old: Path, new: Path) -> Iterator[Difference]:
    """What differs between two layers, in no order; times are not looked at."""
    with LayerTree(old) as left, LayerTree(new) as right:
        before = {node.path: node for node in left.walk()}
        for node in right.walk():
            there = before.pop(node.path, None)
            if there is None:
                yield Difference(node.path, "added")
            elif fields := tuple(_changed(left, there, right, node)):
                yield Difference(node.path, "changed", fields)
        for path in before:
            yield Difference(path, "removed")


def _changed(left: LayerTree, old: Node, right: LayerTree, new: Node) -> Iterator[str]:
    if stat.S_IFMT(old.mode) != stat.S_IFMT(new.mode):
        yield "kind"
        return
    for name, same in (
        ("mode", old.mode == new.mode),
        ("owner", (old.uid, old.gid) == (new.uid, new.gid)),
        ("size", old.size == new.size),
        ("target", old.target == new.target),
        ("device", old.rdev == new.rdev),
        ("opaque", old.opaque == new.opaque),
    ):
        if not same:
            yield name
    if stat.S_ISREG(new.mode) and old.size == new.size:
        pieces = itertools.zip_longest(left.content(old.nid), right.content(new.nid), fillvalue=b"")
        if any(one != other for one, other in pieces):
            yield "content"
