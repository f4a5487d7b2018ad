"""What is known of files, and what happens to them: values, and their form on the wire."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from dsec.api.frames import STDOUT, Kind, until_frame
from dsec.client.streams import WINDOW, Flowing
from dsec.decoding import MALFORMED
from dsec.errors import ProtocolError, error_from_wire

if TYPE_CHECKING:
    from dsec.client.link import Link

__all__ = ["FileEvent", "FileInfo", "event_of", "info_of", "joined", "listed", "records"]

T = TypeVar("T")
_MOST_RECORD = 64 * 1024
"""Two paths and some numbers are never as long."""


@dataclass(frozen=True)
class FileInfo:
    """What a path names. Bytes of names that are no UTF-8 are surrogates, as everywhere in Python."""

    path: str
    kind: Literal["file", "directory", "link", "fifo", "socket", "char", "block"]
    size: int
    """Bytes."""
    mode: int
    """Permission bits, 0 to 0o7777."""
    uid: int
    """Owner, as seen inside."""
    gid: int
    mtime: float
    """Last change of the content, Unix time in seconds."""
    target: str | None = None
    """Where a link leads, unresolved."""

    @property
    def name(self) -> str:
        """The last part of the path."""
        return os.path.basename(self.path)  # noqa: PTH119 - a path of the sandbox's

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return self.kind == "file"

    @property
    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return self.kind == "directory"

    @property
    def is_link(self) -> bool:
        """Whether it is a symbolic link."""
        return self.kind == "link"


@dataclass(frozen=True)
class FileEvent:
    """One change. ``overflow``: some were lost, look for yourself; its path is the watched one."""

    kind: Literal["created", "modified", "closed", "removed", "moved", "attributes", "overflow"]
    """``closed``: by a program that had it open for writing."""
    path: str
    is_dir: bool = False
    target: str | None = None
    """The new path, of ``moved``."""


class _Info(msgspec.Struct, frozen=True):
    path: bytes
    kind: Literal["file", "directory", "link", "fifo", "socket", "char", "block"]
    size: int
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    target: bytes | None = None


class _Event(msgspec.Struct, frozen=True):
    kind: Literal["created", "modified", "closed", "removed", "moved", "attributes", "overflow"]
    path: bytes
    target: bytes | None = None
    directory: bool = False


def joined(directory: str, name: bytes) -> str:
    """A path below a directory; the directory itself for an empty name."""
    if not name:
        return directory
    return f"{directory.rstrip('/')}/{os.fsdecode(name)}" if directory != "." else os.fsdecode(name)


def _info(raw: _Info, path: str) -> FileInfo:
    target = None if raw.target is None else os.fsdecode(raw.target)
    return FileInfo(path, raw.kind, raw.size, raw.mode, raw.uid, raw.gid, raw.mtime_ns / 1e9, target)


def info_of(raw: object, path: str) -> FileInfo:
    """The ``info`` of an answer; raises ProtocolError."""
    try:
        return _info(msgspec.convert(raw, _Info), path)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"the server's answer is malformed: {error}") from None


_decode_info = msgspec.msgpack.Decoder(_Info).decode
_decode_event = msgspec.msgpack.Decoder(_Event).decode


def listed(record: bytes | memoryview, directory: str) -> FileInfo:
    """A record of a list."""
    raw = _decode_info(record)
    return _info(raw, joined(directory, raw.path))


def event_of(record: bytes | memoryview, watched: str) -> FileEvent:
    """A record of a watch."""
    raw = _decode_event(record)
    target = None if raw.target is None else joined(watched, raw.target)
    return FileEvent(raw.kind, joined(watched, raw.path), raw.directory, target)


async def records(
    link: Link, method: str, params: dict[str, Any], decode: Callable[[memoryview], T]
) -> AsyncGenerator[T | None]:
    """The records of one stream: None once it has begun, if it says so. Raises Lost, and the stream's error."""
    wire = await link.wire()
    receiver = Flowing()
    number = await wire.open(receiver, method, params | {"credit": {STDOUT: WINDOW}})
    rest = b""
    try:
        while True:
            frame = await receiver.next()
            kind = frame[1]
            if kind == Kind.END:
                return
            if kind == Kind.ERROR:
                raise error_from_wire(frame[2])
            if kind == Kind.ITEM:
                yield None
            elif kind == Kind.DATA and frame[4]:
                rest += frame[4]
                found, rest = _split(rest, decode)
                for each in found:
                    yield each
                await wire.send(until_frame(number, STDOUT, frame[3] + len(frame[4]) + WINDOW))
    finally:
        await wire.close_stream(number)


def _split(data: bytes, decode: Callable[[memoryview], T]) -> tuple[list[T], bytes]:
    found, at, view = [], 0, memoryview(data)
    while len(data) - at >= 4:
        length = int.from_bytes(view[at : at + 4], "big")
        if length > _MOST_RECORD:
            raise ProtocolError(f"the server sent a record of {length} bytes")
        if len(data) - at - 4 < length:
            break
        try:
            found.append(decode(view[at + 4 : at + 4 + length]))
        except MALFORMED as error:
            raise ProtocolError(f"the server sent a malformed record: {error}") from None
        at += 4 + length
    return found, data[at:]
