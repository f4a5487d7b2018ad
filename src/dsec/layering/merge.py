"""Several layers as one that shows the same: through overlay, over whatever lies below and under whatever above.

``merged`` is pure; ``load`` and ``LayerContents`` bring a layer's tree and its files' bytes.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dsec.errors import ImageCorrupt
from dsec.layering.erofs_tree import LayerTree, Node
from dsec.layering.placing import CHUNK_SIZE
from dsec.layering.trees import (
    NO_ATTRIBUTES,
    Attributes,
    Contents,
    Directory,
    Inode,
    Regular,
    Special,
    Symlink,
    whiteout,
)

__all__ = ["LayerContents", "load", "merged"]

_OVERLAY = b"trusted.overlay."
_MOST_HELD = 1 << 30
"""Bytes of attributes of one layer, which are kept in memory; they may lie in the metadata once, for all files."""
_SPECIAL = frozenset((stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK))


def merged(parts: Sequence[Directory]) -> Directory:
    """One tree for several, the lowest first; takes them apart, so they are of no use afterwards.

    What overlay does: an upper file replaces what is below it, directories merge with the upper one's attributes, an
    opaque directory or a whiteout ends the search. Marks stay where something further below may need hiding.
    """
    result = parts[0]
    for upper in parts[1:]:
        result = _over(result, upper)
    return result


def _over(lower: Directory, upper: Directory) -> Directory:
    # Of a root overlay reads no mark: all roots merge.
    todo = [(lower, upper)]
    while todo:
        below, above = todo.pop()
        children = above.children
        for name, child in below.children.items():
            mine = children.get(name)
            if mine is None:
                children[name] = child
            elif isinstance(mine, Directory) and not mine.opaque:
                if isinstance(child, Directory):
                    mine.opaque = child.opaque
                    todo.append((child, mine))
                else:
                    # A file or whiteout ends overlay's search: a directory further below stays hidden.
                    mine.opaque = True
    return upper


class _Source(NamedTuple):
    layer: int
    nid: int


def load(tree: LayerTree, layer: int) -> Directory:
    """A layer's tree; ``layer`` is its number among those that ``LayerContents`` reads. May raise ImageCorrupt."""
    known: dict[int, Inode] = {}
    root = Directory()
    inside: list[tuple[bytes, Directory]] = []
    left = _MOST_HELD
    for node in tree.walk():
        inode = known.get(node.nid)
        if inode is None:
            inode = _inode(tree, node, layer)
            left -= sum(len(name) + len(value) for name, value in inode.attributes.items())
            if left < 0:
                raise ImageCorrupt("a layer holds more than 1 GiB of attributes")
            if not node.is_directory:
                known[node.nid] = inode
        if node.path:
            above, _, name = node.path.rpartition(b"/")
            # A walk shows a directory right before what is in it.
            while inside[-1][0] != above:
                inside.pop()
            inside[-1][1].children[name] = inode
        elif isinstance(inode, Directory):
            root = inode
        if isinstance(inode, Directory):
            inside.append((node.path, inode))
    return root


def _inode(tree: LayerTree, node: Node, layer: int) -> Inode:
    if node.is_whiteout:
        return whiteout()
    attributes: Attributes = NO_ATTRIBUTES
    found = tree.attributes(node.nid)
    if found:
        own = {name: value for name, value in found.items() if not name.startswith(_OVERLAY)}
        attributes = own or NO_ATTRIBUTES
    owner = node.uid, node.gid, node.mtime_ns
    if node.is_directory:
        return Directory(node.mode, *owner, attributes, opaque=node.opaque)
    if stat.S_ISREG(node.mode):
        return Regular(node.mode, *owner, attributes, size=node.size, source=_Source(layer, node.nid))
    if stat.S_ISLNK(node.mode):
        return Symlink(node.target, *owner, attributes)
    if stat.S_IFMT(node.mode) not in _SPECIAL:
        raise ImageCorrupt("a layer holds a file of an unknown kind")
    return Special(node.mode, *owner, attributes, rdev=node.rdev)


class LayerContents(Contents):
    """The files of several layers."""

    def __init__(self, layers: Sequence[LayerTree]) -> None:
        self._layers = layers

    def pieces(self, path: bytes, file: Regular) -> Iterator[bytes | None]:
        """See ``Contents``."""
        source = file.source
        assert isinstance(source, _Source)
        for piece in self._layers[source.layer].content(source.nid, CHUNK_SIZE):
            # A small file of an older layer may lie in its metadata, in one piece.
            for at in range(0, len(piece), CHUNK_SIZE):
                yield piece[at : at + CHUNK_SIZE]
