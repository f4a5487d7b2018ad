"""The names of a store's objects, and what its small ones say. Pure; decision 0041 is its text."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from dsec.decoding import MALFORMED
from dsec.errors import ImageCorrupt, InvalidArgument
from dsec.images.catalogue import LayerEnvironment, Provenance
from dsec.images.references import LayerReference, parse_layer
from dsec.images.store import LayerManifest, digest_of

__all__ = [
    "BLOBS",
    "CLAIMS",
    "DOOMED",
    "IMAGES",
    "LAYERS",
    "TAGS",
    "TagRecord",
    "blob_name",
    "decode_manifest",
    "decode_tag",
    "index_name",
    "is_digest",
    "layer_folder",
    "manifest_name",
    "metadata_name",
    "tag_name",
    "tag_of",
]

LAYERS = "layers"
BLOBS = "blobs"
TAGS = "tags"
IMAGES = "images"
"""``images/SHA256``: an image, under the digest of its reference."""
CLAIMS = "claims"
"""``claims/DIGEST/NODE-ID``: that node reads this layer on demand, so it stays without a tag too."""
DOOMED = "doomed"
"""Marks of what the next clean-up but one removes: ``doomed/blobs/SHA256``, ``doomed/layers/DIGEST``."""

_HEX = re.compile(r"[0-9a-f]{64}")


class TagRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a tag says."""

    digest: str
    """Of the layer: 64 lower-case hex digits."""
    at: float
    """When it was published, by its publisher's clock, seconds since 1970."""
    by: str
    """Node that published it."""
    environment: LayerEnvironment = LayerEnvironment()
    """What it brings to the environment of sandboxes."""
    provenance: Provenance | None = None
    """Where the layer comes from, if it was packed from a sandbox."""
    format: Literal["dsec.tag.v1"] = "dsec.tag.v1"


def is_digest(text: str) -> bool:
    """Whether it is 64 lower-case hex digits."""
    return _HEX.fullmatch(text) is not None


def layer_folder(digest: str) -> str:
    """Where a layer's objects lie; raises InvalidArgument for what is no digest."""
    if not is_digest(digest):
        raise InvalidArgument(f"{digest[:80]!r} is not a layer's digest", argument="layer")
    return f"{LAYERS}/{digest}"


def manifest_name(digest: str) -> str:
    """``layer.json``, written last: a layer whose manifest is there is whole."""
    return f"{layer_folder(digest)}/layer.json"


def index_name(digest: str) -> str:
    """The chunk index."""
    return f"{layer_folder(digest)}/chunks"


def metadata_name(digest: str) -> str:
    """The layer's metadata, one zstd frame."""
    return f"{layer_folder(digest)}/metadata.zst"


def blob_name(sha256: str) -> str:
    """A pack of chunks, named by its own digest."""
    return f"{BLOBS}/{sha256}"


def tag_name(reference: LayerReference) -> str:
    """A tag's record."""
    return f"{TAGS}/{reference.kind}/{reference.name}/{reference.version}"


def tag_of(name: str) -> LayerReference | None:
    """The tag whose record has this name; None for what somebody else put there."""
    kind, _, rest = name.removeprefix(f"{TAGS}/").partition("/")
    own, _, version = rest.partition("/")
    try:
        return parse_layer(f"{kind}/{own}:{version}")
    except InvalidArgument:
        return None


def decode_manifest(raw: bytes, digest: str) -> LayerManifest:
    """``layer.json`` of a store, held against the digest it was asked for; raises ImageCorrupt."""
    try:
        manifest = msgspec.json.decode(raw, type=LayerManifest)
    except MALFORMED as error:
        raise ImageCorrupt(f"layer.json of {digest} is damaged: {error}", phase="store") from None
    if digest_of(manifest) != digest:
        raise ImageCorrupt(
            f"layer.json of {digest} is another layer's", phase="store", remedy="Remove it from the store, push again"
        )
    return manifest


def decode_tag(raw: bytes, name: str) -> TagRecord:
    """A tag's record; raises ImageCorrupt."""
    remedy = f"Push {tag_of(name) or 'it'} again with --move, or remove the tag: dsec layer rm REF --store NAME"
    try:
        record = msgspec.json.decode(raw, type=TagRecord)
    except MALFORMED as error:
        raise ImageCorrupt(f"{name} is damaged: {error}", phase="store", remedy=remedy) from None
    if not is_digest(record.digest):
        raise ImageCorrupt(f"{name} names no layer", phase="store", remedy=remedy)
    return record
