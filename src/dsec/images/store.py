"""Layers as files: ``DIGEST/{layer.json,metadata,data}``, immutable and named by their content.

A layer appears whole or not at all: it is written to a temporary directory of the same file system, flushed, and
renamed. Whoever comes second finds the same content and throws its own away.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

from dsec.errors import ImageCorrupt, NotFound
from dsec.layering.placing import CHUNK_SIZE

__all__ = [
    "CHUNK_SIZE",
    "FORMAT",
    "Blob",
    "LayerManifest",
    "LayerStore",
    "canonical",
    "describe",
    "digest_of",
    "private_directory",
    "sweep_stale",
]

FORMAT = "dsec.layer.v1"
_TEMPORARY = ".new-"


class Blob(msgspec.Struct, frozen=True):
    """A file of a layer."""

    sha256: str
    """Lower-case hex."""
    size: int
    """Bytes."""


class LayerManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What ``layer.json`` says; its canonical form's sha256 is the layer's digest."""

    format: str
    metadata: Blob
    """EROFS metadata, mounted with ``device=DATA``."""
    data: Blob
    """File contents."""
    chunk_size: int
    """Bytes of data that each chunk digest covers."""
    chunks_sha256: str
    """Sha256 of the data's chunk digests, one after the other as 32 bytes each."""

    @property
    def size(self) -> int:
        """Bytes of both blobs."""
        return self.metadata.size + self.data.size


def canonical(manifest: LayerManifest) -> bytes:
    """The one byte sequence that means this manifest: JSON, keys sorted, no spaces."""
    return msgspec.json.encode(manifest, order="sorted")


def digest_of(manifest: LayerManifest) -> str:
    """The layer's digest: 64 lower-case hex digits."""
    return hashlib.sha256(canonical(manifest)).hexdigest()


def describe(directory: Path) -> LayerManifest:
    """Hash the ``metadata`` and ``data`` files of a directory; blocks."""
    data, chunks = hashlib.sha256(), hashlib.sha256()
    size = 0
    with (directory / "data").open("rb", buffering=0) as file:
        while block := file.read(CHUNK_SIZE * 16):
            size += len(block)
            data.update(block)
            for at in range(0, len(block), CHUNK_SIZE):
                chunks.update(hashlib.sha256(memoryview(block)[at : at + CHUNK_SIZE]).digest())
    with (directory / "metadata").open("rb") as file:
        metadata = Blob(hashlib.file_digest(file, "sha256").hexdigest(), os.fstat(file.fileno()).st_size)
    return LayerManifest(FORMAT, metadata, Blob(data.hexdigest(), size), CHUNK_SIZE, chunks.hexdigest())


class LayerStore:
    """The layers of one directory, and read-only those of a second one."""

    def __init__(self, layers_dir: Path, shared: Path | None = None) -> None:
        self._dir = layers_dir
        self._shared = shared
        layers_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        sweep_stale(layers_dir, _TEMPORARY)

    def path(self, digest: str) -> Path:
        """Directory of a layer; raises NotFound."""
        for base in (self._dir, self._shared):
            if base is not None and (base / digest / "layer.json").is_file():
                return base / digest
        raise NotFound(f"the node has no layer {digest}", remedy="Import its image or build it again")

    def has(self, digest: str) -> bool:
        """Whether the layer is here."""
        try:
            self.path(digest)
        except NotFound:
            return False
        return True

    def manifest(self, digest: str) -> LayerManifest:
        """What ``layer.json`` says, checked against the digest; raises NotFound or ImageCorrupt."""
        text = (self.path(digest) / "layer.json").read_bytes()
        try:
            manifest = msgspec.json.decode(text, type=LayerManifest)
        except msgspec.DecodeError as error:
            raise ImageCorrupt(f"layer.json of layer {digest} is damaged: {error}") from None
        if digest_of(manifest) != digest:
            raise ImageCorrupt(f"layer {digest} is not what its name says", remedy="Remove it and import it again")
        return manifest

    def digests(self) -> list[str]:
        """Layers of this node's own directory, sorted."""
        return sorted(each.name for each in self._dir.iterdir() if (each / "layer.json").is_file())

    @contextlib.contextmanager
    def staging(self) -> Iterator[Path]:
        """A directory of the store's file system to write ``metadata`` and ``data`` to; gone afterwards."""
        with private_directory(self._dir, _TEMPORARY) as path:
            yield path

    def publish(self, staged: Path, manifest: LayerManifest) -> str:
        """Put what a staging directory holds in place, ``manifest`` being its ``describe``; returns the digest.

        Blocks. Repeating it is harmless, as is another process that publishes the same at the same time.
        """
        digest = digest_of(manifest)
        if self.has(digest):
            return digest
        whole = staged / "layer"
        whole.mkdir(mode=0o755)
        (whole / "layer.json").write_bytes(canonical(manifest))
        for name in ("metadata", "data"):
            (staged / name).rename(whole / name)
        for name in ("metadata", "data", "layer.json"):
            (whole / name).chmod(0o444)
            _flush(whole / name)
        _flush(whole)
        self._put(whole, digest)
        _flush(self._dir)
        return digest

    def _put(self, whole: Path, digest: str) -> None:
        try:
            whole.rename(self._dir / digest)
        except OSError:
            # A directory with content is never replaced: another publisher was first.
            if not self.has(digest):
                raise

    def bury(self, digest: str) -> Path | None:
        """Take a layer of this node's own directory out of sight in one step; None if it is not there.

        The caller deletes the directory returned; what a crash leaves of it is deleted at the next start.
        """
        grave = self._dir / (_TEMPORARY + os.urandom(8).hex())
        try:
            (self._dir / digest).rename(grave)
        except FileNotFoundError:
            return None
        return grave


@contextlib.contextmanager
def private_directory(parent: Path, prefix: str) -> Iterator[Path]:
    """A directory 0700 that is locked while in use, and deleted afterwards.

    The lock tells ``sweep_stale``, of this or another process, that its maker lives.
    """
    path, fd = _locked_directory(parent, prefix)
    try:
        yield path
    finally:
        os.close(fd)
        shutil.rmtree(path, ignore_errors=True)


def _locked_directory(parent: Path, prefix: str) -> tuple[Path, int]:
    while True:
        path = parent / (prefix + os.urandom(8).hex())
        path.mkdir(mode=0o700)
        # A sweeper that comes before the lock takes the directory for a dead one: make another.
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.stat()
                return path, fd
            except BlockingIOError:
                os.close(fd)
            except BaseException:
                os.close(fd)
                raise


def sweep_stale(parent: Path, prefix: str) -> None:
    """Delete the private directories that a dead process left."""
    for path in parent.glob(prefix + "*"):
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(fd)


def _flush(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
