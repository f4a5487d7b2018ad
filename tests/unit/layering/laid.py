"""Layers made in a test's directory, and what is in them."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path
from typing import Any

from dsec.layering.erofs_tree import LayerTree, Node
from dsec.layering.making import FromArchive, FromDirectory, FromLayers, Made, make
from dsec.layering.tar_tree import TarOptions


class Laid:
    """What a layer holds, as its reader sees it."""

    def __init__(self, directory: Path, made: Made) -> None:
        self.directory = directory
        self.made = made
        self.files: dict[bytes, Node] = {}
        self.contents: dict[bytes, bytes] = {}
        self.attributes: dict[bytes, dict[bytes, bytes]] = {}
        with LayerTree(directory) as tree:
            for node in tree.walk():
                self.files[node.path] = node
                self.attributes[node.path] = tree.attributes(node.nid)
                if stat.S_ISREG(node.mode) and node.size < 100 << 20:
                    self.contents[node.path] = b"".join(tree.content(node.nid))

    def __getitem__(self, path: bytes) -> Node:
        return self.files[path]

    @property
    def names(self) -> list[bytes]:
        """All paths but the root's, sorted."""
        return sorted(self.files)[1:]


def from_archive(out: Path, archive: bytes, **options: Any) -> Laid:
    """A layer of an archive that lies in a file."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    file = out.with_name(out.name + ".tar")
    file.write_bytes(archive)
    bounds = TarOptions(**{"max_bytes": 1 << 30, "max_entries": 100_000, **options})
    try:
        return Laid(out, make(FromArchive(file=str(file), options=bounds), out))
    finally:
        file.unlink()


def from_directory(out: Path, directory: Path) -> Laid:
    """A layer of a directory."""
    out.mkdir()
    return Laid(out, make(FromDirectory(directory=str(directory), max_entries=100_000), out))


def from_layers(out: Path, *layers: Path) -> Laid:
    """Several layers as one."""
    out.mkdir()
    return Laid(out, make(FromLayers(layers=[str(each) for each in layers]), out))
