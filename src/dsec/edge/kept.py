"""Disks of ended sandboxes that are kept: counted, looked for, and what a new sandbox on one of them is made of."""

from __future__ import annotations

from collections.abc import Sequence

from dsec.api.types import CreateRequest
from dsec.backends.contract import DiskKeeping
from dsec.edge.caller import calling
from dsec.edge.core import Core
from dsec.edge.environment import Environment
from dsec.edge.faults import fault
from dsec.edge.record import SandboxRecord
from dsec.errors import Conflict, DSecError, InvalidArgument, NotFound, Unsupported
from dsec.images.references import is_base_reference, parse_image, parse_layer_choice

__all__ = ["KeptDisks", "check_kept", "environment_on"]


class KeptDisks:
    """What the runtime keeps of ended sandboxes. Its own timers remove them."""

    def __init__(self, core: Core) -> None:
        self._core = core

    @property
    def _backend(self) -> DiskKeeping:
        backend = self._core.backend
        if not isinstance(backend, DiskKeeping):
            raise Unsupported("this kind of sandbox keeps no disks")
        return backend

    def adopt(self) -> None:
        """What this boot's tombstones say is kept counts again."""
        for sandbox_id in self._core.records.kept():
            record = self._core.records.sandbox(sandbox_id)
            if record is not None:
                self._core.hold_disk(record)

    async def compare(self) -> None:
        """Count no more what was removed while nobody listened."""
        # Taken before the runtime is asked: what begins to be kept after that is not missing.
        recorded = self._core.records.kept()
        found = {each.sandbox_id for each in await self._backend.disks()}
        for sandbox_id in recorded:
            if sandbox_id not in found:
                self._core.note_disk_removed(sandbox_id)

    async def remove(self, sandbox_ids: Sequence[str]) -> None:
        """Keep these no more. Harmless for those that are not kept."""
        kept = [each for each in sandbox_ids if each in self._core.kept]
        if kept:
            await self._backend.remove_disks(kept)
            fault("edge.unkeep.removed")
        for each in kept:
            self._core.note_disk_removed(each)

    def environment(self, request: CreateRequest) -> Environment:
        """What a sandbox on a kept disk is made of; raises NotFound, InvalidArgument."""
        source = self._core.kept.get(request.from_disk or "")
        if source is None or not calling().sees(source.project):
            raise NotFound(
                f"no disk of {(request.from_disk or '')[:80]} is kept", phase="disk",
                remedy="stop(keep='disk') keeps one, for keep_s",
            )  # fmt: skip
        return environment_on(source, request)


def environment_on(source: SandboxRecord, request: CreateRequest) -> Environment:
    """The former sandbox's layers and defaults, under what the caller says. Pure.

    The image itself is not asked: it may be gone, or its name mean another by now. Raises InvalidArgument for another
    image, for layers, and for ``command="image"``.
    """
    if _name(request.image) != source.image:
        raise InvalidArgument(
            f"the disk of {source.id} lies over {source.image}, not over {request.image[:200]}", phase="disk",
            remedy=f"Give {source.image} as the image",
        )  # fmt: skip
    pinned = _pinned(request.image)
    if pinned is not None and pinned != source.image_digest.removeprefix("sha256:"):
        raise InvalidArgument(
            f"the disk of {source.id} lies over {source.image}@{source.image_digest}, not over {request.image[:200]}",
            phase="disk", remedy=f"Give {source.image} as the image",
        )  # fmt: skip
    if request.workspace is not None or request.toolkits:
        raise InvalidArgument("a kept disk has its layers: leave workspace and toolkits out", phase="disk")
    if request.command == "image":
        raise InvalidArgument("on a kept disk the command has to be given in words", phase="disk")
    return Environment(
        image=source.image,
        image_digest=source.image_digest,
        layers=source.layers,
        composed=source.composed,
        workspace=source.workspace,
        env=source.env | request.env,
        workdir=request.workdir or source.workdir,
        user=source.user if request.user is None else request.user,
        command=request.command,
    )


def _name(reference: str) -> str:
    try:
        if is_base_reference(reference):
            choice = parse_layer_choice(reference)
            return str(choice.reference or choice)
        return str(parse_image(reference))
    except DSecError:
        return reference


def _pinned(reference: str) -> str | None:
    """The digest that a base layer's name has beside a tag."""
    if not is_base_reference(reference):
        return None
    choice = parse_layer_choice(reference)
    return choice.digest if choice.reference is not None else None


def check_kept(record: SandboxRecord) -> None:
    """Raise Conflict where a stop that was to keep the disk has found none to keep."""
    if record.kept_until is None:
        raise Conflict(
            f"nothing of the sandbox's disk is kept: it had ended ({record.cause}) without that, or its time is over",
            sandbox_id=record.id,
        )
