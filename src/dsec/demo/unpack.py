"""Unpack source distributions and wheels as plain data."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from dsec.errors import CallerError

__all__ = ["unpack_sdist", "unpack_wheels"]

_MOST_BYTES = 256 << 20


def unpack_sdist(archive: Path, target: Path) -> None:
    """Unpack the archive's one top directory as ``target``; raises CallerError for any other shape.

    Devices, absolute paths and links that lead out are refused by the standard library's ``data`` filter.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        try:
            with tarfile.open(archive, "r:gz") as tar:
                if sum(member.size for member in tar.getmembers()) > _MOST_BYTES:
                    raise CallerError(f"{archive.name} unpacks to more than {_MOST_BYTES >> 20} MiB")
                tar.extractall(scratch, filter="data")
        except (tarfile.TarError, OSError, EOFError) as error:
            raise CallerError(f"cannot unpack {archive.name}: {error}", phase="unpack") from None
        tops = list(Path(scratch).iterdir())
        if len(tops) != 1 or not tops[0].is_dir():
            raise CallerError(f"{archive.name} does not hold one directory", phase="unpack")
        tops[0].rename(target)


def unpack_wheels(wheels: Iterable[Path], target: Path) -> None:
    """Unpack wheels over one another, as an installer would for a directory that is on the path.

    Files of ``*.data/purelib`` and ``platlib`` go to the root; scripts, headers and data are left out.
    """
    target.mkdir(parents=True, exist_ok=True)
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > _MOST_BYTES:
                raise CallerError(f"{wheel.name} unpacks to more than {_MOST_BYTES >> 20} MiB", phase="unpack")
            for entry in archive.infolist():
                place = _place(entry.filename)
                if entry.is_dir() or place is None:
                    continue
                path = target / place
                path.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(entry) as source, path.open("wb") as sink:
                    shutil.copyfileobj(source, sink)
                path.chmod(0o644)


def _place(name: str) -> PurePosixPath | None:
    """Where a wheel's file goes, None: nowhere; raises CallerError for a path that leads out."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or not path.parts:
        raise CallerError(f"a wheel holds the path {name!r}", phase="unpack")
    if not path.parts[0].endswith(".data"):
        return path
    if len(path.parts) > 2 and path.parts[1] in ("purelib", "platlib"):
        return PurePosixPath(*path.parts[2:])
    return None
