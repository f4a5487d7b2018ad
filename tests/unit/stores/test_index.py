"""The chunk index: golden files, and whatever a hostile store may hold."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.errors import ImageCorrupt
from dsec.images.store import CHUNK_SIZE, Blob, LayerManifest
from dsec.stores.index import (
    MAX_BLOB,
    ChunkIndex,
    StoredChunk,
    check_index,
    decode_index,
    encode_index,
    zero_digest,
)

GOLDEN: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parents[2] / "golden" / "chunk_index.json").read_text()
)


def _manifest(size: int, digests: list[bytes]) -> LayerManifest:
    chunks = hashlib.sha256(b"".join(digests)).hexdigest()
    return LayerManifest("dsec.layer.v1", Blob("0" * 64, 1), Blob("0" * 64, size), CHUNK_SIZE, chunks)


@pytest.mark.parametrize("case", GOLDEN["good"], ids=lambda case: str(case["name"]))
def test_golden_index_is_read_and_written_alike(case: dict[str, Any]) -> None:
    """A golden file means what stands beside it, and encoding that gives the file's bytes again."""
    raw = bytes.fromhex(case["hex"])
    index = decode_index(raw)
    assert index.chunk_size == case["chunk_size"]
    assert list(index.blobs) == case["blobs"]
    assert [(c.digest.hex(), c.blob, c.length, c.offset) for c in index.chunks] == [
        (c["sha256"], c["blob"], c["stored_length"], c["offset"]) for c in case["chunks"]
    ]
    assert encode_index(index) == raw


@pytest.mark.parametrize("case", GOLDEN["layers"], ids=lambda case: str(case["name"]))
def test_golden_index_is_held_against_its_layer(case: dict[str, Any]) -> None:
    """An index is that of a layer when its digests, its size and its zeros are; else it is refused."""
    manifest = LayerManifest(
        "dsec.layer.v1", Blob("0" * 64, 1), Blob("0" * 64, case["data_size"]), CHUNK_SIZE, case["chunks_sha256"]
    )
    index = decode_index(bytes.fromhex(case["hex"]))
    if case["is_its"]:
        check_index(index, manifest)
    else:
        with pytest.raises(ImageCorrupt):
            check_index(index, manifest)


@pytest.mark.parametrize("case", GOLDEN["bad"], ids=lambda case: str(case["name"]))
def test_damaged_index_is_refused(case: dict[str, Any]) -> None:
    """Each golden file of the damaged ones is ImageCorrupt."""
    with pytest.raises(ImageCorrupt):
        decode_index(bytes.fromhex(case["hex"]))


_digests = st.binary(min_size=32, max_size=32)


@st.composite
def _indexes(draw: st.DrawFn) -> ChunkIndex:
    blobs = tuple(each.hex() for each in draw(st.lists(_digests, min_size=1, max_size=4, unique=True)))
    stored = st.builds(
        StoredChunk,
        _digests,
        st.integers(0, len(blobs) - 1),
        st.integers(1, CHUNK_SIZE),
        st.integers(0, MAX_BLOB - CHUNK_SIZE),
    )
    zeros = st.builds(StoredChunk, _digests, st.just(0), st.just(0), st.just(0))
    return ChunkIndex(CHUNK_SIZE, blobs, tuple(draw(st.lists(stored | zeros, max_size=20))))


@given(_indexes())
def test_what_is_written_is_read(index: ChunkIndex) -> None:
    """Any well-formed index survives the way to bytes and back."""
    assert decode_index(encode_index(index)) == index


@given(st.binary(max_size=400) | st.binary(max_size=200).map(b"DSCHNK01".__add__))
def test_any_bytes_are_an_index_or_refused(raw: bytes) -> None:
    """Whatever the bytes, the answer is an index of exactly those bytes or ImageCorrupt."""
    try:
        index = decode_index(raw)
    except ImageCorrupt:
        return
    assert encode_index(index) == raw
    assert all(size <= MAX_BLOB for size in index.blob_sizes().values())


@given(_indexes(), st.data())
def test_a_changed_byte_never_passes_for_the_layer(index: ChunkIndex, data: st.DataObject) -> None:
    """A byte changed in a digest is found out by the layer's manifest."""
    real = [chunk for chunk in index.chunks if chunk.length]
    if not real:
        return
    chunks = [chunk._replace(digest=zero_digest(CHUNK_SIZE)) if not chunk.length else chunk for chunk in index.chunks]
    manifest = _manifest(len(chunks) * CHUNK_SIZE, [chunk.digest for chunk in chunks])
    whole = ChunkIndex(index.chunk_size, index.blobs, tuple(chunks))
    check_index(whole, manifest)
    raw = bytearray(encode_index(whole))
    at = 24 + 32 * len(index.blobs) + 48 * data.draw(st.integers(0, len(chunks) - 1)) + data.draw(st.integers(0, 31))
    raw[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ImageCorrupt):
        check_index(decode_index(bytes(raw)), manifest)


def test_an_index_of_millions_is_checked_before_it_is_built() -> None:
    """A head that claims 2**60 chunks costs nothing: its length is held against the bytes first."""
    with pytest.raises(ImageCorrupt, match="length"):
        decode_index(b"DSCHNK01" + (CHUNK_SIZE).to_bytes(4, "little") + bytes(4) + (1 << 60).to_bytes(8, "little"))
