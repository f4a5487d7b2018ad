"""The tags of a store: names that move, each by one conditional write."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

import msgspec

from dsec.errors import Conflict, ImageCorrupt, NotFound
from dsec.images.references import LayerReference
from dsec.stores.contract import Store
from dsec.stores.layout import TAGS, TagRecord, decode_tag, tag_name, tag_of

__all__ = ["drop_tag", "list_tags", "put_record", "put_tag", "read_tag", "versions_of"]

_TRIES = 5
R = TypeVar("R")


def _refuse(error: ImageCorrupt) -> None:
    raise error


def read_tag(store: Store, reference: LayerReference) -> TagRecord:
    """What a tag says; raises NotFound, ImageCorrupt."""
    name = tag_name(reference)
    try:
        return decode_tag(store.read(name), name)
    except NotFound:
        raise NotFound(
            f"{store.title} has no layer {reference}", phase="store", remedy=f"Push it: dsec layer push {reference}"
        ) from None


def put_tag(store: Store, reference: LayerReference, record: TagRecord, *, move: bool) -> bool:
    """Let the tag mean ``record``; whether that changed anything.

    A tag that means another layer is moved only if told to; else raises Conflict, with ``digest``, ``at`` and ``by``
    of what it means. So of two nodes that publish different layers under one tag, the second is told.
    """

    def settle(there: TagRecord) -> bool:
        if there.digest != record.digest and not move:
            raise _taken(store, reference, there)
        return there == msgspec.structs.replace(record, at=there.at, by=there.by)

    return put_record(store, tag_name(reference), msgspec.json.encode(record), decode_tag, settle, move=move)


def put_record(
    store: Store,
    name: str,
    content: bytes,
    decode: Callable[[bytes, str], R],
    settle: Callable[[R], bool],
    *,
    move: bool,
) -> bool:
    """Replace a record by one conditional write; whether that changed anything.

    ``settle`` is asked about what is there: whether it is the same already, or it raises. One that cannot be read is
    replaced only with ``move``, else it is ImageCorrupt. Raises Conflict when others move it all the time.
    """
    for _ in range(_TRIES):
        entry = store.stat(name)
        if entry is not None:
            try:
                there = decode(store.read(name), name)
            except NotFound:
                continue
            except ImageCorrupt:
                if not move:
                    raise
            else:
                if settle(there):
                    return False
        if store.swap(name, content, None if entry is None else entry.mark):
            return True
    raise Conflict(f"{store.title}: others are moving {name}", phase="store", remedy="Ask again")


def _taken(store: Store, reference: LayerReference, there: TagRecord) -> Conflict:
    return Conflict(
        f"{reference} means another layer in {store.title}: {there.digest[:12]}, published by {there.by}",
        phase="store",
        remedy="Push under another version, or say that the tag is to move (--move)",
        digest=there.digest,
        at=there.at,
        by=there.by,
    )


def drop_tag(store: Store, reference: LayerReference) -> None:
    """Remove a tag, also one that cannot be read; its layer goes with the clean-up a day later.

    What is removed is what was seen: a tag that somebody moves meanwhile is looked at again. Raises NotFound, and
    Conflict when others move it all the time.
    """
    name = tag_name(reference)
    for _ in range(_TRIES):
        entry = store.stat(name)
        with contextlib.suppress(ImageCorrupt):
            read_tag(store, reference)
        if entry is not None and store.remove(name, entry.mark):
            return
    raise Conflict(f"{store.title}: others are moving {name}", phase="store", remedy="Ask again")


def list_tags(store: Store, damaged: Callable[[ImageCorrupt], None] = _refuse) -> dict[LayerReference, TagRecord]:
    """Every tag that can be read; ``damaged`` is told of each one that cannot, and else that is raised.

    Whoever concludes from them what is not needed has to raise: nobody knows which layer such a tag means.
    """
    found: dict[LayerReference, TagRecord] = {}
    for entry in store.list(TAGS):
        reference = tag_of(entry.name)
        if reference is None:
            continue
        try:
            found[reference] = decode_tag(store.read(entry.name), entry.name)
        except NotFound:
            continue
        except ImageCorrupt as error:
            damaged(error)
    return found


def versions_of(store: Store, reference: LayerReference) -> list[str]:
    """Digests of the other versions of a layer: where most of its chunks are likely to lie already."""
    records = []
    for entry in store.list(f"{TAGS}/{reference.kind}/{reference.name}"):
        try:
            records.append(decode_tag(store.read(entry.name), entry.name))
        except (NotFound, ImageCorrupt):
            continue
    return [each.digest for each in sorted(records, key=lambda each: each.at, reverse=True)]
