"""What the node remembers of its layers beyond what they are: which stores have them, what it claims there, last use.

Tables of ``catalogue.db``. A claim is written here before it is made in a store, and goes from here after it was
given back there, so that no death of the node leaves one that nobody knows of.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsec.databases import connect, open_tables

__all__ = ["Copies"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS layer_copies (
    digest TEXT NOT NULL, store TEXT NOT NULL, claimed INTEGER NOT NULL, PRIMARY KEY (digest, store)) STRICT;
CREATE TABLE IF NOT EXISTS layer_uses (digest TEXT PRIMARY KEY, at REAL NOT NULL) STRICT;
"""


class Copies:
    """The tables; safe to call from several threads. Stores are known by their names in the node's settings."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.RLock()
        self._db = connect(path, shared=True)
        open_tables(self._db, _SCHEMA, name="catalogue.db")
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        # Claims are flushed; nobody who only reads waits for that.
        self._claiming = threading.Lock()
        self._flushed = connect(path, shared=True)
        self._flushed.execute("PRAGMA synchronous=FULL")

    def close(self) -> None:
        """Close the file."""
        with self._claiming, self._lock:
            self._flushed.close()
            self._db.close()

    # Copies

    def note(self, digest: str, store: str) -> None:
        """A store has the layer, as far as is known."""
        self._do("INSERT OR IGNORE INTO layer_copies VALUES (?, ?, 0)", digest, store)

    def stores(self, digest: str) -> list[str]:
        """The stores that are known to have had the layer, by name."""
        return self._names("SELECT store FROM layer_copies WHERE digest = ? ORDER BY store", digest)

    def all(self) -> dict[str, list[str]]:
        """Digest → stores, of every layer of which there is a copy."""
        found: dict[str, list[str]] = {}
        for digest, store in self._rows("SELECT digest, store FROM layer_copies ORDER BY digest, store"):
            found.setdefault(digest, []).append(store)
        return found

    def lost(self, digest: str, store: str) -> None:
        """A store has it no more. What is claimed there still is."""
        self._do("DELETE FROM layer_copies WHERE digest = ? AND store = ? AND NOT claimed", digest, store)

    def forget(self, digest: str) -> None:
        """The layer has left the node for good: where it could be had is of no interest, what is claimed is."""
        self._do("DELETE FROM layer_copies WHERE digest = ? AND NOT claimed", digest)
        self._do("DELETE FROM layer_uses WHERE digest = ?", digest)

    # Claims

    def intend_claim(self, digest: str, store: str) -> None:
        """A claim is about to be made. On disk when this returns, whatever the machine does; blocks until then."""
        with self._claiming:
            # One that is claimed was flushed when it was: nobody else writes a 1.
            if store not in self.claims(digest):
                self._flushed.execute(
                    "INSERT INTO layer_copies VALUES (?, ?, 1) ON CONFLICT DO UPDATE SET claimed = 1", (digest, store)
                )

    def claims(self, digest: str) -> list[str]:
        """The stores in which the layer is claimed, or may be."""
        return self._names("SELECT store FROM layer_copies WHERE digest = ? AND claimed ORDER BY store", digest)

    def unclaimed(self, digest: str, store: str) -> None:
        """The claim was given back. Whether the store still has the layer is not known from that."""
        self._do("UPDATE layer_copies SET claimed = 0 WHERE digest = ? AND store = ?", digest, store)

    def stale(self) -> list[str]:
        """Layers that the catalogue does not know, and that are claimed."""
        return self._names(
            "SELECT DISTINCT digest FROM layer_copies WHERE claimed AND digest NOT IN (SELECT digest FROM layers) "
            "ORDER BY digest"
        )

    # Uses

    def note_uses(self, uses: Mapping[str, float]) -> None:
        """When layers were used last, seconds since 1970; never moved back."""
        with self._lock, self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany(
                "INSERT INTO layer_uses VALUES (?, ?) ON CONFLICT DO UPDATE SET at = max(at, excluded.at)",
                list(uses.items()),
            )

    def uses(self) -> dict[str, float]:
        """Digest → last use, as far as it was written."""
        return dict(self._rows("SELECT digest, at FROM layer_uses"))

    def _do(self, statement: str, *values: str) -> None:
        with self._lock:
            self._db.execute(statement, values)

    def _rows(self, query: str, *values: str) -> list[Any]:
        with self._lock:
            return self._db.execute(query, values).fetchall()

    def _names(self, query: str, *values: str) -> list[str]:
        return [str(row[0]) for row in self._rows(query, *values)]
