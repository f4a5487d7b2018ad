"""Making a layer: ``dsec.layering`` run as a program, its result checked in and published."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from dsec.errors import error_from_wire
from dsec.images.disk import disk_full
from dsec.images.holds import Hold
from dsec.images.programs import answered
from dsec.images.store import FORMAT, Blob, LayerManifest, LayerStore, digest_of
from dsec.images.threads import in_thread
from dsec.images.tools import Tools
from dsec.layering.job import JOB, Answer, Failed, Job
from dsec.layering.making import FromDirectory, Made, Source
from dsec.layering.placing import CHUNK_SIZE

__all__ = ["OnRead", "build_layer", "make_layer"]

_MAX_ENTRIES = 4_000_000
_decode = msgspec.json.Decoder(Answer).decode
OnRead = Callable[[int], None]
"""Called with the bytes of the archive read so far."""


async def build_layer(
    tools: Tools, store: LayerStore, tree: Path, hold: Hold, *, timeout_s: float, max_entries: int = _MAX_ENTRIES
) -> tuple[str, LayerManifest]:
    """Make and publish a layer that holds what the directory ``tree`` holds. As ``make_layer``."""
    source = FromDirectory(directory=str(tree), max_entries=max_entries)
    return await make_layer(tools, store, source, hold, timeout_s=timeout_s)


async def make_layer(
    tools: Tools,
    store: LayerStore,
    source: Source,
    hold: Hold,
    *,
    timeout_s: float,
    on_read: OnRead | None = None,
) -> tuple[str, LayerManifest]:
    """Make and publish a layer; returns its digest and manifest.

    The digest is held before the layer is published, so it cannot go again before the caller has recorded it.
    Raises ImageCorrupt, Unsupported, CapacityError when the disk is full, DeadlineExceeded, NodeError.
    """
    with store.staging() as staged:
        made = await _run(tools, source, staged, timeout_s, on_read)
        manifest = LayerManifest(
            FORMAT,
            Blob(made.metadata_sha256, made.metadata_size),
            Blob(made.data_sha256, made.data_size),
            CHUNK_SIZE,
            made.chunks_sha256,
        )
        digest = digest_of(manifest)
        hold(digest)
        await in_thread(lambda _: store.publish(staged, manifest))
        return digest, manifest


async def _run(tools: Tools, source: Source, staged: Path, timeout_s: float, on_read: OnRead | None) -> Made:
    (staged / JOB).write_bytes(msgspec.json.encode(Job(source)))
    # -P: a directory of that name where the node was started is not this program.
    argv = [sys.executable, "-P", "-m", "dsec.layering", str(staged)]
    running = tools.run("mkfs", argv, timeout_s=timeout_s, log=None if on_read is None else _reads(on_read))
    answer = await answered(running, _decode, "making a layer", timeout_s=timeout_s, phase="image")
    if isinstance(answer, Failed):
        raise disk_full() if answer.disk_full else error_from_wire(answer.error)
    return answer


def _reads(on_read: OnRead) -> Callable[[str], None]:
    def log(line: str) -> None:
        word, _, number = line.partition(" ")
        if word == "read":
            with contextlib.suppress(ValueError):
                on_read(int(number))

    return log
