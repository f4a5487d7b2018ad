"""Names inside layers, taken apart and shown. Pure, for hostile input."""

from __future__ import annotations

from dsec.errors import ImageCorrupt

__all__ = ["Parts", "shown", "split_name"]

Parts = tuple[bytes, ...]

_MAX_PATH = 3800
_MAX_DEPTH = 400
_MAX_NAME = 255


def split_name(name: bytes) -> Parts:
    """The components of a name, taken below the root even if it is absolute.

    Raises ImageCorrupt for ``..``, NUL bytes, and names too long or too deep.
    """
    if len(name) > _MAX_PATH:
        raise _too_long(name)
    parts = tuple(part for part in name.split(b"/") if part and part != b".")
    if b".." in parts or b"\0" in name:
        raise ImageCorrupt(f"a layer holds a name that leaves its root: {shown(name)}")
    if len(parts) > _MAX_DEPTH or any(len(part) > _MAX_NAME for part in parts):
        raise _too_long(name)
    return parts


def _too_long(name: bytes) -> ImageCorrupt:
    return ImageCorrupt(f"a layer holds a name that is too long or too deep: {shown(name[:80])}…")


def shown(name: bytes) -> str:
    """A name for a message, whatever bytes it has."""
    return ascii(name.decode(errors="surrogateescape"))
