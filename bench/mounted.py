"""A layer, mounted by itself."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["mounted"]


@contextmanager
def mounted(layer: Path) -> Iterator[Path]:
    """A layer's files; by mount(2) itself, for util-linux would make a loop device."""
    libc = ctypes.CDLL(None, use_errno=True)
    point = Path(f"/tmp/dsec-bench-{os.urandom(4).hex()}")
    point.mkdir()
    try:
        options = f"device={layer / 'data'}".encode()
        if libc.mount(os.fsencode(layer / "metadata"), os.fsencode(point), b"erofs", 1, options):
            raise OSError(ctypes.get_errno(), f"mount of {layer}")
        try:
            yield point
        finally:
            subprocess.run(["umount", str(point)], check=True)
    finally:
        point.rmdir()
