"""The formats of the node's databases, and how a file of an earlier dsec is opened by a later one.

Each file carries its format in its header (SQLite's ``user_version``). Within one format a schema only grows: new
tables, and new columns at the end of a table that have a default or may be NULL, are added when an earlier file is
opened. Every other change needs the next number here. ``check_format`` refuses a file of another format before
anything is stopped or started for it; ``open_tables`` refuses it again when it is opened. Imports only ``errors``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from dsec.errors import Unsupported

__all__ = ["FORMATS", "check_format", "connect", "format_of", "open_tables"]

FORMATS: Final = {"node.db": 1, "catalogue.db": 1, "iam.db": 1}
"""File → its format. A file that says 0 is of format 1: the first version of dsec did not write it down."""
_HEADER_BYTES = 100
_AT = slice(60, 64)
_REMEDIES = {
    "node.db": "End the node with the dsec that runs it (`dsec down`), then `dsec up`: it holds only this boot",
    "catalogue.db": "Install the dsec that wrote it; or move it and layers/ away, then import images and layers anew",
    "iam.db": "Install the dsec that wrote it; or move it and the file `token` away, which makes every token invalid",
}


def format_of(path: Path) -> int | None:
    """The format in a file's header, read past all locks; None without a file, or without anything in it."""
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
    except FileNotFoundError:
        return None
    if len(header) < _HEADER_BYTES:
        return None
    return int.from_bytes(header[_AT], "big") or 1


def check_format(path: Path, *, name: str | None = None) -> None:
    """Raise Unsupported (phase ``machine``) when this program does not know the file's format.

    ``name``: which database it is, where the file is called otherwise.
    """
    found = format_of(path)
    if found is not None and found != FORMATS[name or path.name]:
        raise _other(path.name, f"has format {found}", path)


def connect(
    path: Path | str, *, uri: bool = False, shared: bool = False, cached_statements: int = 128
) -> sqlite3.Connection:
    """A connection that commits each statement by itself, and makes its temporary tables in memory.

    A part of the node that has given up root may write nowhere that SQLite would put a file. ``shared``: by threads.
    """
    db = sqlite3.connect(
        path,
        uri=uri,
        isolation_level=None,
        timeout=10,
        check_same_thread=not shared,
        cached_statements=cached_statements,
    )
    db.execute("PRAGMA temp_store=MEMORY")
    return db


def open_tables(db: sqlite3.Connection, schema: str, *, name: str) -> None:
    """Make the tables of ``schema``, or add what an earlier file lacks. Call it before ``journal_mode=WAL``.

    ``name`` is a key of FORMATS. Several parts may each open tables of their own in one file. Raises Unsupported
    when the file has another format, or columns that this program does not know.
    """
    found = int(db.execute("PRAGMA user_version").fetchone()[0])
    if found not in (0, FORMATS[name]):
        raise _other(name, f"has format {found}")
    if found == 0:
        # Into the header itself, where `check_format` finds it while another process has the file open.
        db.execute(f"PRAGMA user_version={FORMATS[name]}")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for table, wanted in _tables(schema):
        _grow(db, name, table, wanted)
    db.executescript(schema)


def _grow(db: sqlite3.Connection, name: str, table: str, wanted: list[tuple[str, str]]) -> None:
    """Add the columns that an earlier file's table lacks."""
    have = [(str(row[1]), str(row[2])) for row in db.execute(f"PRAGMA table_info({table})")]
    if not have:
        return
    known = [(column.split()[0], kind) for column, kind in wanted[: len(have)]]
    if have != known:
        raise _other(name, f"has another table {table!r}")
    for declaration, _ in wanted[len(have) :]:
        db.execute(f"ALTER TABLE {table} ADD COLUMN {declaration}")


def _tables(schema: str) -> Iterable[tuple[str, list[tuple[str, str]]]]:
    """Each table of a schema with its columns as (declaration for ALTER TABLE, type)."""
    model = sqlite3.connect(":memory:")
    try:
        model.executescript(schema)
        names = model.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
        for (table,) in names.fetchall():
            rows = model.execute(f"PRAGMA table_info({table})").fetchall()
            yield table, [(_declaration(row), str(row[2])) for row in rows]
    finally:
        model.close()


def _declaration(row: tuple[int, str, str, int, str | None, int]) -> str:
    _, column, kind, not_null, default, _ = row
    return " ".join(
        part
        for part in (
            column,
            kind,
            "NOT NULL" if not_null else "",
            f"DEFAULT {default}" if default is not None else "",
        )
        if part
    )


def _other(name: str, how: str, path: Path | None = None) -> Unsupported:
    return Unsupported(
        f"{path or name} {how}, and this dsec knows format {FORMATS[name]}",
        phase="machine",
        remedy=_REMEDIES[name],
    )
