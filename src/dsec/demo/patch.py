"""What is taken over from an agent: its changes to the package's source, and nothing else.

Everything read here was written by the agent's sandbox, tar program included: names, sizes and kinds are its claims.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from dsec.errors import CallerError

__all__ = ["Patch", "Tree", "acceptable", "difference", "pack", "read_archive", "read_directory"]

Tree = Mapping[str, bytes]
"""Regular files by their path below the package's source directory."""

_MOST_FILES = 2_000
_MOST_BYTES_A_FILE = 2 << 20
_MOST_BYTES = 16 << 20
_LONGEST_PATH = 200


@dataclass(frozen=True)
class Patch:
    """Files to write and to remove, by their path below the package's source directory."""

    written: Mapping[str, bytes]
    removed: frozenset[str]

    def __bool__(self) -> bool:
        return bool(self.written or self.removed)

    def summary(self) -> str:
        """How much there is of it."""
        return f"{len(self.written)} written, {len(self.removed)} removed" if self else "empty"


def acceptable(path: str) -> bool:
    """Whether a path below the source directory may be in a patch.

    Not byte code, which would run instead of the source beside it; not conftest files, which are the judge's.
    """
    parts = path.split("/")
    return "__pycache__" not in parts and not path.endswith((".pyc", ".pyo", ".pth")) and parts[-1] != "conftest.py"


def read_archive(archive: bytes, source: str, accept: Callable[[str], bool] = acceptable) -> Tree:
    """The files below ``source`` in a tar archive that is not trusted; raises CallerError for a malformed one.

    Anything but plain files is left out, and so is every path that leads elsewhere or that ``accept`` refuses; too
    large is an error.
    """
    found: dict[str, bytes] = {}
    total = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
            for member in tar:
                path = _below(member.name, source)
                if path is None or not accept(path):
                    continue
                if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse():
                    continue
                total += member.size
                if member.size > _MOST_BYTES_A_FILE or total > _MOST_BYTES or len(found) >= _MOST_FILES:
                    raise CallerError("the changed source is larger than a patch may be", phase="patch")
                stream = tar.extractfile(member)
                if stream is not None:
                    found[path] = stream.read()
    except (tarfile.TarError, ValueError, EOFError, UnicodeError) as error:
        raise CallerError(f"the archive of the source is malformed: {error}", phase="patch") from None
    return found


def read_directory(root: Path) -> Tree:
    """The files of a release's source directory, as ``read_archive`` would give them."""
    found: dict[str, bytes] = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_file() and not path.is_symlink() and acceptable(name):
            found[name] = path.read_bytes()
    return found


def difference(before: Tree, after: Tree) -> Patch:
    """What turns one tree into the other."""
    written = {path: content for path, content in after.items() if before.get(path) != content}
    return Patch(written=written, removed=frozenset(before.keys() - after.keys()))


def pack(files: Tree, source: str) -> bytes:
    """A tar archive of files to be unpacked in the root of the repository; equal files give equal bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(files):
            member = tarfile.TarInfo(f"{source}/{path}")
            member.size = len(files[path])
            member.mode = 0o644
            tar.addfile(member, io.BytesIO(files[path]))
    return buffer.getvalue()


def _below(name: str, source: str) -> str | None:
    path = str(PurePosixPath(name)) if not name.startswith("/") else ""
    prefix = f"{source}/"
    below = path.removeprefix(prefix)
    if not path.startswith(prefix) or any(part in ("", ".", "..") for part in below.split("/")):
        return None
    return below if below.isprintable() and len(below) <= _LONGEST_PATH else None
