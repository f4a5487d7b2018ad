"""Owners and extended attributes of what a sandbox has written, made such that they mean the same anywhere. Pure.

On the disk of a sandbox IDs are those inside it. Where one shows the node's range instead, it is mapped back.
"""

from __future__ import annotations

import struct

from dsec.errors import Unsupported
from dsec.layering.encode import check_attribute
from dsec.layering.names import shown
from dsec.layering.trees import NO_ATTRIBUTES, Attributes

__all__ = ["Settled", "inside", "settled"]

_FIRST, _RANGE = 0x4000_0000, 0x1_0000
"""The first host ID of any sandbox's range, and the width of each."""
_OVERLAY = b"trusted.overlay."
_OPAQUE = _OVERLAY + b"opaque"
_OWN = frozenset(_OVERLAY + each for each in (b"origin", b"impure", b"nlink", b"upper", b"uuid", b"protattr"))
"""What an overlay notes for itself; it finds it again, or does without."""
_CAPABILITY = b"security.capability"
_ACLS = (b"system.posix_acl_access", b"system.posix_acl_default")
_REVISION, _REVISION_2, _REVISION_3 = 0xFF00_0000, 0x0200_0000, 0x0300_0000
_ACL_ENTRY = struct.Struct("<HHI")
_ACL_USER, _ACL_GROUP = 2, 8
_MOST = 64 << 10


class Settled:
    """A file's attributes in order."""

    __slots__ = ("attributes", "dropped", "opaque")

    def __init__(self) -> None:
        self.attributes: Attributes = NO_ATTRIBUTES
        self.opaque = False
        """A directory that hides what is below it."""
        self.dropped = 0
        """How many no layer can have, or only the node means anything by."""


def inside(number: int) -> int:
    """The ID as the sandbox knows it."""
    return (number - _FIRST) % _RANGE if number >= _FIRST else number


def settled(path: bytes, found: dict[bytes, bytes], *, is_directory: bool) -> Settled:
    """Sort what a file has; raises Unsupported for what would mean something else over other layers."""
    result = Settled()
    kept: Attributes = {}
    if sum(len(name) + len(value) for name, value in found.items()) > _MOST:
        raise Unsupported(f"{shown(path)} has more than 64 KiB of attributes", phase="pack")
    for name, value in found.items():
        if name == _OPAQUE and value == b"y" and is_directory:
            result.opaque = True
        elif name in _OWN:
            continue
        elif name.startswith(_OVERLAY):
            raise Unsupported(f"{shown(path)} has {shown(name)}: its content lies in another layer", phase="pack")
        elif name == _CAPABILITY:
            kept[name] = _capability(value)
        elif name in _ACLS:
            kept[name] = _acl(value)
        elif name.startswith(b"security.") or not check_attribute(name, value):
            result.dropped += 1
        else:
            kept[name] = value
    result.attributes = kept or NO_ATTRIBUTES
    return result


def _capability(value: bytes) -> bytes:
    """Those for the sandbox's root, whose host ID may be in them, as those for whoever is root."""
    if len(value) < 24:
        return value
    head, root = int.from_bytes(value[:4], "little"), int.from_bytes(value[20:24], "little")
    if head & _REVISION != _REVISION_3:
        return value
    own = inside(root)
    if own:
        return value[:20] + own.to_bytes(4, "little")
    return (head & ~_REVISION | _REVISION_2).to_bytes(4, "little") + value[4:20]


def _acl(value: bytes) -> bytes:
    """Owners that are named in an access list."""
    if len(value) < 4 or (len(value) - 4) % _ACL_ENTRY.size:
        return value
    entries = [_ACL_ENTRY.unpack_from(value, at) for at in range(4, len(value), _ACL_ENTRY.size)]
    return value[:4] + b"".join(
        _ACL_ENTRY.pack(tag, bits, inside(number) if tag in (_ACL_USER, _ACL_GROUP) else number)
        for tag, bits, number in entries
    )
