"""Making a layer's two files out of an archive, a directory or other layers; blocks for as long as that takes."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from dsec.errors import ImageCorrupt
from dsec.layering.encode import write_metadata
from dsec.layering.erofs_tree import LayerTree
from dsec.layering.flow import ahead, beside
from dsec.layering.merge import LayerContents, load, merged
from dsec.layering.placing import DataWriter
from dsec.layering.scan import DirectoryContents, scan
from dsec.layering.streams import ExactReader, compression_of, gunzip, read_chunks, unzstd
from dsec.layering.tar import BLOCK
from dsec.layering.tar_tree import ArchiveContents, TarOptions, read_tree
from dsec.layering.trees import Contents, Directory, Regular, walk

__all__ = ["FromArchive", "FromDirectory", "FromLayers", "Made", "Source", "make", "write_layer"]

OnBytes = Callable[[int], None]
"""Called with the bytes of an archive read so far."""


class FromArchive(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A tar archive: plain, or with gzip or zstd around it."""

    file: str
    options: TarOptions
    blob: str | None = None
    """``sha256:…`` that the file must have."""
    diff_id: str | None = None
    """``sha256:…`` that it must have without compression."""
    private: bool = False
    """Whether nobody else can write to the file: then a plain archive is read in place."""


class FromDirectory(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A directory of this machine that nobody writes to."""

    directory: str
    max_entries: int


class FromLayers(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Layers that become one that shows the same: directories with ``metadata`` and ``data``, lowest first."""

    layers: list[str]


Source = FromArchive | FromDirectory | FromLayers


class Made(msgspec.Struct, frozen=True, tag=True):
    """What a layer's files turned out to be."""

    metadata_sha256: str
    metadata_size: int
    data_sha256: str
    data_size: int
    chunks_sha256: str


def make(source: Source, out: Path, on_bytes: OnBytes = lambda _: None) -> Made:
    """Write ``metadata`` and ``data`` into the directory ``out``, which is empty and nobody else's.

    The same bytes for the same tree, wherever it comes from. What is needed on the way lies in ``out`` too. Raises
    ImageCorrupt, Unsupported, OSError.
    """
    if isinstance(source, FromDirectory):
        root = os.fsencode(source.directory)
        return write_layer(scan(root, max_entries=source.max_entries), DirectoryContents(root), out)
    if isinstance(source, FromLayers):
        with contextlib.ExitStack() as stack:
            trees = [stack.enter_context(LayerTree(Path(each))) for each in source.layers]
            whole = merged([load(tree, number) for number, tree in enumerate(trees)])
            return write_layer(whole, LayerContents(trees), out)
    with _opened(source.file) as file, (out / "archive").open("xb+", buffering=0) as kept:
        (out / "archive").unlink()
        tree, plain = _read_archive(file, source, kept, on_bytes)
        return write_layer(tree, ArchiveContents(plain.fileno()), out)


def _opened(path: str) -> BinaryIO:
    # O_NONBLOCK: a FIFO of that name must not make the reader wait.
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ImageCorrupt(f"{os.path.basename(path)} cannot be read: {error.strerror}") from None  # noqa: PTH119
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ImageCorrupt("an archive is no regular file")
    return os.fdopen(fd, "rb")


def _read_archive(
    file: BinaryIO, source: FromArchive, kept: BinaryIO, on_bytes: OnBytes
) -> tuple[Directory, BinaryIO]:
    """The archive's tree, and a file that holds it uncompressed and does not change any more."""
    blob, plain = hashlib.sha256(), hashlib.sha256()
    with contextlib.ExitStack() as stack:
        raw = beside(_counted(read_chunks(file), on_bytes), *([blob.update] if source.blob else []))
        stack.callback(raw.close)
        head = next(raw, b"")
        kind = compression_of(head)
        chunks: Iterator[bytes] = itertools.chain([head], raw)
        if kind != "plain":
            made = ahead(gunzip(chunks) if kind == "gzip" else unzstd(chunks))
            stack.callback(made.close)
            chunks = made
        in_place = kind == "plain" and source.private
        sinks: list[Callable[[bytes], object]] = [plain.update] if source.diff_id else []
        if not in_place:
            sinks.append(lambda chunk: _write_all(kept.fileno(), chunk))
        options = source.options
        body = beside(chunks, *sinks)
        stack.callback(body.close)
        reader = ExactReader(body, options.max_bytes + options.max_entries * 3 * BLOCK)
        tree = read_tree(reader, options)
        for _ in raw:
            pass
    _check(source.blob, blob.hexdigest())
    _check(source.diff_id, plain.hexdigest())
    return tree, file if in_place else kept


def _counted(chunks: Iterator[bytes], on_bytes: OnBytes) -> Iterator[bytes]:
    done = 0
    for chunk in chunks:
        done += len(chunk)
        on_bytes(done)
        yield chunk


def _check(expected: str | None, found: str) -> None:
    if expected is not None and expected != f"sha256:{found}":
        raise ImageCorrupt(f"a layer is not what its digest {expected} says", remedy="Fetch or save it again")


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def write_layer(root: Directory, contents: Contents, out: Path) -> Made:
    """Write a tree that was not written before, whose files ``contents`` reads, into an empty directory."""
    with (out / "data").open("xb", buffering=0) as file, DataWriter(file.fileno()) as writer:
        for path, inode in walk(root):
            if isinstance(inode, Regular) and inode.blocks is None:
                pieces = contents.pieces(path, inode) if inode.size else ()
                inode.blocks = tuple(map(writer.place, pieces))
        data = writer.finish()
    with (out / "metadata").open("x+b", buffering=1 << 20) as metadata:
        size = write_metadata(root, metadata, writer.block_of, data.size)
        metadata.seek(0)
        digest = hashlib.file_digest(metadata, "sha256").hexdigest()  # type: ignore[arg-type]
    return Made(digest, size, data.sha256, data.size, data.chunks_sha256)
