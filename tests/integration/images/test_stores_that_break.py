"""A store, or a node's disk, that fills up or is taken away in the middle: typed errors, and nothing is lost."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import pytest

from dsec.errors import CapacityError, DSecError, StoreDenied, StoreFull
from dsec.images.references import parse_layer
from dsec.images.samples import Member, layer_archive
from dsec.images.store import LayerManifest, describe, digest_of
from dsec.layering.making import FromArchive, make
from dsec.layering.tar_tree import TarOptions
from dsec.stores.directory import DirectoryStore
from dsec.stores.fetch import fetch
from dsec.stores.layout import TagRecord
from dsec.stores.publish import publish
from dsec.stores.tags import put_tag, read_tag

pytestmark = pytest.mark.node

_MOUNT = ("mount", "-t", "tmpfs", "-o")


def quiet(_: int, __: int) -> None:
    """Progress that nobody sees."""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run([*_MOUNT, "size=8m", "dsec-test", place], check=True)
    yield place
    subprocess.run(["umount", place], check=True)


def remount(place: Path, options: str) -> None:
    """Change it as it is used."""
    subprocess.run(["mount", "-o", f"remount,{options}", place], check=True)


class Layer:
    """One on this node."""

    def __init__(self, folder: Path, size: int) -> None:
        folder.mkdir()
        archive = folder.with_suffix(".tar")
        files = [Member(name=f"file-{each}", data=os.urandom(1_000_000)) for each in range(size)]
        archive.write_bytes(layer_archive(files))
        options = TarOptions(max_bytes=1 << 30, max_entries=1000, end_mark=False)
        make(FromArchive(file=str(archive), options=options), folder)
        self.folder = folder
        self.manifest: LayerManifest = describe(folder)
        self.digest = digest_of(self.manifest)

    def publish(self, store: DirectoryStore, progress: Callable[[int, int], None] = quiet) -> None:
        """Send it."""
        publish(store, self.folder, self.manifest, stop=Event(), progress=progress)

    def is_read(self, store: DirectoryStore, out: Path) -> bool:
        """Fetched, every chunk held against its digest, and the same."""
        out.mkdir()
        return fetch(store, self.digest, out, stop=Event(), progress=quiet) == self.manifest == describe(out)


def test_a_store_that_fills_up(tmp_path: Path, small: Path) -> None:
    """StoreFull in the middle of a layer: the one before is read, nothing of the new one is seen, and with more room
    the push goes on.
    """
    store = DirectoryStore(small)
    first, second = Layer(tmp_path / "first", 3), Layer(tmp_path / "second", 9)
    first.publish(store)
    with pytest.raises(StoreFull):
        second.publish(store)
    assert first.is_read(store, tmp_path / "one")
    with pytest.raises(DSecError):
        second.is_read(store, tmp_path / "half")
    remount(small, "size=32m")
    second.publish(store)
    assert second.is_read(store, tmp_path / "two")


def test_a_right_that_is_lost_in_the_middle(tmp_path: Path, small: Path) -> None:
    """The file system becomes read-only after some chunks: StoreDenied, tag and layer of before are as they were, and
    with the right the push goes on.
    """
    remount(small, "size=32m")
    store, tag = DirectoryStore(small), parse_layer("workspace/w:1")
    first, second = Layer(tmp_path / "first", 1), Layer(tmp_path / "second", 9)
    first.publish(store)
    put_tag(store, tag, TagRecord(digest=first.digest, at=1.0, by="n"), move=False)
    lost: list[int] = []

    def lose(done: int, _: int) -> None:
        if done and not lost:
            lost.append(done)
            remount(small, "ro")

    with pytest.raises(StoreDenied):
        second.publish(store, lose)
    assert lost
    with pytest.raises(StoreDenied):
        put_tag(store, tag, TagRecord(digest=second.digest, at=2.0, by="n"), move=True)
    assert read_tag(store, tag).digest == first.digest and first.is_read(store, tmp_path / "one")
    remount(small, "rw")
    second.publish(store)
    assert second.is_read(store, tmp_path / "two")


def test_a_disk_that_fills_up_under_a_pull(tmp_path: Path, small: Path) -> None:
    """CapacityError, and with more room the pull goes on with what it had."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    store, layer = DirectoryStore(shelf), Layer(tmp_path / "layer", 12)
    layer.publish(store)
    out = small / "out"
    out.mkdir()
    with pytest.raises(CapacityError):
        fetch(store, layer.digest, out, stop=Event(), progress=quiet)
    remount(small, "size=64m")
    assert fetch(store, layer.digest, out, stop=Event(), progress=quiet) == layer.manifest == describe(out)
