"""Digests of protected paths, as the sandbox sees them now."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsec.errors import InvalidArgument

if TYPE_CHECKING:
    from dsec.client.file_records import FileInfo
    from dsec.client.files import Files

__all__ = ["ProtectedPath", "verify"]

_PIECE = 4 << 20
_DEPTH = 64
_AT_ONCE = 16


@dataclass(frozen=True)
class ProtectedPath:
    """What a protected path holds.

    ``digest``: SHA-256 (hex) over names, kinds, modes, owners, link targets and contents, the same wherever the same
    files lie below the path; times do not count. ``as_expected``: whether it is the expected one, None without one.
    """

    path: str
    digest: str
    files: int
    bytes: int
    as_expected: bool | None


async def verify(files: Files, paths: list[str], expected: Mapping[str, str] | None) -> list[ProtectedPath]:
    """Read all of the paths anew; raises InvalidArgument for an expectation of a path that is not among them."""
    wanted = dict(expected or {})
    if unknown := sorted(set(wanted) - set(paths)):
        raise InvalidArgument(f"{unknown[0]!r} is no protected path of this sandbox")
    return [await _read(files, path, wanted.get(path)) for path in paths]


async def _read(files: Files, path: str, expected: str | None) -> ProtectedPath:
    found = sorted([each async for each in _everything(files, path)], key=lambda info: info.path)
    at_once = asyncio.Semaphore(_AT_ONCE)
    entries = await asyncio.gather(*(_entry(files, path, info, at_once) for info in found))
    digest = hashlib.sha256(b"".join(line for line, _ in entries)).hexdigest()
    count, size = sum(info.kind == "file" for info in found), sum(length for _, length in entries)
    return ProtectedPath(path, digest, count, size, None if expected is None else digest == expected)


async def _entry(files: Files, path: str, info: FileInfo, at_once: asyncio.Semaphore) -> tuple[bytes, int]:
    """A line of the digest's, and the bytes read for it."""
    content, length = "", 0
    if info.kind == "file":
        async with at_once:
            content, length = await _content(files, info.path)
    name = info.path.removeprefix(path)
    fields = (name, info.kind, f"{info.mode:o}", str(info.uid), str(info.gid), info.target or "", content)
    # No field holds a NUL, so that no two trees give the same bytes.
    return "\0".join(fields).encode(errors="surrogateescape") + b"\0\n", length


async def _everything(files: Files, path: str) -> AsyncIterator[FileInfo]:
    top = await files.stat(path, follow=False)
    yield top
    if top.is_dir:
        async with aclosing(files.list(path, depth=_DEPTH)) as below:
            async for info in below:
                yield info


async def _content(files: Files, path: str) -> tuple[str, int]:
    digest, at = hashlib.sha256(), 0
    while True:
        piece = await files.read(path, offset=at, limit=_PIECE)
        digest.update(piece)
        at += len(piece)
        if len(piece) < _PIECE:
            return digest.hexdigest(), at
