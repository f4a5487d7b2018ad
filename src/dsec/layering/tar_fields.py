"""Fields of tar headers: numbers, texts, pax records, sparse maps. Pure, for hostile input."""

from __future__ import annotations

from collections.abc import Sequence

from dsec.errors import ImageCorrupt

__all__ = [
    "END_OF_TIME_S",
    "PaxHeaders",
    "check_map",
    "number",
    "parse_pax",
    "pax_number",
    "pax_time_ns",
    "sparse_pairs",
    "text_until_nul",
    "time_in_range",
]

PaxHeaders = dict[bytes, bytes]

_MAX_DIGITS = 20
END_OF_TIME_S = 1 << 33
"""Later than any time a file may have, seconds since 1970 (the year 2242)."""


def text_until_nul(field: bytes) -> bytes:
    """The field up to its first NUL byte."""
    end = field.find(b"\0")
    return field if end < 0 else field[:end]


def number(field: bytes) -> int:
    """An octal number, or GNU's base-256 form."""
    if field[0] & 0x80:
        bits = 8 * len(field)
        value = int.from_bytes(field) & ((1 << (bits - 1)) - 1)
        # The bit below the mark is the sign of a two's complement number.
        return value - (1 << (bits - 1)) if field[0] & 0x40 else value
    digits = field.split(b"\0", 1)[0].strip()
    if not digits:
        return 0
    try:
        value = int(digits, 8)
    except ValueError:
        value = -1
    if value < 0 or not digits.isdigit():
        raise ImageCorrupt(f"a number in a layer's archive is malformed: {field!r}")
    return value


def parse_pax(body: bytes) -> PaxHeaders:
    """Records ``LENGTH KEY=VALUE\\n``; a value may hold any byte."""
    found: PaxHeaders = {}
    pieces: list[bytes] = []
    at = 0
    while at < len(body) and body[at]:
        space = body.find(b" ", at, at + _MAX_DIGITS)
        length = pax_number(body[at:space]) if space > at else 0
        end = at + length
        # Without a space nothing is read, and never would be: what comes before must not be taken for it.
        if space < 0 or end > len(body) or space + 2 >= end or body[end - 1] != 0x0A:
            raise ImageCorrupt("an extended header of a layer's archive is malformed")
        key, equals, value = body[space + 1 : end - 1].partition(b"=")
        if not equals:
            raise ImageCorrupt("an extended header of a layer's archive is malformed")
        if key in (b"GNU.sparse.offset", b"GNU.sparse.numbytes"):
            pieces.append(value)
        found[key] = value
        at = end
    if pieces:
        found[b"GNU.sparse.map"] = b",".join(pieces)
    return found


def pax_number(value: bytes) -> int:
    """A decimal number of at most 20 digits."""
    if not value.isdigit() or len(value) > _MAX_DIGITS:
        raise ImageCorrupt(f"a number in a layer's archive is malformed: {value[:40]!r}")
    return int(value)


def pax_time_ns(value: bytes) -> int:
    """Seconds with an optional fraction, before or after 1970, as nanoseconds."""
    sign, digits = (-1, value[1:]) if value[:1] == b"-" else (1, value)
    seconds, _, fraction = digits.partition(b".")
    if not seconds.isdigit() or (fraction and not fraction.isdigit()) or len(seconds) > _MAX_DIGITS:
        raise ImageCorrupt(f"a time in a layer's archive is malformed: {value[:40]!r}")
    return sign * (int(seconds) * 1_000_000_000 + int((fraction[:9] + b"0" * 9)[:9]))


def time_in_range(mtime_ns: int) -> int:
    """The nearest time that both ext4 and mkfs.erofs keep: from 1970 to before END_OF_TIME_S."""
    return max(0, min(mtime_ns, END_OF_TIME_S * 1_000_000_000 - 1))


def sparse_pairs(numbers: Sequence[bytes]) -> list[tuple[int, int]]:
    """A sparse map from offsets and lengths in turn."""
    if len(numbers) % 2:
        raise ImageCorrupt("a sparse map of a layer's archive is malformed")
    values = [pax_number(each) for each in numbers]
    return list(zip(values[::2], values[1::2], strict=True))


def check_map(pairs: Sequence[tuple[int, int]], stored: int, size: int) -> None:
    """Refuse a sparse map whose parts overlap, pass the end, or differ from the stored bytes."""
    at = total = 0
    for offset, length in pairs:
        if offset < at or length < 0 or offset + length > size:
            raise ImageCorrupt("a sparse map of a layer's archive is malformed")
        at = offset + length
        total += length
    if total != stored:
        raise ImageCorrupt("a sparse map of a layer's archive does not fit its data")
