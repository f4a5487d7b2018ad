"""Making a layer from a directory: EROFS metadata and data as two files, the same bytes for the same tree."""

from __future__ import annotations

from pathlib import Path

from dsec.errors import DeadlineExceeded, NodeError
from dsec.images.disk import disk_full
from dsec.images.holds import Hold
from dsec.images.store import LayerManifest, LayerStore, describe, digest_of
from dsec.images.tar_fields import END_OF_TIME_S
from dsec.images.threads import in_thread
from dsec.images.tools import Tools

__all__ = ["build_layer", "mkfs_argv"]

# All layers have it: a random one would give equal trees different digests.
_UUID = "d5ec0000-0000-4000-8000-000000000000"


def mkfs_argv(tree: Path, metadata: Path, data: Path) -> list[str]:
    """The command that makes a layer, reproducible bit for bit.

    mkfs.erofs lowers every time that is not before SOURCE_DATE_EPOCH to it, and writes it as the build time: at the
    end of time it fixes the one and leaves the files' own alone. (``-T`` would give all files one time.)
    """
    return [
        "env",
        f"SOURCE_DATE_EPOCH={END_OF_TIME_S}",
        "mkfs.erofs",
        "--quiet",
        f"-U{_UUID}",
        "--chunksize=4096",
        f"--blobdev={data}",
        str(metadata),
        str(tree),
    ]


async def build_layer(
    tools: Tools, store: LayerStore, tree: Path, hold: Hold, *, timeout_s: float
) -> tuple[str, LayerManifest]:
    """Make and publish a layer that holds what ``tree`` holds; returns its digest and manifest.

    The digest is held before the layer is published, so it cannot go again before the caller has recorded it.
    Raises NodeError when mkfs.erofs is missing or fails, CapacityError when the disk is full, DeadlineExceeded.
    """
    with store.staging() as staged:
        argv = mkfs_argv(tree, staged / "metadata", staged / "data")
        try:
            result = await tools.run("mkfs", argv, timeout_s=timeout_s)
        except TimeoutError as error:
            raise DeadlineExceeded(str(error), phase="image") from None
        if result.exit_code:
            if "No space left" in result.stderr:
                raise disk_full()
            raise NodeError(f"mkfs.erofs failed: {result.stderr.strip()[-500:]}", phase="image")
        manifest = await in_thread(lambda _: describe(staged))
        digest = digest_of(manifest)
        hold(digest)
        await in_thread(lambda _: store.publish(staged, manifest))
        return digest, manifest
