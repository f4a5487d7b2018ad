"""Layers of what sandboxes have written: ``dsec.layering.packing`` run over a snapshot, its result published."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from dsec.api.packing import Provenance
from dsec.errors import error_from_wire
from dsec.images.catalogue import LayerEnvironment, LayerTag
from dsec.images.disk import disk_full, full_disk_typed
from dsec.images.programs import answered
from dsec.images.references import LayerReference
from dsec.images.store import FORMAT, Blob, LayerManifest, digest_of
from dsec.images.threads import in_thread
from dsec.images.workshop import Workshop
from dsec.layering.packing.job import JOB, Answer, Packed, PackFailed, PackJob
from dsec.layering.packing.report import Report
from dsec.layering.packing.residue import DEFAULT_RULES, Rule, Rules
from dsec.layering.placing import CHUNK_SIZE

__all__ = ["DEFAULT_RULES", "Packer", "Packing", "Report", "Rule", "Rules"]

_decode = msgspec.json.Decoder(Answer).decode


class Packing(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be packed, and how."""

    reference: LayerReference
    snapshot_id: str
    rules: tuple[Rule, ...]
    keep: tuple[str, ...]
    below: tuple[str, ...]
    """Digests of layers that become part of it, lowest first; the caller holds them."""
    environment: LayerEnvironment
    provenance: Provenance
    """Without what only the result tells."""


class Packer:
    """Packs ``workspace/…`` and ``toolkit/…`` layers on this node."""

    def __init__(self, workshop: Workshop) -> None:
        self._config = workshop.config
        self._tools = workshop.tools
        self._store = workshop.store
        self._catalogue = workshop.catalogue
        self._holds = workshop.holds

    async def pack(self, asked: Packing) -> tuple[LayerTag, Provenance, Report]:
        """See ``Images.pack_layer``."""
        job = PackJob(
            rules=asked.rules,
            keep=asked.keep,
            below=tuple(str(self._store.path(each)) for each in asked.below),
            max_entries=self._config.max_entries,
            max_bytes=self._config.max_image_bytes,
        )
        with full_disk_typed(), self._holds.session() as hold, self._store.staging() as staged:
            packed = await self._run(job, asked.snapshot_id, staged)
            manifest = _manifest(packed)
            digest = digest_of(manifest)
            hold(digest)
            await in_thread(lambda _: self._store.publish(staged, manifest))
            provenance = msgspec.structs.replace(
                asked.provenance,
                removed_files=packed.report.removed_files,
                removed_bytes=packed.report.removed_bytes,
            )
            self._catalogue.put_layer(digest, manifest.size)
            self._catalogue.put_provenance(digest, provenance)
            tag = self._catalogue.put_tag(str(asked.reference), digest, asked.environment)
        return tag, provenance, packed.report

    async def _run(self, job: PackJob, snapshot_id: str, staged: Path) -> Packed:
        (staged / JOB).write_bytes(msgspec.json.encode(job))
        argv = _command(staged, snapshot_id)
        timeout_s = self._config.build_timeout_s
        running = self._tools.run("pack", argv, timeout_s=timeout_s)
        answer = await answered(running, _decode, "packing", timeout_s=timeout_s, phase="pack")
        if isinstance(answer, PackFailed):
            raise disk_full() if answer.disk_full else error_from_wire(answer.error)
        return answer


def _command(staged: Path, snapshot_id: str) -> Sequence[str]:
    # -P: a directory of that name where the node was started is not this program.
    return [sys.executable, "-P", "-m", "dsec.layering.packing", str(staged), "--snapshot", snapshot_id]


def _manifest(packed: Packed) -> LayerManifest:
    made = packed.made
    return LayerManifest(
        FORMAT,
        Blob(made.metadata_sha256, made.metadata_size),
        Blob(made.data_sha256, made.data_size),
        CHUNK_SIZE,
        made.chunks_sha256,
    )
