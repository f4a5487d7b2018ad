"""What dsec is compared with: copy a layer's ``tar.gz`` over the same line, extract it, lay an overlay over all."""

from __future__ import annotations

import asyncio
import ctypes
import http.client
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.environments.publishing import Archived
from bench.environments.world import World

__all__ = ["copy_and_extract", "first_program", "overlay", "overlay_s"]

_PIECE = 1 << 20


async def copy_and_extract(world: World, archives: Sequence[Archived], target: Path) -> list[Path]:
    """Every archive into a directory of its own below ``target``, all at once; the directories, in order.

    The archives themselves are not kept: what is written is what was in them.
    """
    folders = [target / str(number) for number in range(len(archives))]
    async with asyncio.TaskGroup() as group:
        for archive, folder in zip(archives, folders, strict=True):
            folder.mkdir(parents=True)
            group.create_task(asyncio.to_thread(_extract, world, archive, folder))
    return folders


def _extract(world: World, archive: Archived, folder: Path) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", world.bucket.port)
    argv = ["tar", "-C", str(folder), "--numeric-owner", "-xzf", "-"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as tar:
        assert tar.stdin is not None
        connection.request("GET", f"/slow/{archive.key}")
        answer = connection.getresponse()
        while piece := answer.read(_PIECE):
            tar.stdin.write(piece)
        tar.stdin.close()
    connection.close()
    if tar.returncode or answer.status != 200:
        raise RuntimeError(f"{archive.key}: HTTP {answer.status}, tar {tar.returncode}")


@contextmanager
def overlay(lowers: Sequence[Path], scratch: Path) -> Iterator[Path]:
    """The directories, the bottom one first, as one tree that can be written to."""
    home = scratch / f"overlay-{os.urandom(4).hex()}"
    upper, work, point = (home / name for name in ("upper", "work", "root"))
    for each in (upper, work, point):
        each.mkdir(parents=True)
    _mount(lowers, upper, work, point)
    try:
        yield point
    finally:
        subprocess.run(["umount", str(point)], check=True)
        shutil.rmtree(home)


def _mount(lowers: Sequence[Path], upper: Path, work: Path, point: Path) -> None:
    below = ":".join(str(each) for each in reversed(lowers))
    options = f"lowerdir={below},upperdir={upper},workdir={work}".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"overlay", os.fsencode(point), b"overlay", 0, options):
        raise OSError(ctypes.get_errno(), f"overlay of {below}")


def overlay_s(lowers: Sequence[Path], scratch: Path, count: int) -> list[float]:
    """Seconds that each of so many mounts takes, directories for what is written included."""
    taken = []
    for _ in range(count):
        begun = time.perf_counter()
        with overlay(lowers, scratch):
            taken.append(time.perf_counter() - begun)
    return taken


def first_program(lowers: Sequence[Path], scratch: Path, argv: Sequence[str]) -> float:
    """Seconds that an overlay and a program in it take, without any isolation."""
    begun = time.perf_counter()
    with overlay(lowers, scratch) as root:
        subprocess.run(["chroot", str(root), *argv], check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - begun
