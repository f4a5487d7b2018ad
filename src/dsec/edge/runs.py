"""Runs of sessions in ``node.db``: the intent before, the outcome after."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any

import msgspec

from dsec.backends.wire import RunEnd

__all__ = ["SCHEMA", "RunRecord", "Runs"]

SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
    sandbox_id TEXT NOT NULL, run_id TEXT NOT NULL, body BLOB NOT NULL, result BLOB, error BLOB,
    PRIMARY KEY (sandbox_id, run_id)
) WITHOUT ROWID;
"""
_OPEN = """
SELECT sandbox_id, run_id FROM runs
WHERE sandbox_id IN (SELECT id FROM live) AND result IS NULL AND error IS NULL
"""

_pack = msgspec.msgpack.Encoder().encode
_end = msgspec.msgpack.Decoder(RunEnd).decode
_any = msgspec.msgpack.Decoder(Any).decode


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One run: its request, and its end or error once known."""

    body: bytes
    """Hash of the canonical request."""
    end: RunEnd | None = None
    error: dict[str, Any] | None = None
    """Wire form."""

    @property
    def is_over(self) -> bool:
        """Whether it has an outcome."""
        return self.end is not None or self.error is not None


class Runs:
    """The table; used over the connection of ``Records``."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._open: dict[str, set[str]] = {}
        for sandbox_id, run_id in db.execute(_OPEN):
            self._open.setdefault(sandbox_id, set()).add(run_id)

    def begin(self, sandbox_id: str, run_id: str, body: bytes) -> None:
        """Commit the intent."""
        self._db.execute("INSERT INTO runs VALUES (?,?,?,NULL,NULL)", (sandbox_id, run_id, body))
        self._open.setdefault(sandbox_id, set()).add(run_id)

    def find(self, sandbox_id: str, run_id: str) -> RunRecord | None:
        """A run by ID."""
        row = self._db.execute(
            "SELECT body, result, error FROM runs WHERE sandbox_id = ? AND run_id = ?", (sandbox_id, run_id)
        ).fetchone()
        if row is None:
            return None
        return RunRecord(
            body=row[0],
            end=None if row[1] is None else _end(row[1]),
            error=None if row[2] is None else _any(row[2]),
        )

    def without_outcome(self, sandbox_id: str) -> frozenset[str]:
        """IDs of a sandbox's runs that have begun, or were to."""
        return frozenset(self._open.get(sandbox_id, ()))

    def end(self, sandbox_id: str, run_id: str, *, end: RunEnd | None = None, error: Any = None) -> None:
        """Commit an outcome; one that is known stands."""
        if self._no_longer_open(sandbox_id, run_id):
            self._db.execute(
                "UPDATE runs SET result = ?, error = ? WHERE sandbox_id = ? AND run_id = ?",
                (None if end is None else _pack(end), None if error is None else _pack(error), sandbox_id, run_id),
            )

    def drop(self, sandbox_id: str, run_id: str) -> None:
        """Forget a run that did not begin."""
        if self._no_longer_open(sandbox_id, run_id):
            self._db.execute("DELETE FROM runs WHERE sandbox_id = ? AND run_id = ?", (sandbox_id, run_id))

    def remove(self, sandbox_ids: Iterable[str]) -> None:
        """Drop all runs of sandboxes; part of the caller's transaction."""
        for sandbox_id in sandbox_ids:
            self._db.execute("DELETE FROM runs WHERE sandbox_id = ?", (sandbox_id,))
            self._open.pop(sandbox_id, None)

    def _no_longer_open(self, sandbox_id: str, run_id: str) -> bool:
        of_sandbox = self._open.get(sandbox_id, set())
        was = run_id in of_sandbox
        of_sandbox.discard(run_id)
        if not of_sandbox:
            self._open.pop(sandbox_id, None)
        return was
