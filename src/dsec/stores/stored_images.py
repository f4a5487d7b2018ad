"""Images in a store: which layers they are made of, and how their programs start."""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from dsec.decoding import MALFORMED
from dsec.errors import Conflict, ImageCorrupt, ImageNotFound, NotFound
from dsec.images.catalogue import ImageConfig
from dsec.stores.contract import Store
from dsec.stores.layout import IMAGES, is_digest
from dsec.stores.tags import put_record

__all__ = ["ImageRecord", "check_image", "list_images", "put_image", "read_image"]


class ImageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What ``images/…`` says of an image."""

    reference: str
    """Normalised name."""
    digest: str
    """``sha256:…`` of its OCI configuration."""
    config: ImageConfig
    layers: tuple[str, ...]
    """Digests, the bottom one first."""
    at: float
    by: str
    format: Literal["dsec.image.v1"] = "dsec.image.v1"


def put_image(store: Store, record: ImageRecord, *, move: bool) -> bool:
    """Let the reference mean this image in the store, whose layers must be there; whether that changed anything.

    Raises Conflict when it means another one and it was not said that it moves.
    """

    def settle(there: ImageRecord) -> bool:
        check_image(store, there, record, move=move)
        return there == msgspec.structs.replace(record, at=there.at, by=there.by)

    return put_record(store, _name(record.reference), msgspec.json.encode(record), _decode, settle, move=move)


def check_image(store: Store, there: ImageRecord, record: ImageRecord, *, move: bool) -> None:
    """Raise Conflict when the reference means another image than this, and does not move."""
    if (there.digest, there.layers) != (record.digest, record.layers) and not move:
        raise Conflict(
            f"{record.reference} means another image in {store.title}: {there.digest[:19]}, published by {there.by}",
            phase="store",
            remedy="Say that it is to move (--move)",
            digest=there.digest,
            at=there.at,
            by=there.by,
        )


def read_image(store: Store, reference: str) -> ImageRecord:
    """The image that a normalised reference means in the store; raises ImageNotFound, ImageCorrupt."""
    name = _name(reference)
    try:
        record = _decode(store.read(name), name)
    except NotFound:
        raise ImageNotFound(
            f"{store.title} has no image {reference}", phase="store", remedy=f"Push it: dsec image push {reference}"
        ) from None
    if record.reference != reference:
        raise ImageCorrupt(f"{name} is another image's", phase="store", remedy=_AGAIN)
    return record


def list_images(store: Store) -> list[ImageRecord]:
    """Every image; raises ImageCorrupt for a record that cannot be read, for its layers may not be forgotten."""
    found = []
    for entry in store.list(IMAGES):
        try:
            found.append(_decode(store.read(entry.name), entry.name))
        except NotFound:
            continue
    return found


_AGAIN = "Push the image again with --move; its object is named by the sha256 of its whole name"


def _name(reference: str) -> str:
    # References have characters, and lengths, that not every store has in names.
    return f"{IMAGES}/{hashlib.sha256(reference.encode()).hexdigest()}"


def _decode(raw: bytes, name: str) -> ImageRecord:
    try:
        record = msgspec.json.decode(raw, type=ImageRecord)
    except MALFORMED as error:
        raise ImageCorrupt(f"{name} is damaged: {error}", phase="store", remedy=_AGAIN) from None
    if not all(is_digest(digest) for digest in record.layers):
        raise ImageCorrupt(f"{name} names what is no layer", phase="store", remedy=_AGAIN)
    return record
