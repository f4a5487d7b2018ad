"""A client's archives before they are imported: whose name they bear, and a layout out of its tar."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import msgspec

from dsec.errors import ImageCorrupt
from dsec.images import tar
from dsec.images.config import ImagesConfig
from dsec.images.streams import ExactReader, archive_chunks
from dsec.images.unpack import UnpackOptions, unpack

__all__ = ["archive_name", "unpack_layout"]

_MANIFEST_LIMIT = 8 << 20
_NO_LIMIT = 1 << 62


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
    except msgspec.DecodeError as error:
        raise ImageCorrupt(f"the archive's manifest.json is malformed: {error}") from None
    return next((name for image in images for name in image.names or ()), None)


def unpack_layout(archive: Path, directory: Path, config: ImagesConfig, stop: Event) -> Path:
    """Unpack the tar of an OCI layout into a new directory, and return it; blocks."""
    directory.mkdir(mode=0o700)
    options = UnpackOptions(
        max_bytes=config.max_image_bytes, max_entries=config.max_entries, owner=(0, 0), whiteouts=False
    )
    with archive.open("rb") as file:
        unpack(archive_chunks(file), str(directory), options, stop)
    archive.unlink()
    return directory
