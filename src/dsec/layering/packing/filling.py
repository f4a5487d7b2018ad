"""The rest of a layer whose data is fetched as it is read: brought by reading it, for packing needs all of it."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

from dsec.errors import Conflict, StoreUnreachable

__all__ = ["make_whole"]

_PIECE = 1 << 20
_FIRST_LOOK_S = 0.02
_LAST_LOOK_S = 1.0
_FLUSHED_S = 60.0


def make_whole(layer: Path) -> None:
    """Return when all data of a layer is on this node; blocks for as long as its store takes.

    A read of what is missing waits in the kernel until it is there (decision 0049); only this program waits, and can
    be killed. Raises StoreUnreachable where the store is away, and Conflict for a layer that is not mounted: then
    nobody was asked for what is missing, and what was read were zeros, which are of no use to anybody.
    """
    if _is_whole(layer):
        return
    _read(layer)
    # The last chunks are flushed before the layer counts as whole; nobody tells, so this looks.
    end, pause = time.monotonic() + _FLUSHED_S, _FIRST_LOOK_S
    while not _is_whole(layer):
        if time.monotonic() >= end:
            raise Conflict(
                f"not all data of layer {layer.name} is on this node, and nothing fetches it",
                phase="pack",
                remedy="Pull it whole on another node, and pack there",
                digest=layer.name,
            )
        time.sleep(pause)
        pause = min(2 * pause, _LAST_LOOK_S)


def _is_whole(layer: Path) -> bool:
    return not (layer / "filled").exists()


def _read(layer: Path) -> None:
    fd = os.open(layer / "data", os.O_RDONLY | os.O_CLOEXEC)
    try:
        while os.read(fd, _PIECE):
            pass
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise StoreUnreachable(
            f"the rest of layer {layer.name} could not be fetched",
            phase="pack",
            remedy="See whether its store answers and whether the node's disk is full, then try again",
            digest=layer.name,
        ) from None
    finally:
        os.close(fd)
