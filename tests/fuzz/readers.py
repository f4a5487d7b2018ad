"""What must hold of every reader of foreign archives, documents and layers, whatever the bytes.

Each target takes some bytes, says whether they were taken for good, and raises where a promise does not hold: a
reader refuses in dsec's own words, and what it takes is what it takes again after it was written.
``tests/unit/test_readers_fuzz.py`` drives them with hypothesis, ``python -m tests.fuzz`` with atheris (``make
fuzz``), both from the seeds in ``fuzz/corpus``.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from dsec.errors import DSecError
from dsec.images import archives, oci, references
from dsec.images.store import LayerManifest, digest_of
from dsec.layering import tar
from dsec.layering.erofs_tree import LayerTree
from dsec.layering.making import FromArchive, FromLayers, make
from dsec.layering.merge import load
from dsec.layering.streams import CHUNK, ExactReader, archive_chunks, gunzip, unzstd
from dsec.layering.tar_tree import TarOptions
from dsec.stores import index, layout, stored_images
from dsec.stores.chunks import unpack_chunk

__all__ = ["CORPUS", "TARGETS"]

CORPUS = Path(__file__).parents[2] / "fuzz" / "corpus"
_MOST = 1 << 20
"""Bytes that anything may unpack to."""
_MEMORY = "/dev/shm"
_OPTIONS = TarOptions(max_bytes=_MOST, max_entries=2000, end_mark=False)


def _layer(out: Path) -> dict[bytes, tuple[object, ...]]:
    """What a layer shows, by path."""
    with LayerTree(out) as tree:
        return {
            node.path: (*node[1:8], node.mtime_ns, tree.attributes(node.nid),
                        b"".join(tree.content(node.nid)) if node.mode >> 12 == 8 else b"")
            for node in tree.walk()
        }  # fmt: skip


def layer_archive(data: bytes) -> bool:
    """An archive becomes a layer or is refused; a layer shows names below its root, and made anew is the same."""
    with tempfile.TemporaryDirectory(dir=_MEMORY) as place:
        root = Path(place)
        (root / "in.tar").write_bytes(data)
        (root / "one").mkdir()
        try:
            made = make(FromArchive(file=str(root / "in.tar"), options=_OPTIONS), root / "one")
        except DSecError:
            return False
        shown = _layer(root / "one")
        for path in shown:
            assert not {b"..", b".", b""} & set(path.split(b"/")) or not path, path
        (root / "two").mkdir()
        again = make(FromLayers(layers=[str(root / "one")]), root / "two")
        assert again == made, (again, made)
    return True


def layer_metadata(data: bytes) -> bool:
    """Metadata that comes from a store is walked within bounds, or refused."""
    with tempfile.TemporaryDirectory(dir=_MEMORY) as place:
        root = Path(place)
        (root / "metadata").write_bytes(data)
        (root / "data").write_bytes(bytes(8192))
        try:
            with LayerTree(root) as tree:
                for node in itertools.islice(tree.walk(), 5000):
                    assert b"\0" not in node.path and b".." not in node.path.split(b"/")
                    tree.attributes(node.nid)
                    if node.mode >> 12 == 8 and node.size < _MOST:
                        assert sum(map(len, tree.content(node.nid))) == node.size
                load(tree, 0)
        except DSecError:
            return False
    return True


def compressed(data: bytes) -> bool:
    """A stream unpacks within its bounds or is refused; no piece is larger than promised."""
    head, rest = data[:1], data[1:]
    chunks = iter([rest[: len(rest) // 2], rest[len(rest) // 2 :]])
    total = 0
    with contextlib.suppress(DSecError):
        for piece in gunzip(chunks) if head < b"\x80" else unzstd(chunks):
            total += len(piece)
            assert len(piece) <= CHUNK
            if total > 64 * _MOST:
                break
        return True
    return False


def archive_members(data: bytes) -> bool:
    """Members of an archive have sizes and maps that fit their data."""
    with contextlib.suppress(DSecError):
        reader = ExactReader(archive_chunks(io.BytesIO(data)), 64 * _MOST)
        for entry in tar.entries(reader):
            assert entry.stored >= 0 and entry.size >= 0
            if entry.sparse is None:
                assert entry.size == entry.stored
            reader.skip(entry.stored)
        return True
    return False


def saved_image(data: bytes) -> bool:
    """The name in an archive that `docker save` might have made."""
    with tempfile.NamedTemporaryFile(dir=_MEMORY) as file:
        file.write(data)
        file.flush()
        with contextlib.suppress(DSecError):
            return archives.archive_name(Path(file.name)) is not None
    return False


def image_layout(data: bytes) -> bool:
    """Index, manifest and configuration of an image, each with the digest of what follows it as ``@NEXT``."""
    index_json, *documents = data.split(b"\0")[:3]
    with tempfile.TemporaryDirectory(dir=_MEMORY) as place:
        root = Path(place)
        blobs = root / "blobs" / "sha256"
        blobs.mkdir(parents=True)
        following = b""
        for document in reversed(documents):
            document = document.replace(b"@NEXT", following)
            digest = hashlib.sha256(document).hexdigest()
            (blobs / digest).write_bytes(document)
            following = b"sha256:" + digest.encode()
        (root / "index.json").write_bytes(index_json.replace(b"@NEXT", following))
        with contextlib.suppress(DSecError):
            image = oci.read_layout(root, architecture="amd64")
            assert len(image.layers) <= 500
            for layer in image.layers:
                oci.blob_path(root, layer.blob)
                oci.blob_path(root, layer.diff_id)
            return True
    return False


def chunk_index(data: bytes) -> bool:
    """An index that is taken is written as it was; no place is beyond a blob."""
    length = int.from_bytes(data[:2], "little")
    told, raw = data[2 : 2 + length], data[2 + length :]
    with contextlib.suppress(DSecError):
        found = index.decode_index(raw)
        assert index.encode_index(found) == raw
        assert all(size <= index.MAX_BLOB for size in found.blob_sizes().values())
        index.check_index(found, layout.decode_manifest(told, hashlib.sha256(told).hexdigest()))
        return True
    return False


def store_records(data: bytes) -> bool:
    """What a store says of layers, tags and images."""
    taken = False
    with contextlib.suppress(msgspec.DecodeError, RecursionError):
        told = msgspec.json.decode(data, type=LayerManifest)
        assert layout.decode_manifest(data, digest_of(told)) == told
        taken = True
    with contextlib.suppress(DSecError):
        layout.decode_manifest(data, "0" * 64)
    with contextlib.suppress(DSecError):
        assert layout.is_digest(layout.decode_tag(data, "tags/workspace/a/1").digest)
        taken = True
    with contextlib.suppress(DSecError):
        record = stored_images._decode(data, "images/x")
        assert all(map(layout.is_digest, record.layers))
        taken = True
    return taken


def chunk(data: bytes) -> bool:
    """A stored chunk is what its digest says or is refused, in no more memory than it is long."""
    length = int.from_bytes(data[:3], "little") % (256 << 10)
    with contextlib.suppress(DSecError):
        assert len(unpack_chunk(data[3:], length, hashlib.sha256(data[3:]).digest())) == length
        return True
    return False


def names(data: bytes) -> bool:
    """Names of images, layers and sources have one spelling: read again it is the same."""
    text = data.decode(errors="replace")
    taken = False
    for parse in (references.parse_image, references.parse_layer, references.parse_layer_choice,
                  references.parse_source):  # fmt: skip
        with contextlib.suppress(DSecError):
            found = parse(text)
            assert parse(str(found)) == found, text
            taken = True
    return taken


TARGETS: dict[str, Callable[[bytes], bool]] = {
    each.__name__: each
    for each in (
        layer_archive, layer_metadata, compressed, archive_members, saved_image, image_layout, chunk_index,
        store_records, chunk, names,
    )
}  # fmt: skip
"""By the name of their corpus; those that Rust reads too share it."""
