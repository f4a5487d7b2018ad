"""Pulls under way, on disk: an edge that restarts goes on with what its predecessor had begun."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

__all__ = ["Pull", "Pulls"]

_RECORD = "pull.json"


class Pull(msgspec.Struct, frozen=True):
    """One pull: where it comes from, and the name that the image gets."""

    source: str
    name: str

    @property
    def id(self) -> str:
        """The same for the same pull, in every process."""
        return "pull-" + hashlib.sha256(f"{self.source}\0{self.name}".encode()).hexdigest()[:32]


class Pulls:
    """A directory with one directory for each pull under way."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._leaving = False

    def unfinished(self) -> list[Pull]:
        """What was under way when the process before this one ended; directories without a record are deleted."""
        found: list[Pull] = []
        if not self._directory.is_dir():
            return found
        for path in sorted(self._directory.iterdir()):
            try:
                pull = msgspec.json.decode((path / _RECORD).read_bytes(), type=Pull)
            except (OSError, msgspec.DecodeError):
                shutil.rmtree(path, ignore_errors=True)
            else:
                found.append(pull)
        return found

    def leave(self) -> None:
        """This process ends and another goes on: keep the directories."""
        self._leaving = True

    @contextlib.contextmanager
    def directory(self, pull: Pull) -> Iterator[Path]:
        """The directory of a pull, perhaps with what an earlier process had fetched; deleted at the end."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        path = self._directory / pull.id
        path.mkdir(mode=0o700, exist_ok=True)
        draft = path / f"{_RECORD}.new"
        draft.write_bytes(msgspec.json.encode(pull))
        draft.replace(path / _RECORD)
        try:
            yield path
        finally:
            if not self._leaving:
                shutil.rmtree(path, ignore_errors=True)
