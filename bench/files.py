"""How fast a file goes into a sandbox and comes out again."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from bench.targets import DsecTarget

__all__ = ["megabytes_per_second", "measure_files"]

_PIECE = 1 << 20


async def measure_files(target: DsecTarget, mib: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each upload and each download of one file of random bytes, in one sandbox."""
    taken: dict[str, list[float]] = {"upload_s": [], "download_s": []}
    args = target.args.replace(memory_mib=(4, 4096))
    with tempfile.TemporaryDirectory() as scratch:
        source, back = Path(scratch, "source"), Path(scratch, "back")
        _fill(source, mib)
        async with target.client.sandbox(args) as sandbox:
            for _ in range(rounds):
                await sandbox.files.remove("/bench", missing_ok=True)
                _remove(back)
                begun = time.perf_counter()
                await sandbox.files.upload(source, "/bench")
                taken["upload_s"].append(time.perf_counter() - begun)
                begun = time.perf_counter()
                await sandbox.files.download("/bench", back)
                taken["download_s"].append(time.perf_counter() - begun)
    return taken


def _fill(path: Path, mib: int) -> None:
    with path.open("wb") as file:
        for _ in range(mib):
            file.write(os.urandom(_PIECE))


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def megabytes_per_second(mib: int, seconds: list[float]) -> float:
    """Of the median round."""
    return mib * 1.048576 / sorted(seconds)[len(seconds) // 2]
