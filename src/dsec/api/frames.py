"""Frames of the WebSocket and of ``runtime.sock``: ``docs/protocols.md`` has the table.

Encoding and decoding only; ``peek`` reads a frame's stream and kind without decoding its payload, for the parts that
copy frames unread.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec

from dsec.decoding import MALFORMED
from dsec.errors import InvalidArgument, ProtocolError

__all__ = [
    "CHUNK_BYTES",
    "MAX_FRAME_BYTES",
    "MAX_OPEN_BYTES",
    "STDERR",
    "STDIN",
    "STDOUT",
    "Joining",
    "Kind",
    "close_frame",
    "data_frame",
    "decode",
    "end_frame",
    "error_frame",
    "item_frame",
    "open_frame",
    "open_frames",
    "peek",
    "until_frame",
]

MAX_FRAME_BYTES = 256 * 1024
MAX_OPEN_BYTES = 16 << 20
"""Longest open, in parts or whole."""
CHUNK_BYTES = 192 * 1024
"""Most payload bytes that are put into one data frame."""
STDIN, STDOUT, STDERR = 0, 1, 2


class Kind(IntEnum):
    """The second element of a frame."""

    OPEN = 0
    DATA = 1
    UNTIL = 2
    END = 3
    ERROR = 4
    CLOSE = 5
    ITEM = 6
    PART = 7


_LAST_KIND = max(Kind)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Any]).decode


def open_frame(stream: int, method: str, params: dict[str, Any]) -> bytes:
    """Begin a stream."""
    return _encode((stream, 0, method, params))


def open_frames(stream: int, method: str, params: dict[str, Any]) -> list[bytes]:
    """Begin a stream: one frame, or as many parts as a long request takes. Raises InvalidArgument above 16 MiB."""
    whole = open_frame(stream, method, params)
    if len(whole) <= MAX_FRAME_BYTES:
        return [whole]
    if len(whole) > MAX_OPEN_BYTES:
        raise InvalidArgument(
            f"the request is {len(whole)} bytes long, more than {MAX_OPEN_BYTES}",
            remedy="Write a file and run it, or send it on standard input",
        )
    pieces = memoryview(whole)
    starts = range(0, len(whole), CHUNK_BYTES)
    return [_encode((stream, 7, start == starts[-1], pieces[start : start + CHUNK_BYTES])) for start in starts]


def data_frame(stream: int, channel: int, offset: int, data: bytes | memoryview) -> bytes:
    """Bytes of a channel at an absolute offset; empty bytes end the channel there."""
    return _encode((stream, 1, channel, offset, data))


def until_frame(stream: int, channel: int, offset: int) -> bytes:
    """Credit: the sender of the channel may send up to this absolute offset."""
    return _encode((stream, 2, channel, offset))


def end_frame(stream: int, result: Any) -> bytes:
    """The stream's result; nothing follows."""
    return _encode((stream, 3, result))


def error_frame(stream: int, wire: dict[str, Any]) -> bytes:
    """The stream's failure, in the wire form of ``dsec.errors``; nothing follows."""
    return _encode((stream, 4, wire))


def close_frame(stream: int) -> bytes:
    """No longer interested in the stream."""
    return _encode((stream, 5))


def item_frame(stream: int, item: dict[str, Any]) -> bytes:
    """A message within the stream."""
    return _encode((stream, 6, item))


def decode(frame: bytes | memoryview) -> list[Any]:
    """The frame as a list; raises ProtocolError on anything that is no frame."""
    try:
        parts = _decode(frame)
    except MALFORMED as error:
        raise ProtocolError(f"not a frame: {error}") from None
    if len(parts) < 2 or type(parts[0]) is not int or type(parts[1]) is not int or not 0 <= parts[1] <= _LAST_KIND:
        raise ProtocolError("not a frame: stream and kind are missing")
    return parts


def peek(frame: bytes | bytearray | memoryview) -> tuple[int, int]:
    """(stream, kind) of a frame, from its first bytes; raises ProtocolError."""
    try:
        first = frame[1]
        if first < 0x80:
            return first, frame[2]
        size = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}[first]
        return int.from_bytes(frame[2 : 2 + size], "big"), frame[2 + size]
    except (IndexError, KeyError):
        raise ProtocolError("not a frame: stream and kind are missing") from None


class Joining:
    """Opens that come in parts, put together again."""

    def __init__(self) -> None:
        self._parts: dict[int, bytearray] = {}

    def take(self, frame: bytes | memoryview) -> bytes | None:
        """One part; with the last one the whole open. Raises ProtocolError for what is too long or no part."""
        parts = decode(frame)
        if len(parts) != 4 or not isinstance(parts[3], bytes):
            raise ProtocolError("a part has its stream, whether it is the last, and bytes")
        stream, last, piece = parts[0], parts[2], parts[3]
        if sum(map(len, self._parts.values())) + len(piece) > MAX_OPEN_BYTES:
            raise ProtocolError(f"an open is longer than {MAX_OPEN_BYTES} bytes")
        whole = self._parts.setdefault(stream, bytearray())
        whole += piece
        if not last:
            return None
        del self._parts[stream]
        if peek(whole) != (stream, Kind.OPEN):
            raise ProtocolError("parts that are no open")
        return bytes(whole)

    def drop(self, stream: int) -> None:
        """The stream was closed before its open was complete."""
        self._parts.pop(stream, None)
