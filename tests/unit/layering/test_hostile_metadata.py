"""Metadata that somebody wrote by hand, as a store may bring it: an answer in bounded time, or ImageCorrupt."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.layering.laid import from_directory, from_layers

from dsec.errors import ImageCorrupt
from dsec.layering import erofs_tree, merge
from dsec.layering.erofs_tree import LayerTree

DEPTH = 60


def _chain(tmp_path: Path) -> Path:
    """A layer of directories ``a/a/a/…``, each with an empty one ``b`` beside it."""
    here = tmp_path / "tree"
    for _ in range(DEPTH):
        (here / "b").mkdir(parents=True)
        here /= "a"
    return from_directory(tmp_path / "layer", tmp_path / "tree").directory


def _renumbered(layer: Path, choose: Callable[[int, int], int]) -> None:
    """Let each ``b`` mean what is chosen of its directory's number and that of the ``a`` beside it."""
    metadata = bytearray((layer / "metadata").read_bytes())
    with LayerTree(layer) as tree:
        nids = {node.path: node.nid for node in tree.walk()}
        for path in [each for each in nids if each.endswith(b"b")]:
            above, beside = path[:-1].rstrip(b"/"), path[:-1] + b"a"
            inode = tree._inode(nids[above])
            at = metadata.index(struct.pack("<Q", nids[path]), inode.at + inode.head_bytes + inode.xattr_bytes)
            metadata[at : at + 8] = struct.pack("<Q", choose(nids[above], nids.get(beside, nids[above])))
    (layer / "metadata").chmod(0o600)
    (layer / "metadata").write_bytes(metadata)


def _directory(own: int, _: int) -> int:
    return own


def _neighbour(_: int, neighbour: int) -> int:
    return neighbour


@pytest.mark.parametrize("choose", [_directory, _neighbour], ids=["a loop", "two names of each directory"])
@pytest.mark.timeout(60)
def test_a_directory_with_two_names(tmp_path: Path, choose: Callable[[int, int], int]) -> None:
    """Sixty directories that would show as 2 to the power of 60 are refused at the first, walked or collapsed."""
    layer = _chain(tmp_path)
    _renumbered(layer, choose)
    with LayerTree(layer) as tree, pytest.raises(ImageCorrupt, match="in itself"):
        for number, _ in enumerate(tree.walk()):
            assert number < 3 * DEPTH
    with pytest.raises(ImageCorrupt, match="in itself"):
        from_layers(tmp_path / "whole", layer, layer)


def test_files_are_counted_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few inodes are behind them; so are the bytes of names, and those of attributes when they are kept."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "0").touch()
    for number in range(1, 50):
        (tree / str(number)).hardlink_to(tree / "0")
    layer = from_directory(tmp_path / "layer", tree).directory
    monkeypatch.setattr(erofs_tree, "_MOST_ENTRIES", 51)
    with LayerTree(layer) as read:
        assert len(list(read.walk())) == 51
        monkeypatch.setattr(erofs_tree, "_MOST_ENTRIES", 50)
        with pytest.raises(ImageCorrupt, match="more files"):
            list(read.walk())
        monkeypatch.setattr(erofs_tree, "_MOST_ENTRIES", 51)
        monkeypatch.setattr(erofs_tree, "_MOST_NAMED", 20)
        with pytest.raises(ImageCorrupt, match="more files"):
            list(read.walk())


def test_attributes_that_are_kept_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that share an attribute in the metadata have one each in memory."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for number in range(10):
        (tree / str(number)).touch()
        os.setxattr(tree / str(number), "user.a", b"v" * 94)
    layer = from_directory(tmp_path / "layer", tree).directory
    monkeypatch.setattr(merge, "_MOST_HELD", 1_000)
    assert len(from_layers(tmp_path / "one", layer).names) == 10
    monkeypatch.setattr(merge, "_MOST_HELD", 999)
    with pytest.raises(ImageCorrupt, match="attributes"):
        from_layers(tmp_path / "two", layer)


def test_a_walk_shows_directories_before_their_content(tmp_path: Path) -> None:
    """By name, each directory right before what is in it: whoever follows it needs to keep one path only."""
    tree = tmp_path / "tree"
    for each in ("b/x/1", "a/y", "b/a", "c"):
        (tree / each).parent.mkdir(parents=True, exist_ok=True)
        (tree / each).touch()
    with LayerTree(from_directory(tmp_path / "layer", tree).directory) as read:
        assert [node.path.decode() for node in read.walk()] == ["", "a", "a/y", "b", "b/a", "b/x", "b/x/1", "c"]
