"""The layers of a node as its stores deal with them: found by tag or digest, shown, received whole from elsewhere."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from dsec.errors import Conflict, ImageCorrupt, InvalidArgument, NotFound
from dsec.images.catalogue import Catalogue, Image, ImageConfig, LayerEnvironment, LayerTag, Provenance
from dsec.images.disk import full_disk_typed
from dsec.images.holds import Holds
from dsec.images.references import LayerChoice, LayerKind, parse_layer_choice
from dsec.images.store import LayerManifest, LayerStore, canonical, describe, digest_of
from dsec.images.threads import in_thread

__all__ = ["Here", "NodeLayers"]

_RECEIVING = ".pull-"
_PUBLISHING = "layer"
"""The directory that ``LayerStore.publish`` makes in the one that it is given."""
_FILLED = "filled"
_READ_ONLY = ("layer.json", "metadata", "chunks")
_ABANDONED_S = 86_400.0


class Here(NamedTuple):
    """Bytes of a layer that is here."""

    metadata: int
    data: int
    local: int
    """Of the data: those that are on this node."""

    @property
    def total(self) -> int:
        """What it takes on this node."""
        return self.metadata + self.local


class NodeLayers:
    """What the node's images and layers lie in, seen from the side of the layers. Used on one event loop."""

    def __init__(self, layers_dir: Path, store: LayerStore, catalogue: Catalogue, holds: Holds) -> None:
        self._dir = layers_dir
        self._store = store
        self._catalogue = catalogue
        self._holds = holds
        self.absent = {each for each in catalogue.layer_digests() if not store.has(each)}
        """Layers that the catalogue knows and that are not here: evicted. Some may have come back since."""

    def find(self, reference: str, kind: LayerKind | None = None) -> LayerTag:
        """A layer by tag, by ``@sha256:DIGEST``, or by both; a tag must be of the ``kind``.

        Raises InvalidArgument, NotFound, and Conflict for a tag that means another digest than the one beside it. A
        digest alone brings no environment variables: they belong to tags.
        """
        choice = parse_layer_choice(reference)
        own = choice.reference
        if own is None:
            return self._by_digest(choice)
        if kind not in (None, own.kind):
            raise InvalidArgument(
                f"{reference} is a {own.kind}, not a {kind}",
                argument=kind,
                remedy=f"Build it as {kind}/{own.name}:{own.version}",
            )
        found = self._catalogue.tag(str(own))
        if choice.digest not in (None, found.digest):
            raise Conflict(
                f"on this node {own} is @sha256:{found.digest}",
                remedy=f"Pull the other one: dsec layer pull {choice}",
            )
        return found

    def _by_digest(self, choice: LayerChoice) -> LayerTag:
        digest = choice.digest or ""
        size = self._catalogue.layer_size(digest)
        if size is None:
            raise NotFound(f"this node has no layer {choice}", remedy=f"Pull it: dsec layer pull {choice}")
        return LayerTag(str(choice), digest, size, 0.0)

    def tags_of(self, digest: str) -> list[LayerTag]:
        """The tags that mean a layer."""
        return self._catalogue.tags_of(digest)

    def images_with(self, digest: str) -> list[str]:
        """The images that a layer is part of."""
        return self._catalogue.images_with(digest)

    def size(self, digest: str) -> int:
        """Bytes of a layer; 0 if it is not here."""
        return self._catalogue.layer_size(digest) or 0

    def blob_size(self, digest: str) -> int | None:
        """Bytes of the compressed blob that a layer came as from a registry; None where that is not known."""
        return self._catalogue.blob_size(digest)

    def manifest(self, digest: str) -> LayerManifest:
        """What ``layer.json`` says; raises NotFound or ImageCorrupt."""
        return self._store.manifest(digest)

    def path(self, digest: str) -> Path:
        """Where a layer's files are; raises NotFound."""
        return self._store.path(digest)

    def knows(self, digest: str) -> bool:
        """Whether the layer is one of this node's, here or evicted."""
        return self._catalogue.layer_size(digest) is not None

    def has(self, digest: str) -> bool:
        """Whether the layer is here."""
        return self._catalogue.layer_size(digest) is not None and self._store.has(digest)

    def here(self, digest: str) -> Here | None:
        """What there is of a layer on this node; None where there is nothing: evicted, or never here."""
        try:
            path = self._store.path(digest)
            metadata, data = (path / "metadata").stat(), (path / "data").stat()
        except (NotFound, FileNotFoundError):
            return None
        return Here(metadata.st_size, data.st_size, min(data.st_blocks * 512, data.st_size))

    async def faults(self, digest: str) -> list[str]:
        """What is wrong with this node's copy of a layer, in words; empty when nothing is. Reads all of it.

        Raises Conflict where not all of it is here.
        """
        self.check_whole(digest)
        try:
            manifest = self._store.manifest(digest)
        except ImageCorrupt as error:
            return [error.message]
        with self._holds.session() as hold:
            hold(digest)
            found = await in_thread(lambda _: describe(self._store.path(digest)))
        return [
            f"{name} is not what its digest says"
            for name in ("metadata", "data", "chunks_sha256")
            if getattr(found, name) != getattr(manifest, name)
        ]

    # Layers that come from elsewhere

    @contextlib.contextmanager
    def receiving(self, digest: str) -> Iterator[Path]:
        """A directory of the layers' file system to fetch a layer into.

        What is in it stays when the block fails, for whoever goes on, even after a restart. One at a time for each
        layer is the caller's business.
        """
        path = self._dir / (_RECEIVING + digest)
        path.mkdir(mode=0o700, exist_ok=True)
        _take_back(path)
        yield path
        shutil.rmtree(path, ignore_errors=True)

    async def adopt(
        self, received: Path, manifest: LayerManifest, tag: str, environment: LayerEnvironment
    ) -> LayerTag:
        """Check a fetched layer as a whole, put it in place, let the tag mean it; raises ImageCorrupt."""
        return await self._adopt(lambda: self._put(received, manifest), manifest, tag, environment)

    async def put_back(self, received: Path, manifest: LayerManifest, *, sparse: bool) -> None:
        """Put a layer in its place, without a name; raises ImageCorrupt. The tags of an evicted one never went."""
        digest = digest_of(manifest)
        with self._holds.session() as hold:
            hold(digest)
            await in_thread(lambda _: (self._put_sparse if sparse else self._put)(received, manifest))
            self._catalogue.put_layer(digest, manifest.size)
            self.absent.discard(digest)

    async def _adopt(
        self, put: Callable[[], None], manifest: LayerManifest, tag: str, environment: LayerEnvironment
    ) -> LayerTag:
        digest = digest_of(manifest)
        with self._holds.session() as hold:
            hold(digest)
            await in_thread(lambda _: put())
            self._catalogue.put_layer(digest, manifest.size)
            self.absent.discard(digest)
            return self._catalogue.put_tag(tag, digest, environment)

    def _put(self, received: Path, manifest: LayerManifest) -> None:
        if describe(received) != manifest:
            raise ImageCorrupt(
                f"layer {digest_of(manifest)} is not what its manifest says", remedy="Build it again and push that"
            )
        with full_disk_typed():
            self._store.publish(received, manifest)

    async def adopt_sparse(
        self, received: Path, manifest: LayerManifest, tag: str, environment: LayerEnvironment
    ) -> LayerTag:
        """Put a layer in place whose data is still in a store (its metadata is checked), let the tag mean it."""
        return await self._adopt(lambda: self._put_sparse(received, manifest), manifest, tag, environment)

    def _put_sparse(self, received: Path, manifest: LayerManifest) -> None:
        digest = digest_of(manifest)
        with full_disk_typed():
            (received / "layer.json").write_bytes(canonical(manifest))
            for name in (*_READ_ONLY, "data", "filled"):
                (received / name).chmod(0o444 if name in _READ_ONLY else 0o600)
                _flush(received / name)
            received.chmod(0o755)
            _flush(received)
            if not self._store.has(digest):
                received.rename(self._dir / digest)
                _flush(self._dir)

    def is_whole(self, digest: str) -> bool:
        """Whether all data of a layer that is here is on this node; raises NotFound."""
        return not (self._store.path(digest) / _FILLED).exists()

    def check_whole(self, digest: str) -> None:
        """Raises Conflict for a layer whose data is still in a store."""
        if not self.is_whole(digest):
            raise Conflict(
                f"not all data of layer {digest} is on this node: it is fetched as it is read",
                remedy="Do this on a node that has it whole, or with the store itself (--store)",
                digest=digest,
            )

    def provenance(self, digest: str) -> Provenance | None:
        """Where a layer comes from, if it was packed from a sandbox."""
        return self._catalogue.provenance(digest)

    def note_provenance(self, digest: str, provenance: Provenance | None) -> None:
        """Remember what a store says of where a layer comes from."""
        if provenance is not None:
            self._catalogue.put_provenance(digest, provenance)

    def retag(self, tag: str, digest: str, environment: LayerEnvironment) -> LayerTag:
        """Let a tag mean a layer that is here."""
        return self._catalogue.put_tag(tag, digest, environment)

    def compose_image(self, reference: str, digest: str, config: ImageConfig, layers: Sequence[str]) -> Image:
        """Let a reference mean an image whose layers are all this node's."""
        return self._catalogue.put_image(reference, digest, config, layers)

    def meaning(self, tag: str) -> LayerTag | None:
        """What a tag means on this node; None when nothing."""
        try:
            return self._catalogue.tag(tag)
        except NotFound:
            return None

    # Layers that leave, and may come back

    def is_held(self, digest: str) -> bool:
        """Whether work in progress needs the layer."""
        return digest in self._holds

    def missing(self, digests: Iterable[str]) -> list[str]:
        """Which of the node's layers are not here, each once."""
        found = [each for each in dict.fromkeys(digests) if each in self.absent]
        if not found:
            return []
        self.absent.difference_update([each for each in found if self._store.has(each)])
        return [each for each in found if each in self.absent]

    def evict(self, digest: str) -> Path | None:
        """Take a layer's files out of sight in one step; tags, images and the catalogue keep it.

        The caller deletes the directory returned, and has seen to it that nobody needs the layer and that a store has
        it. Whoever still reads the files does so to the end. None for one that is not in this node's own directory.
        """
        grave = self._store.bury(digest)
        if grave is not None:
            self.absent.add(digest)
        return grave

    def own_bytes(self) -> dict[str, int]:
        """Digest → bytes on disk of each layer of this node's own directory, holes not counted; blocks."""
        return {each: _allocated(self._dir / each) for each in self._store.digests()}

    def abandoned(self, *, now: float | None = None) -> list[Path]:
        """What fetches left that nobody went on with for a day."""
        oldest = (time.time() if now is None else now) - _ABANDONED_S
        return [
            path
            for path in self._dir.glob(_RECEIVING + "*")
            if path.stat().st_mtime < oldest and path.name.removeprefix(_RECEIVING) not in self._holds
        ]


def _take_back(received: Path) -> None:
    """What was on its way into its place when the process died or the disk was full: not fetched again."""
    half = received / _PUBLISHING
    for name in ("metadata", "data"):
        if (half / name).exists() and not (received / name).exists():
            (half / name).chmod(0o600)
            (half / name).rename(received / name)
    shutil.rmtree(half, ignore_errors=True)


def _allocated(folder: Path) -> int:
    total = 0
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for each in entries:
            total += each.stat(follow_symlinks=False).st_blocks * 512
    return total


def _flush(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
