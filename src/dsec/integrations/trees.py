"""Trees of files in and out of a sandbox by its own ``tar``, in constant memory."""

from __future__ import annotations

import asyncio
import tarfile
import tempfile
from pathlib import Path
from typing import IO

import dsec

__all__ = ["download_tree", "upload_tree"]

_PIECE = 1024 * 1024


async def upload_tree(sandbox: dsec.Sandbox, source: Path, target: str) -> None:
    """What is in the directory ``source`` goes into ``target``, which is made; modes are kept, the owner is root.

    Raises ExecFailed where tar fails.
    """
    await sandbox.exec("mkdir", "-p", "--", target, user="0", check=True)
    with tempfile.TemporaryFile() as archive:
        await asyncio.to_thread(_pack, source, archive)
        program = await sandbox.spawn(
            "tar", "--extract", "--no-same-owner", "--directory", target, user="0", stdin=dsec.PIPE
        )
        while piece := archive.read(_PIECE):
            await program.stdin.write(piece)
        await program.stdin.close()
        await program.wait(check=True)


async def download_tree(sandbox: dsec.Sandbox, source: str, target: Path) -> None:
    """What is in the directory ``source`` comes into ``target``, which is made; what is there already is replaced.

    Files, directories and links that stay inside; devices and pipes are left out. Raises ExecFailed where tar fails,
    and ValueError for a hostile archive.
    """
    program = await sandbox.spawn(
        "tar", "--create", "--directory", source, ".", user="0", backpressure=True, max_output_bytes=_PIECE
    )
    with tempfile.TemporaryFile() as archive:
        async for event in program.events():
            if isinstance(event, dsec.Stdout):
                archive.write(event.data)
        await program.wait(check=True)
        archive.seek(0)
        await asyncio.to_thread(_unpack, archive, target)


def _pack(source: Path, archive: IO[bytes]) -> None:
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for entry in sorted(source.iterdir()):
            tar.add(entry, entry.name)
    archive.seek(0)


def _unpack(archive: IO[bytes], target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(fileobj=archive) as tar:
            tar.extractall(target, filter=_only_files)  # noqa: S202 - the filter lets nothing out of the target
    except tarfile.TarError as error:
        raise ValueError(f"the sandbox's archive is refused: {error}") from error


def _only_files(member: tarfile.TarInfo, target: str) -> tarfile.TarInfo | None:
    return None if member.isdev() else tarfile.data_filter(member, target)
