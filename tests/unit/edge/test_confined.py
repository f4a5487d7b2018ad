"""Where the edge may write: its own places and its stores', and not what happens to be around them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dsec.edge import confined

OWN = Path("/var/lib/dsec/node")


def _of(directory: Path, monkeypatch: pytest.MonkeyPatch, *mounts: str) -> set[Path]:
    monkeypatch.setattr(confined, "_mounts", lambda: map(Path, ("/", *mounts)))
    return set(confined._of_store(directory, OWN))


def test_a_directory_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Itself; or, as long as there is none, what it will be made in."""
    assert _of(tmp_path, monkeypatch) == {tmp_path}
    assert _of(tmp_path / "not" / "yet", monkeypatch) == {tmp_path}


def test_a_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the mount is in as well: one that is made anew is another one there."""
    place = tmp_path / "mount" / "below"
    place.mkdir(parents=True)
    assert _of(place, monkeypatch, str(tmp_path), str(tmp_path / "mount")) == {place, tmp_path}


def test_what_is_the_machines_or_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the machine's directories nor those that hold the node's own files, whatever a store's address says."""
    assert _of(Path("/var/lib/no-such-store"), monkeypatch) == set()
    assert _of(Path("/usr"), monkeypatch, "/usr") == set()
    assert _of(Path("/var"), monkeypatch) == set()


def test_a_store_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mount that answers with an error keeps the edge from nothing."""
    real = os.open

    def broken(path: Path, flags: int) -> int:
        if Path(path) == tmp_path / "mount":
            raise OSError(107, "Transport endpoint is not connected")
        return real(path, flags)

    monkeypatch.setattr(os, "open", broken)
    assert _of(tmp_path / "mount", monkeypatch, str(tmp_path / "mount")) == {tmp_path}


def test_mounts_of_any_name() -> None:
    """The kernel's own list is read; names that it escapes come back."""
    assert Path("/proc") in set(confined._mounts())
