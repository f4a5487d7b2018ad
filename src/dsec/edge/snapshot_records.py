"""The snapshots of this boot, and what was packed of them, in ``node.db``."""

from __future__ import annotations

import sqlite3
from typing import Generic, TypeVar

import msgspec

from dsec.edge.pack_record import PackRecord
from dsec.edge.snapshot_record import SnapshotRecord

__all__ = ["SCHEMA", "Documents", "pack_documents", "snapshot_documents"]

SCHEMA = """
CREATE TABLE IF NOT EXISTS snapshots (id TEXT PRIMARY KEY, at REAL NOT NULL, doc BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS packs (id TEXT PRIMARY KEY, at REAL NOT NULL, doc BLOB NOT NULL) WITHOUT ROWID;
"""

T = TypeVar("T")
_pack = msgspec.msgpack.Encoder().encode


class Documents(Generic[T]):
    """A table of documents by ID."""

    def __init__(self, db: sqlite3.Connection, table: str, kind: type[T]) -> None:
        self._db = db
        self._table = table
        self._decode = msgspec.msgpack.Decoder(kind).decode

    def get(self, own: str) -> T | None:
        """One of them."""
        row = self._db.execute(f"SELECT doc FROM {self._table} WHERE id = ?", (own,)).fetchone()  # noqa: S608
        return None if row is None else self._decode(row[0])

    def all(self) -> list[T]:
        """All of them."""
        return [self._decode(row[0]) for row in self._db.execute(f"SELECT doc FROM {self._table}")]  # noqa: S608

    def put(self, own: str, at: float, document: T) -> None:
        """Commit one as it is now; ``at`` is what it is expired by."""
        self._db.execute(f"INSERT OR REPLACE INTO {self._table} VALUES (?,?,?)", (own, at, _pack(document)))  # noqa: S608

    def drop(self, own: str) -> None:
        """Forget one."""
        self._db.execute(f"DELETE FROM {self._table} WHERE id = ?", (own,))  # noqa: S608

    def clear(self) -> None:
        """Forget all."""
        self._db.execute(f"DELETE FROM {self._table}")  # noqa: S608

    def expire(self, before: float) -> None:
        """Forget those that are older than a time."""
        self._db.execute(f"DELETE FROM {self._table} WHERE at < ?", (before,))  # noqa: S608


_FOREVER = 1e18


class SnapshotDocuments(Documents[SnapshotRecord]):
    """Snapshots; those that are gone expire."""

    def save(self, record: SnapshotRecord) -> None:
        """Commit one as it is now."""
        self.put(record.id, _FOREVER if record.removed_at is None else record.removed_at, record)


def snapshot_documents(db: sqlite3.Connection) -> SnapshotDocuments:
    """Those of a database."""
    return SnapshotDocuments(db, "snapshots", SnapshotRecord)


class PackDocuments(Documents[PackRecord]):
    """Packings; they expire a day after they were asked for."""

    def save(self, record: PackRecord) -> None:
        """Commit one as it is now."""
        self.put(record.id, record.at, record)


def pack_documents(db: sqlite3.Connection) -> PackDocuments:
    """Those of a database."""
    return PackDocuments(db, "packs", PackRecord)
