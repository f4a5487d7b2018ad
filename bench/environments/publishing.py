"""Layers by the product's own builder, into a store by its own publisher; beside them the same as ``tar.gz``."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from bench.mounted import mounted
from dsec.images.catalogue import ImageConfig
from dsec.images.erofs import build_layer
from dsec.images.holds import Holds
from dsec.images.references import parse_image, parse_layer
from dsec.images.store import LayerManifest, LayerStore, describe, digest_of
from dsec.images.tools import SubprocessTools
from dsec.layering.making import FromDirectory, make
from dsec.stores.directory import DirectoryStore
from dsec.stores.layout import TagRecord
from dsec.stores.publish import publish
from dsec.stores.stored_images import ImageRecord, put_image
from dsec.stores.tags import put_tag

__all__ = ["Archived", "Made", "Publisher"]

EAGER = "eager"
"""Folder of the archives in the store's directory, so that they come over the same line."""
_BUILD_S = 3600.0
_MEMBER = 4 << 20
_LEVEL = 1
_PATH = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


@dataclass(frozen=True)
class Archived:
    """A layer's files as registries have them."""

    key: str
    """Name in the store's directory."""
    bytes: int
    raw_bytes: int
    diff_id: str
    """Sha256 of the tar archive, in hex."""


@dataclass(frozen=True)
class Made:
    """A published layer."""

    digest: str
    manifest: LayerManifest
    stored_bytes: int
    archive: Archived | None


class Publisher:
    """Makes layers below ``scratch`` and puts them into the store of directory ``shelf``."""

    def __init__(self, shelf: Path, scratch: Path) -> None:
        shelf.mkdir(parents=True, exist_ok=True)
        scratch.mkdir(parents=True, exist_ok=True)
        self._shelf = shelf
        self._scratch = scratch
        self._store = DirectoryStore(shelf)
        self._layers = LayerStore(scratch / "layers")
        self._tools = SubprocessTools()

    async def layer(
        self, write: Callable[[Path], None], *, tag: str | None = None, archive: str | None = None, at: str = "/"
    ) -> Made:
        """A layer of what ``write`` writes to the directory that it is given, which lies at ``at`` of the layer."""
        tree = self._scratch / f"tree-{os.urandom(6).hex()}"
        try:
            below = tree / at.strip("/")
            below.mkdir(parents=True)
            await asyncio.to_thread(write, below)
            with Holds().session() as hold:
                digest, manifest = await build_layer(self._tools, self._layers, tree, hold, timeout_s=_BUILD_S)
            archived = await asyncio.to_thread(self._archive, tree, archive) if archive else None
        finally:
            await asyncio.to_thread(shutil.rmtree, tree, True)
        directory = self._layers.path(digest)
        try:
            made = await asyncio.to_thread(self._publish, directory, digest, manifest, archived)
        finally:
            await asyncio.to_thread(shutil.rmtree, directory, True)
        if tag is not None:
            put_tag(self._store, parse_layer(tag), TagRecord(digest=digest, at=time.time(), by="bench"), move=True)
        return made

    async def small(self, write: Callable[[Path], None], *, tag: str, at: str) -> None:
        """A layer of a few files, under a tag: made in this process, since a thousand interpreters take minutes."""
        await asyncio.to_thread(self._small, write, tag, at)

    def _small(self, write: Callable[[Path], None], tag: str, at: str) -> None:
        with tempfile.TemporaryDirectory(dir=self._scratch) as folder:
            below, layer = Path(folder, "tree", at.strip("/")), Path(folder, "layer")
            below.mkdir(parents=True)
            layer.mkdir()
            write(below)
            make(FromDirectory(directory=str(Path(folder, "tree")), max_entries=1000), layer)
            manifest = describe(layer)
            publish(self._store, layer, manifest, stop=Event(), progress=lambda _, __: None)
            record = TagRecord(digest=digest_of(manifest), at=time.time(), by="bench")
            put_tag(self._store, parse_layer(tag), record, move=True)

    async def existing(self, layers: Path, digest: str, archive: str) -> Made:
        """The same of a layer that is made already."""
        own = LayerStore(layers)
        with mounted(own.path(digest)) as tree:
            archived = await asyncio.to_thread(self._archive, tree, archive)
        return await asyncio.to_thread(self._publish, own.path(digest), digest, own.manifest(digest), archived)

    def image(self, reference: str, layers: list[Made]) -> None:
        """Let the reference mean an image of these layers in the store, the bottom one first."""
        digests = tuple(each.digest for each in layers)
        record = ImageRecord(
            reference=str(parse_image(reference)),
            digest="sha256:" + hashlib.sha256("".join(digests).encode()).hexdigest(),
            config=ImageConfig(env=_PATH, cmd=("bash",)),
            layers=digests,
            at=time.time(),
            by="bench",
        )
        put_image(self._store, record, move=True)

    def _publish(self, directory: Path, digest: str, manifest: LayerManifest, archive: Archived | None) -> Made:
        done = publish(self._store, directory, manifest, stop=Event(), progress=lambda _, __: None)
        return Made(digest, manifest, done.stored, archive)

    def _archive(self, tree: Path, name: str) -> Archived:
        folder = self._shelf / EAGER
        folder.mkdir(exist_ok=True)
        path = folder / f"{name}.tar.gz"
        argv = ["tar", "-C", str(tree), "--numeric-owner", "-cf", "-", "."]
        sha256, raw = hashlib.sha256(), 0
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as tar, path.open("wb") as out:
            source = tar.stdout
            assert source is not None
            # Members one after the other are one gzip file: so all processors take part.
            with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
                for block, packed in _packed(pool, iter(lambda: source.read(_MEMBER), b"")):
                    sha256.update(block)
                    raw += len(block)
                    out.write(packed)
        if tar.returncode:
            raise RuntimeError(f"tar of {tree} ended with {tar.returncode}")
        return Archived(f"{EAGER}/{name}.tar.gz", path.stat().st_size, raw, sha256.hexdigest())


def _packed(pool: ThreadPoolExecutor, blocks: Iterator[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Each block and what it is as a gzip member, some of them ahead of whoever takes them."""
    ahead = []
    for block in blocks:
        ahead.append((block, pool.submit(gzip.compress, block, _LEVEL, mtime=0)))
        if len(ahead) > 2 * (os.cpu_count() or 1):
            first, packed = ahead.pop(0)
            yield first, packed.result()
    for first, packed in ahead:
        yield first, packed.result()
