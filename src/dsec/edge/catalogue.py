"""The edge's own table in ``catalogue.db``: which sandboxes there were, with labels and the cause of their end.

Survives reboots. ``synchronous=NORMAL`` flushes at checkpoints, so writes are collected and made in a thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from dsec.databases import connect, open_tables
from dsec.edge.record import SandboxRecord

__all__ = ["Catalogue", "PastSandbox"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS past_sandboxes (
    id TEXT PRIMARY KEY, name TEXT, image TEXT NOT NULL, labels TEXT NOT NULL, principal TEXT NOT NULL,
    cause TEXT NOT NULL, created_at REAL NOT NULL, ended_at REAL NOT NULL, project TEXT NOT NULL DEFAULT 'default'
) WITHOUT ROWID;
"""


class PastSandbox(msgspec.Struct, frozen=True, kw_only=True):
    """What stays of a sandbox after its tombstone."""

    id: str
    name: str | None
    image: str
    labels: dict[str, str]
    principal: str
    cause: str
    created_at: float
    ended_at: float
    project: str


class Catalogue:
    """The table. Each call opens its own connection: it runs in whatever thread it is called from."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._open() as db:
            open_tables(db, _SCHEMA, name="catalogue.db")

    @contextlib.contextmanager
    def _open(self):  # type: ignore[no-untyped-def]
        db = connect(self._path)
        try:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=NORMAL")
            yield db
        finally:
            db.close()

    def add(self, records: Sequence[SandboxRecord]) -> None:
        """Note ended sandboxes; one that is there already stays as it was. Blocks."""
        rows = [_row(each) for each in records]
        with self._open() as db:
            db.execute("BEGIN IMMEDIATE")
            db.executemany("INSERT OR IGNORE INTO past_sandboxes VALUES (?,?,?,?,?,?,?,?,?)", rows)
            db.execute("COMMIT")

    def find(self, sandbox_id: str) -> PastSandbox | None:
        """A sandbox that ended, of this boot or an earlier one."""
        with self._open() as db:
            row = db.execute("SELECT * FROM past_sandboxes WHERE id = ?", (sandbox_id,)).fetchone()
        if row is None:
            return None
        return PastSandbox(
            id=row[0],
            name=row[1],
            image=row[2],
            labels=msgspec.json.decode(row[3], type=dict[str, str]),
            principal=row[4],
            cause=row[5],
            created_at=row[6],
            ended_at=row[7],
            project=row[8],
        )


def _row(record: SandboxRecord) -> tuple[str, str | None, str, str, str, str, float, float, str]:
    labels = msgspec.json.encode(record.labels).decode()
    ended_at = record.ended_at or record.story[-1].at
    cause = record.cause or "lost"
    began = record.story[0].at
    return (
        record.id, record.name, record.image, labels, record.principal, cause, began, ended_at, record.project,
    )  # fmt: skip
