"""Layers that users build: a directory's archive, laid over a path, under a tag."""

from __future__ import annotations

from collections.abc import AsyncIterator
from io import FileIO
from pathlib import Path

from dsec.errors import ImageCorrupt, InvalidArgument
from dsec.images.catalogue import LayerEnvironment, LayerTag
from dsec.images.disk import full_disk_typed
from dsec.images.references import LayerReference
from dsec.images.store import private_directory
from dsec.images.threads import in_thread
from dsec.images.workshop import Workshop
from dsec.layering.making import FromArchive
from dsec.layering.names import Parts, split_name
from dsec.layering.tar_tree import TarOptions

__all__ = ["LayerBuilder", "parse_at", "spool"]

_PREFIX = "layer-"
_REMEDY = "Make the archive anew: whole, with names that stay below its root, as `tar -cf FILE -C DIR .` does"
_MAX_ID = 65_535
_BATCH = 4 << 20


class LayerBuilder:
    """Builds ``workspace/…`` and ``toolkit/…`` layers on this node."""

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop
        self._config = workshop.config
        self._catalogue = workshop.catalogue
        self._holds = workshop.holds

    async def build(
        self,
        reference: LayerReference,
        archive: AsyncIterator[bytes],
        at: str,
        owner: tuple[int, int] | None,
        environment: LayerEnvironment,
    ) -> LayerTag:
        """See ``Images.build_layer``."""
        options = TarOptions(
            max_bytes=self._config.max_image_bytes,
            max_entries=self._config.max_entries,
            below=tuple(each.decode() for each in parse_at(at)),
            owner=None if owner is None else _checked_owner(owner),
            whiteouts=False,
        )
        with (
            full_disk_typed(),
            private_directory(self._config.scratch_dir, _PREFIX) as scratch,
            self._holds.session() as hold,
        ):
            spooled = scratch / "archive"
            await spool(archive, spooled, self._config.max_image_bytes)
            source = FromArchive(file=str(spooled), options=options, private=True)
            try:
                digest, manifest = await self._workshop.make_layer(source, hold)
            except ImageCorrupt as error:
                # It is the caller's own file: no registry has another one.
                raise ImageCorrupt(error.message, phase=error.phase, remedy=_REMEDY) from error
            self._catalogue.put_layer(digest, manifest.size)
            return self._catalogue.put_tag(str(reference), digest, environment)


def parse_at(at: str) -> Parts:
    """The components of the absolute path that a layer is laid over; raises InvalidArgument."""
    if not at.startswith("/"):
        raise InvalidArgument(f"{at!r} is not an absolute path", remedy="Give --at an absolute path", argument="at")
    try:
        return split_name(at.encode())
    except (ImageCorrupt, UnicodeEncodeError):
        raise InvalidArgument(
            f"{at!r} cannot be laid over", remedy="Give --at a path without .. and NUL", argument="at"
        ) from None


def _checked_owner(owner: tuple[int, int]) -> tuple[int, int]:
    if not all(0 <= each <= _MAX_ID for each in owner):
        raise InvalidArgument(
            f"owner {owner} is out of range",
            remedy=f"Use numbers from 0 to {_MAX_ID}",
            argument="owner",
        )
    return owner


async def spool(stream: AsyncIterator[bytes], file: Path, limit: int) -> int:
    """Write a client's stream to a file; returns its size. Raises ImageCorrupt beyond ``limit`` bytes."""
    total = 0
    with file.open("xb", buffering=0) as out:
        batch = bytearray()
        async for chunk in stream:
            total += len(chunk)
            if total > limit:
                raise ImageCorrupt("the archive is larger than the node allows", remedy="Raise max_image_bytes")
            batch += chunk
            if len(batch) >= _BATCH:
                await _flush_batch(out, batch)
        await _flush_batch(out, batch)
    return total


async def _flush_batch(out: FileIO, batch: bytearray) -> None:
    data = bytes(batch)
    batch.clear()
    await in_thread(lambda _: _write_all(out, data))


def _write_all(out: FileIO, data: bytes) -> None:
    view = memoryview(data)
    with full_disk_typed():
        while view:
            view = view[out.write(view) :]
