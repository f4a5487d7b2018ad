"""A layer below that is fetched as it is read: read to its end before it is packed in, or an error; never zeros."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from dsec.errors import Conflict, StoreUnreachable
from dsec.layering.packing import filling
from dsec.layering.packing.filling import make_whole

SIZE = 3_000_000


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    """One that is not whole."""
    (tmp_path / "filled").touch()
    (tmp_path / "data").write_bytes(bytes(SIZE))
    return tmp_path


def test_it_is_read_until_it_is_whole(layer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To its last byte; it is whole only when the holder says so, and then nothing is read any more."""
    read: list[int] = []
    os_read = os.read

    def reading(fd: int, size: int) -> bytes:
        data = os_read(fd, size)
        read.append(len(data))
        if not data:
            threading.Timer(0.05, (layer / "filled").unlink).start()
        return data

    monkeypatch.setattr(os, "read", reading)
    make_whole(layer)
    assert sum(read) == SIZE and not (layer / "filled").exists()
    make_whole(layer)
    assert sum(read) == SIZE


def test_a_store_that_is_away(layer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EIO, which the holder answers after its retries, is StoreUnreachable; the layer is as it was."""

    def failing(_: int, __: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "read", failing)
    with pytest.raises(StoreUnreachable, match=layer.name) as caught:
        make_whole(layer)
    assert caught.value.retryable and (layer / "filled").exists()


def test_zeros_are_never_taken_for_it(layer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer that nobody fills can be read, and is a Conflict all the same."""
    monkeypatch.setattr(filling, "_FLUSHED_S", 0.1)
    with pytest.raises(Conflict):
        make_whole(layer)
