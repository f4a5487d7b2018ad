"""Packing: a snapshot's tree, over layers that are to be part of it, written as a layer; blocks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from dsec.layering.erofs_tree import LayerTree
from dsec.layering.making import write_layer
from dsec.layering.merge import LayerContents, load, merged
from dsec.layering.packing.filling import make_whole
from dsec.layering.packing.job import Packed, PackJob
from dsec.layering.packing.residue import Rules
from dsec.layering.packing.upper import Bounds, UpperContents, scan_upper
from dsec.layering.trees import Contents, Regular

__all__ = ["pack"]


def pack(job: PackJob, root: int, out: Path) -> Packed:
    """Write ``metadata`` and ``data`` of the layer into the directory ``out``.

    ``root`` is a descriptor of what a sandbox had written. The same bytes for the same content. What is missing of
    layers below is fetched first. Raises Unsupported, InvalidArgument, ImageCorrupt, StoreUnreachable, Conflict,
    OSError.
    """
    rules = Rules(job.rules, job.keep)
    tree, report = scan_upper(root, rules, Bounds(job.max_entries, job.max_bytes))
    for each in job.below:
        make_whole(Path(each))
    with contextlib.ExitStack() as stack:
        below = [stack.enter_context(LayerTree(Path(each))) for each in job.below]
        whole = merged([*(load(each, number) for number, each in enumerate(below)), tree])
        return Packed(write_layer(whole, _Both(below, root), out), report)


class _Both(Contents):
    """Files of the layers, which know where theirs lie, and of the snapshot."""

    def __init__(self, below: Sequence[LayerTree], root: int) -> None:
        self._below = LayerContents(below)
        self._own = UpperContents(root)

    def pieces(self, path: bytes, file: Regular) -> Iterator[bytes | None]:
        """See ``Contents``."""
        return (self._own if file.source is None else self._below).pieces(path, file)
