"""Members of a tar archive that comes from a sandbox: hostile input, within bounds, in constant memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from dsec.errors import ProtocolError

__all__ = ["Member", "TarReader"]

_BLOCK = 512
_MOST_EXTENDED = 1 << 20
_MOST_NAME = 4096
_MOST_PARTS = 65_536
_ZERO = bytes(_BLOCK)
_KINDS: dict[bytes, Literal["file", "directory", "link", "hardlink"]] = {
    b"0": "file",
    b"\0": "file",
    b"1": "hardlink",
    b"2": "link",
    b"5": "directory",
}


@dataclass(frozen=True)
class Member:
    """One member, its data not read yet. ``parts``: (offset, length) of what the archive holds of a file."""

    kind: Literal["file", "directory", "link", "hardlink"]
    name: bytes
    link: bytes
    mode: int
    uid: int
    gid: int
    mtime: int
    size: int
    parts: tuple[tuple[int, int], ...]


class TarReader:
    """Reads what ``more`` gives: pieces, an empty one at the end. Raises ProtocolError for what is no archive."""

    def __init__(self, more: Callable[[], bytes | memoryview]) -> None:
        self._more = more
        self._piece: memoryview = memoryview(b"")
        self._left = 0
        self._padding = 0

    def members(self) -> Iterator[Member]:
        """The members in order; after each its ``data`` must have been read."""
        while True:
            if self._left:
                raise ProtocolError("the data of a member was not read")
            self._take(self._padding)
            self._padding = 0
            member = self._next()
            if member is None:
                while self._more():
                    pass  # what follows the end mark
                return
            yield member

    def data(self, length: int) -> Iterator[memoryview]:
        """The next bytes of the present member, in the pieces they come in."""
        if length > self._left:
            raise ProtocolError("a member has less data than its parts say")
        while length:
            self._fill()
            part = self._piece[:length]
            self._piece = self._piece[len(part) :]
            length -= len(part)
            self._left -= len(part)
            yield part

    def _fill(self) -> None:
        if not self._piece:
            self._piece = memoryview(self._more())
            if not self._piece:
                raise ProtocolError("the archive is cut short")

    def _take(self, length: int) -> bytes:
        taken = bytearray()
        while len(taken) < length:
            self._fill()
            part = self._piece[: length - len(taken)]
            self._piece = self._piece[len(part) :]
            taken += part
        return bytes(taken)

    def _next(self) -> Member | None:
        pax: dict[bytes, bytes] = {}
        while True:
            header = self._take(_BLOCK)
            if header == _ZERO:
                return None
            if _number(header[148:156]) != sum(header[:148]) + 256 + sum(header[156:]):
                raise ProtocolError("a header of the archive is damaged")
            size = _number(header[124:136])
            if header[156:157] != b"x":
                return self._member(header, size, pax)
            if size > _MOST_EXTENDED:
                raise ProtocolError("an extended header of the archive is longer than 1 MiB")
            pax = _records(self._take(size))
            self._take(-size % _BLOCK)

    def _member(self, header: bytes, stored: int, pax: dict[bytes, bytes]) -> Member:
        kind = _KINDS.get(header[156:157])
        if kind is None:
            raise ProtocolError(f"the archive has a member of kind {header[156:157]!r}")
        name = pax.get(b"GNU.sparse.name", pax.get(b"path", _text(header[:100])))
        link = pax.get(b"linkpath", _text(header[157:257]))
        if not name or any(b"\0" in text or len(text) > _MOST_NAME for text in (name, link)):
            raise ProtocolError("a name of the archive is malformed")
        stored = _decimal(pax[b"size"]) if b"size" in pax else stored
        stored = stored if kind == "file" else 0
        self._padding, size = -stored % _BLOCK, stored
        parts: tuple[tuple[int, int], ...] = ((0, stored),)
        if kind == "file" and b"GNU.sparse.major" in pax:
            size = _decimal(pax.get(b"GNU.sparse.realsize", b""))
            parts, taken = self._map()
            stored -= taken
            _check(parts, stored, size)
        self._left = stored
        return Member(
            kind=kind,
            name=name,
            link=link,
            mode=_number(header[100:108]) & 0o7777,
            uid=_decimal(pax[b"uid"]) if b"uid" in pax else _number(header[108:116]),
            gid=_decimal(pax[b"gid"]) if b"gid" in pax else _number(header[116:124]),
            mtime=_seconds(pax[b"mtime"]) if b"mtime" in pax else _number(header[136:148]),
            size=size,
            parts=parts,
        )

    def _map(self) -> tuple[tuple[tuple[int, int], ...], int]:
        text, numbers, taken = b"", list[int](), 0
        while not numbers or len(numbers) < 1 + 2 * numbers[0]:
            *whole, text = (text + self._take(_BLOCK)).split(b"\n")
            taken += _BLOCK
            for digits in whole:
                if numbers and len(numbers) == 1 + 2 * numbers[0]:
                    raise ProtocolError("a sparse map of the archive is malformed")
                numbers.append(_decimal(digits))
            if len(text) > _BLOCK or (numbers and numbers[0] > _MOST_PARTS):
                raise ProtocolError("a sparse map of the archive is too long")
        return tuple(zip(numbers[1::2], numbers[2::2], strict=True)), taken


def _check(parts: tuple[tuple[int, int], ...], stored: int, size: int) -> None:
    at = 0
    for offset, length in parts:
        if offset < at or offset + length > size:
            raise ProtocolError("a sparse map of the archive is malformed")
        at = offset + length
    if sum(length for _, length in parts) != stored:
        raise ProtocolError("a sparse map of the archive does not fit its data")


def _text(field: bytes) -> bytes:
    return field.split(b"\0", 1)[0]


def _number(field: bytes) -> int:
    digits = _text(field).strip()
    if not digits:
        return 0
    if not digits.isdigit() or b"8" in digits or b"9" in digits:
        raise ProtocolError("a number of the archive is malformed")
    return int(digits, 8)


def _decimal(digits: bytes) -> int:
    if not digits.isdigit() or len(digits) > 19:
        raise ProtocolError("a number of the archive is malformed")
    return int(digits)


def _seconds(text: bytes) -> int:
    whole = text.partition(b".")[0]
    return -_decimal(whole[1:]) if whole[:1] == b"-" else _decimal(whole)


def _records(body: bytes) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(body):
        space = body.find(b" ", at, at + 20)
        length = _decimal(body[at:space]) if space > at else 0
        end = at + length
        if length == 0 or end > len(body) or space + 2 >= end or body[end - 1] != 0x0A:
            raise ProtocolError("an extended header of the archive is malformed")
        key, equals, value = body[space + 1 : end - 1].partition(b"=")
        if not equals:
            raise ProtocolError("an extended header of the archive is malformed")
        found[key] = value
        at = end
    return found
