"""Trees of files as images have them: many small ones, few large ones, some of them compressible. Always the same."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

__all__ = ["Contents", "file_sizes", "write_tree"]

_POOL = 16 << 20
_BLOCK = 4096
_SIGMA = 2.2
_MOST = 256 << 20
_PER_DIRECTORY = 40
_TEXTS_IN_TEN = 6


class Contents:
    """Bytes of files by their number: text (compresses to about a third), or half text and half noise."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        self._noise = chance.randbytes(_POOL)
        words = [
            bytes(chance.choices(b"abcdefghijklmnopqrstuvwxyz_", k=chance.randrange(2, 12))) for _ in range(4000)
        ]
        lines = (b" ".join(chance.choices(words, k=9)) + b"\n" for _ in range(_POOL // 64))
        self._text = b"".join(lines)[:_POOL]

    def pieces(self, number: int, size: int) -> Iterator[bytes]:
        """The file's bytes, in pieces of at most 16 MiB; no two files share a block but by chance."""
        chance = random.Random(number)
        while size:
            if number % 10 < _TEXTS_IN_TEN or size < _BLOCK:
                piece = self._cut(self._text, chance, min(size, _POOL))
            else:
                piece = self._mixed(chance, min(size, _POOL))
            size -= len(piece)
            yield piece

    @staticmethod
    def _cut(pool: bytes, chance: random.Random, size: int) -> bytes:
        at = chance.randrange(len(pool))
        piece = pool[at : at + size]
        return piece if len(piece) == size else piece + pool[: size - len(piece)]

    def _mixed(self, chance: random.Random, size: int) -> bytes:
        noise = self._cut(self._noise, chance, size // 2)
        return noise + self._cut(self._text, chance, size - len(noise))


def file_sizes(seed: int, count: int, total: int) -> list[int]:
    """Sizes of ``count`` files (log-normal: half of them below a few KiB) that add up to nearly ``total`` bytes."""
    chance = random.Random(seed)
    drawn = [chance.lognormvariate(0, _SIGMA) for _ in range(count)]
    unit = total / sum(drawn)
    return [min(int(each * unit) + 1, _MOST) for each in drawn]


def write_tree(root: Path, contents: Contents, sizes: list[int], first: int = 0) -> None:
    """Write files ``dNN/dNN/fN`` of these sizes; their numbers begin with ``first``. Blocks."""
    folder = root
    for place, size in enumerate(sizes):
        if place % _PER_DIRECTORY == 0:
            number = place // _PER_DIRECTORY
            folder = root / f"d{number // 64:03}" / f"d{number % 64:02}"
            folder.mkdir(parents=True)
        fd = os.open(f"{folder}/f{first + place}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            for piece in contents.pieces(first + place, size):
                os.write(fd, piece)
        finally:
            os.close(fd)
