"""An image store with ``dsec/debian:12`` in it, built once and shared read-only by many nodes.

``python -m dsec.testing.store DIRECTORY`` builds it, or finds it built.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import shutil
import sys
from pathlib import Path

import dsec.images
from dsec.images.config import ImagesConfig
from dsec.images.images import Images
from dsec.images.progress import Progress
from dsec.images.tools import SubprocessTools

__all__ = ["ensure_store"]

_FORMAT_FILES = ("images/build.py", "images/store.py", "layering/*.py")
"""What decides the store's content: a change in one of them builds it anew."""


def ensure_store(directory: Path) -> Path:
    """The directory, holding ``layers/`` and ``catalogue.db``; takes a minute the first time, and needs root."""
    directory.mkdir(parents=True, exist_ok=True)
    stamp, wanted = directory / "built", _version()
    with (directory / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != wanted:
            _clear(directory)
            asyncio.run(_build(directory))
            stamp.write_text(wanted)
    return directory


def _version() -> str:
    source = Path(dsec.images.__file__).parents[1]
    whole = hashlib.sha256()
    for pattern in _FORMAT_FILES:
        for path in sorted(source.glob(pattern)):
            whole.update(path.read_bytes())
    return whole.hexdigest()


def _clear(directory: Path) -> None:
    for entry in directory.iterdir():
        if entry.name == "lock":
            continue
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


async def _build(directory: Path) -> None:
    config = ImagesConfig(
        layers_dir=directory / "layers",
        catalogue=directory / "catalogue.db",
        scratch_dir=directory / "scratch",
    )
    async with Images(config, SubprocessTools()) as images:
        await images.build_default(progress=_say)
    shutil.rmtree(config.scratch_dir, ignore_errors=True)


def _say(step: Progress) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\rimage store: {step.phase} {step.bytes_done >> 20} MiB\x1b[K")


if __name__ == "__main__":
    sys.stdout.write(f"{ensure_store(Path(sys.argv[1]).absolute())}\n")
