"""Layers for the tests of stores: any bytes as metadata and data."""

from __future__ import annotations

import random
from pathlib import Path

from dsec.images.store import CHUNK_SIZE, LayerManifest, describe, digest_of

__all__ = ["CHUNK_SIZE", "bytes_of", "chunk", "make_layer"]


def chunk(seed: int, *, size: int = CHUNK_SIZE) -> bytes:
    """Bytes that no compressor makes smaller, the same for the same seed."""
    return random.Random(seed).randbytes(size)


def make_layer(folder: Path, data: bytes, metadata: bytes = b"metadata " * 100) -> tuple[Path, LayerManifest, str]:
    """A layer's files; returns their directory, manifest and digest."""
    folder.mkdir(parents=True)
    (folder / "metadata").write_bytes(metadata)
    (folder / "data").write_bytes(data)
    manifest = describe(folder)
    return folder, manifest, digest_of(manifest)


def bytes_of(folder: Path) -> tuple[bytes, bytes]:
    """Metadata and data."""
    return (folder / "metadata").read_bytes(), (folder / "data").read_bytes()
