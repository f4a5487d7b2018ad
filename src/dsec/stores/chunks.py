"""One chunk as a store holds it: zeros as nothing, else one zstd frame where that is smaller, else as it is."""

from __future__ import annotations

import hashlib
import threading

import zstandard

from dsec.errors import ImageCorrupt

__all__ = ["pack_chunk", "unpack_chunk"]

_LEVEL = 3
_own = threading.local()


def pack_chunk(raw: bytes) -> bytes:
    """The bytes to store; the same ones for the same chunk, whoever publishes it with this library."""
    if not raw.strip(b"\0"):
        return b""
    packed = _compressor().compress(raw)
    return packed if len(packed) < len(raw) else raw


def unpack_chunk(stored: bytes, length: int, digest: bytes) -> bytes:
    """The chunk of ``length`` bytes that was packed; raises ImageCorrupt unless it has the digest."""
    if not stored:
        raw = bytes(length)
    elif len(stored) == length:
        raw = stored
    else:
        raw = _decompress(stored, length)
    if len(raw) != length or hashlib.sha256(raw).digest() != digest:
        raise ImageCorrupt("a chunk is not what its digest says", phase="store")
    return raw


def _decompress(stored: bytes, length: int) -> bytes:
    try:
        # The frame itself says how much memory to take: it is asked first.
        if zstandard.get_frame_parameters(stored).content_size > length:
            raise ImageCorrupt("a chunk is larger than its layer says", phase="store")
        decompressor: zstandard.ZstdDecompressor = _decompressor()
        return decompressor.decompress(stored, max_output_size=length, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ImageCorrupt(f"a chunk cannot be decompressed: {error}", phase="store") from None


def _compressor() -> zstandard.ZstdCompressor:
    # Neither of them may be used by two threads at once.
    if not hasattr(_own, "compressor"):
        _own.compressor = zstandard.ZstdCompressor(level=_LEVEL)
    found: zstandard.ZstdCompressor = _own.compressor
    return found


def _decompressor() -> zstandard.ZstdDecompressor:
    if not hasattr(_own, "decompressor"):
        _own.decompressor = zstandard.ZstdDecompressor()
    found: zstandard.ZstdDecompressor = _own.decompressor
    return found
