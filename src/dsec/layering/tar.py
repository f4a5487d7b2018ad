"""A reader of tar archives (ustar, pax, GNU) that assumes the archive is hostile.

It yields entries and never touches a file system. Everything is bounded: the size of extended headers, of names, of
sparse maps, of numbers. What is malformed is ImageCorrupt.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsec.errors import ImageCorrupt
from dsec.layering.streams import ExactReader
from dsec.layering.tar_fields import (
    PaxHeaders,
    check_map,
    number,
    parse_pax,
    pax_number,
    pax_time_ns,
    sparse_pairs,
    text_until_nul,
)

__all__ = ["BLOCK", "DIRECTORY", "FIFO", "HARDLINK", "REGULAR", "SYMLINK", "CHAR", "BLOCK_DEVICE", "Entry", "entries"]

BLOCK = 512
REGULAR, HARDLINK, SYMLINK, CHAR, BLOCK_DEVICE, DIRECTORY, FIFO = b"0", b"1", b"2", b"3", b"4", b"5", b"6"

_KNOWN = frozenset((REGULAR, HARDLINK, SYMLINK, CHAR, BLOCK_DEVICE, DIRECTORY, FIFO))
_AS_REGULAR = frozenset((b"\0", b"7"))
_HEADER_LIMIT = 1 << 20
_SHARED_LIMIT = 64 << 10
"""Bytes of headers for all members: each member takes every one of them."""
_MAP_LIMIT = 1 << 20
"""Numbers in a sparse map."""
_ZERO = bytes(BLOCK)


class Entry:
    """One member of the archive, its data not read yet.

    ``stored`` bytes of data follow in the stream. ``sparse`` lists (offset, length) of what they fill in a file of
    ``size`` bytes; it is None for an ordinary file, where size and stored are the same.
    """

    __slots__ = (
        "gid",
        "kind",
        "link",
        "major",
        "minor",
        "mode",
        "mtime_ns",
        "name",
        "size",
        "sparse",
        "stored",
        "uid",
        "xattrs",
    )

    def __init__(self, header: bytes) -> None:
        kind = header[156:157]
        self.kind = REGULAR if kind in _AS_REGULAR else kind
        self.name = text_until_nul(header[:100])
        if header[257:263] == b"ustar\0" and header[345]:
            self.name = text_until_nul(header[345:500]) + b"/" + self.name
        self.link = text_until_nul(header[157:257])
        self.mode = number(header[100:108]) & 0o7777
        self.uid = number(header[108:116])
        self.gid = number(header[116:124])
        self.stored = self.size = number(header[124:136])
        self.mtime_ns = number(header[136:148]) * 1_000_000_000
        self.major = self.minor = 0
        if kind in (CHAR, BLOCK_DEVICE):
            self.major, self.minor = number(header[329:337]), number(header[337:345])
        self.xattrs: dict[bytes, bytes] = {}
        self.sparse: list[tuple[int, int]] | None = None

    def apply(self, pax: PaxHeaders) -> None:
        """Let extended headers override the fields."""
        for key, value in pax.items():
            if key == b"path":
                self.name = value
            elif key == b"linkpath":
                self.link = value
            elif key == b"size":
                self.stored = self.size = pax_number(value)
            elif key == b"uid":
                self.uid = pax_number(value)
            elif key == b"gid":
                self.gid = pax_number(value)
            elif key == b"mtime":
                self.mtime_ns = pax_time_ns(value)
            elif key.startswith(b"SCHILY.xattr."):
                self.xattrs[key[13:]] = value


def entries(reader: ExactReader, *, end_mark: bool = True) -> Iterator[Entry]:
    """The archive's members in order.

    With ``end_mark`` an archive without its closing blocks counts as cut short; without it the caller knows by a
    digest that nothing is missing (some builders leave them out). After each entry the caller must have read or
    skipped exactly ``entry.stored`` bytes; padding is skipped here.
    """
    shared: PaxHeaders = {}
    own: PaxHeaders = {}
    long_name = long_link = None
    while (header := _next_header(reader, end_mark)) is not None:
        kind = header[156:157]
        if kind in b"xgLK":
            body = _extended(reader, header)
            if kind == b"g":
                shared.update(parse_pax(body))
                if sum(len(key) + len(value) for key, value in shared.items()) > _SHARED_LIMIT:
                    raise ImageCorrupt("the headers for all members of a layer's archive are larger than 64 KiB")
            elif kind == b"x":
                own = parse_pax(body)
            elif kind == b"L":
                long_name = text_until_nul(body)
            else:
                long_link = text_until_nul(body)
            continue
        entry = Entry(header)
        entry.name = entry.name if long_name is None else long_name
        entry.link = entry.link if long_link is None else long_link
        entry.apply(shared | own if shared else own)
        taken = _prepare(reader, header, entry, own)
        own, long_name, long_link = {}, None, None
        stored = entry.stored
        yield entry
        reader.skip(-(taken + stored) % BLOCK)


def _next_header(reader: ExactReader, end_mark: bool) -> bytes | None:
    if reader.at_end():
        if not end_mark:
            return None
        raise ImageCorrupt("a layer's archive has no end mark: it is cut short")
    header = reader.read(BLOCK)
    if header == _ZERO:
        return None
    if number(header[148:156]) != sum(header[:148]) + 256 + sum(header[156:]):
        raise ImageCorrupt("a header of a layer's archive is damaged")
    return header


def _extended(reader: ExactReader, header: bytes) -> bytes:
    size = number(header[124:136])
    if not 0 <= size <= _HEADER_LIMIT:
        raise ImageCorrupt("an extended header of a layer's archive is larger than 1 MiB")
    body = reader.read(size)
    reader.skip(-size % BLOCK)
    return body


def _prepare(reader: ExactReader, header: bytes, entry: Entry, pax: PaxHeaders) -> int:
    """Settle size and sparse map; returns the bytes of data already taken from the stream."""
    taken = 0
    if entry.kind == b"S":
        entry.kind = REGULAR
        entry.sparse = _gnu_map(reader, header)
        entry.size = number(header[483:495])
    elif pax.get(b"GNU.sparse.major") == b"1":
        taken, entry.sparse = _map_in_data(reader)
        entry.size = pax_number(pax.get(b"GNU.sparse.realsize", b""))
        entry.stored -= taken
        entry.name = pax.get(b"GNU.sparse.name", entry.name)
    elif b"GNU.sparse.map" in pax:
        entry.sparse = sparse_pairs(pax[b"GNU.sparse.map"].split(b","))
        entry.size = pax_number(pax.get(b"GNU.sparse.size", b""))
        entry.name = pax.get(b"GNU.sparse.name", entry.name)
    if entry.kind == REGULAR and entry.name.endswith(b"/"):
        entry.kind = DIRECTORY
    if entry.kind not in _KNOWN:
        raise ImageCorrupt(f"a layer's archive has a member of unknown type {entry.kind!r}")
    if entry.kind != REGULAR:
        # Some writers put a size here; POSIX says that no data follows links, and only regular files have data.
        entry.stored = entry.size = 0
    if entry.stored < 0 or entry.size < 0:
        raise ImageCorrupt("a member of a layer's archive has a negative size")
    if entry.sparse is not None:
        check_map(entry.sparse, entry.stored, entry.size)
    return taken


def _gnu_map(reader: ExactReader, header: bytes) -> list[tuple[int, int]]:
    fields, more, at, count = header, header[482] != 0, 386, 4
    found: list[tuple[int, int]] = []
    read = 0
    while True:
        for i in range(count):
            pair = fields[at + 24 * i : at + 24 * i + 24]
            if pair.strip(b"\0"):
                found.append((number(pair[:12]), number(pair[12:])))
        if not more:
            return found
        read += 42
        if read > _MAP_LIMIT:
            raise _map_too_long()
        fields, at, count = reader.read(BLOCK), 0, 21
        more = fields[504] != 0


def _map_in_data(reader: ExactReader) -> tuple[int, list[tuple[int, int]]]:
    text, numbers, wanted = b"", list[bytes](), 1
    taken = 0
    while len(numbers) < wanted:
        text += reader.read(BLOCK)
        taken += BLOCK
        *whole, text = text.split(b"\n")
        numbers += whole
        if numbers:
            wanted = 1 + 2 * pax_number(numbers[0])
        # A number is short: what goes on without a line's end is none.
        if wanted > _MAP_LIMIT or len(numbers) > _MAP_LIMIT + BLOCK or len(text) > 2 * BLOCK:
            raise _map_too_long()
    return taken, sparse_pairs(numbers[1:wanted])


def _map_too_long() -> ImageCorrupt:
    return ImageCorrupt("a sparse map of a layer's archive is too long")
