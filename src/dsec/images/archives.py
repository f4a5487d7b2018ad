"""A client's archives before they are imported: whose name they bear, and a layout out of its tar."""

from __future__ import annotations

import re
from io import FileIO
from pathlib import Path
from threading import Event

import msgspec

from dsec.decoding import MALFORMED
from dsec.errors import ImageCorrupt
from dsec.images.config import ImagesConfig
from dsec.layering import tar
from dsec.layering.names import split_name
from dsec.layering.streams import ExactReader, archive_chunks

__all__ = ["archive_name", "unpack_layout"]

_MANIFEST_LIMIT = 8 << 20
_NO_LIMIT = 1 << 62
_BLOBS = "blobs/sha256"
_BLOB = re.compile(r"blobs/sha256/[0-9a-f]{64}")


class _Saved(msgspec.Struct, frozen=True):
    names: list[str] | None = msgspec.field(default=None, name="RepoTags")


def archive_name(file: Path) -> str | None:
    """The first name in a ``docker save`` archive's ``manifest.json``; None if it has none. Blocks.

    Raises ImageCorrupt when the archive is cut short, or is none.
    """
    try:
        with file.open("rb") as opened:
            reader = ExactReader(archive_chunks(opened), _NO_LIMIT)
            for entry in tar.entries(reader):
                if entry.name == b"manifest.json" and entry.stored <= _MANIFEST_LIMIT:
                    return _first_name(reader.read(entry.stored))
                reader.skip(entry.stored)
    except OSError as error:
        raise ImageCorrupt(f"{file.name} cannot be read: {error.strerror}") from None
    raise ImageCorrupt(f"{file.name} has no manifest.json", remedy="Make it with docker save")


def _first_name(document: bytes) -> str | None:
    try:
        images = msgspec.json.decode(document, type=list[_Saved])
    except MALFORMED as error:
        raise ImageCorrupt(f"the archive's manifest.json is malformed: {error}") from None
    return next((name for image in images for name in image.names or ()), None)


def unpack_layout(archive: Path, directory: Path, config: ImagesConfig, stop: Event) -> Path:
    """Unpack the tar of an OCI layout into a new directory, and return it; blocks.

    Only what a layout is made of is taken: ``index.json``, ``oci-layout``, ``blobs/sha256/HEX``, regular files all.
    """
    (directory / _BLOBS).mkdir(mode=0o700, parents=True)
    left = config.max_entries
    with archive.open("rb") as file:
        reader = ExactReader(archive_chunks(file), config.max_image_bytes + left * 3 * tar.BLOCK)
        for entry in tar.entries(reader):
            left -= 1
            if left < 0:
                raise ImageCorrupt("the layout holds more files than the node allows", remedy="Raise max_entries")
            if stop.is_set():
                raise ImageCorrupt("unpacking was stopped")
            place = _place_in_layout(entry)
            if place is None:
                reader.skip(entry.stored)
            else:
                with (directory / place).open("wb", buffering=0) as out:
                    for piece in reader.pieces(entry.stored):
                        _write_all(out, piece)
        reader.drain()
    archive.unlink()
    return directory


def _place_in_layout(entry: tar.Entry) -> str | None:
    """Where in the directory a member belongs; None for one that no layout needs."""
    name = b"/".join(split_name(entry.name)).decode(errors="replace")
    if name not in ("index.json", "oci-layout") and not _BLOB.fullmatch(name):
        return None
    if entry.kind != tar.REGULAR or entry.sparse is not None:
        raise ImageCorrupt(f"the layout's {name} is no regular file")
    return name


def _write_all(out: FileIO, data: memoryview) -> None:
    while data:
        data = data[out.write(data) :]
