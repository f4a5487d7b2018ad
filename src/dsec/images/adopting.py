"""One catalogue's rows taken into another: a node that shares another's layers knows its images too."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from urllib.parse import quote

__all__ = ["adopt_rows"]

_TABLES = ("layers", "diff_ids", "blobs", "images", "layer_tags", "collapsed")
_OF_IMAGES = ("image_layers", "image_parts", "image_blobs")


def adopt_rows(db: sqlite3.Connection, other: Path) -> None:
    """Copy what the catalogue ``other`` knows and ``db`` does not."""
    db.execute("ATTACH DATABASE ? AS other", (f"file:{quote(str(other))}?mode=ro",))
    try:
        with db:
            db.execute("BEGIN IMMEDIATE")
            new = db.execute(
                "SELECT reference FROM other.images WHERE reference NOT IN (SELECT reference FROM main.images)"
            ).fetchall()
            for table in _TABLES:
                # An earlier dsec's table may lack the last columns, or not be there.
                names = [row[1] for row in db.execute(f"PRAGMA other.table_info({table})")]
                if names:
                    columns = ", ".join(names)
                    db.execute(
                        f"INSERT OR IGNORE INTO main.{table} ({columns}) SELECT {columns} FROM other.{table}"  # noqa: S608
                    )
            for table in _OF_IMAGES:
                if db.execute(f"PRAGMA other.table_info({table})").fetchone() is not None:
                    db.executemany(
                        f"INSERT INTO main.{table} SELECT * FROM other.{table} WHERE reference = ?",  # noqa: S608
                        new,
                    )
    finally:
        db.execute("DETACH DATABASE other")
