"""``node.db``: the sandboxes, creates and execs of this boot.

WAL with ``synchronous=OFF``: what is committed survives the death of any process, not that of the machine; and after
a reboot there is nothing left for it to describe. Calls are inline (tens of microseconds), never in a thread. What
lives is apart from what has ended, so that the pages that each create and stop touch are few.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from dsec.backends.wire import ExecEnd
from dsec.databases import connect, open_tables
from dsec.edge.job_record import JobRecord
from dsec.edge.record import ExecRecord, SandboxRecord
from dsec.edge.runs import SCHEMA as RUNS_SCHEMA
from dsec.edge.runs import Runs
from dsec.edge.snapshot_records import SCHEMA as SNAPSHOTS_SCHEMA
from dsec.edge.snapshot_records import pack_documents, snapshot_documents

__all__ = ["CreateRecord", "Records"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS boot (id TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS live (
    id TEXT PRIMARY KEY, project TEXT NOT NULL, name TEXT, doc BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS live_name ON live (project, name) WHERE name IS NOT NULL;
CREATE TABLE IF NOT EXISTS ended (
    turn INTEGER PRIMARY KEY, -- counts up and is never used again
    id TEXT NOT NULL UNIQUE, project TEXT NOT NULL, name TEXT, ended_at REAL NOT NULL,
    doc BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS ended_at ON ended (ended_at);
CREATE INDEX IF NOT EXISTS ended_name ON ended (project, name) WHERE name IS NOT NULL;
CREATE TABLE IF NOT EXISTS catalogued (turn INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS creates (
    project TEXT NOT NULL, key TEXT NOT NULL, body BLOB, sandbox_id TEXT, error BLOB, cancelled INTEGER NOT NULL,
    at REAL NOT NULL, PRIMARY KEY (project, key)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS creates_at ON creates (at);
CREATE TABLE IF NOT EXISTS execs (
    sandbox_id TEXT NOT NULL, exec_id TEXT NOT NULL, body BLOB NOT NULL, argv BLOB NOT NULL, started_at REAL NOT NULL,
    is_main INTEGER NOT NULL, -- and what else is true of it, one bit each: see _TRAITS
    result BLOB, error BLOB, PRIMARY KEY (sandbox_id, exec_id)
);
CREATE TABLE IF NOT EXISTS kept (id TEXT PRIMARY KEY) WITHOUT ROWID; -- tombstones whose disk is kept
CREATE TABLE IF NOT EXISTS jobs (
    project TEXT NOT NULL, name TEXT NOT NULL, doc BLOB NOT NULL, PRIMARY KEY (project, name)
) WITHOUT ROWID;
"""

_LAST_TURN = """
SELECT max((SELECT coalesce(max(turn), 0) FROM ended), (SELECT coalesce(max(turn), 0) FROM catalogued))
"""

_OPEN_EXECS = """
SELECT sandbox_id, exec_id FROM execs
WHERE sandbox_id IN (SELECT id FROM live) AND result IS NULL AND error IS NULL
"""

_TRAITS = {"is_main": 1, "merge_stderr": 2, "stdin": 4, "pty": 8}

_pack = msgspec.msgpack.Encoder().encode
_record = msgspec.msgpack.Decoder(SandboxRecord).decode
_job = msgspec.msgpack.Decoder(JobRecord).decode
_end = msgspec.msgpack.Decoder(ExecEnd).decode
_any = msgspec.msgpack.Decoder(Any).decode
_argv = msgspec.msgpack.Decoder(list[bytes]).decode


class CreateRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a create key led to: a sandbox, an error that is remembered, or a cancellation that came first."""

    body: bytes | None
    sandbox_id: str | None
    error: dict[str, Any] | None
    cancelled: bool


class Records:
    """The database; one connection, used from the event loop only."""

    def __init__(self, path: Path | str) -> None:
        self._db = connect(path, cached_statements=64)
        # There is one edge for each node: without locks to take and drop, a commit costs half.
        self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
        open_tables(self._db, _SCHEMA + RUNS_SCHEMA + SNAPSHOTS_SCHEMA, name="node.db")
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=OFF")
        self._jobs = {(each.project, each.name): each for each in map(_job, self._column("SELECT doc FROM jobs"))}
        """All of them: every request of a job's holder looks here."""
        self.runs = Runs(self._db)
        self.snapshots = snapshot_documents(self._db)
        self.packs = pack_documents(self._db)
        self._open: dict[str, set[str]] = {}
        """Execs without an outcome, by sandbox: what most questions about them are answered from."""
        for sandbox_id, exec_id in self._db.execute(_OPEN_EXECS):
            self._open.setdefault(sandbox_id, set()).add(exec_id)
        self._turn = int(self._db.execute(_LAST_TURN).fetchone()[0])

    def close(self) -> None:
        """End the connection."""
        self._db.close()

    def _column(self, query: str) -> list[Any]:
        return [row[0] for row in self._db.execute(query)]

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    # Sandboxes

    def intend(self, record: SandboxRecord, body: bytes, main: ExecRecord | None) -> None:
        """Commit the intent to make a sandbox, its key and its main process, in one transaction."""
        with self._transaction():
            self.save(record)
            self._db.execute(
                "INSERT OR REPLACE INTO creates VALUES (?,?,?,?,NULL,0,?)",
                (record.project, record.key, body, record.id, record.story[0].at),
            )
            if main is not None:
                self.begin_exec(main)

    def save(self, record: SandboxRecord) -> None:
        """Commit a sandbox's record as it is now."""
        if record.ended_at is None:
            self._db.execute(
                "INSERT OR REPLACE INTO live VALUES (?,?,?,?)",
                (record.id, record.project, record.name, _pack(record)),
            )
            return
        self._turn += 1
        with self._transaction():
            self._db.execute("DELETE FROM live WHERE id = ?", (record.id,))
            self._db.execute(
                "INSERT INTO ended VALUES (?,?,?,?,?,?)"
                " ON CONFLICT (id) DO UPDATE SET ended_at = excluded.ended_at, doc = excluded.doc",
                (self._turn, record.id, record.project, record.name, record.ended_at, _pack(record)),
            )
            if record.kept_until is not None:
                self._db.execute("INSERT OR IGNORE INTO kept VALUES (?)", (record.id,))
            elif record.used_to_keep:
                self._db.execute("DELETE FROM kept WHERE id = ?", (record.id,))

    def kept(self) -> list[str]:
        """Tombstones whose disk is kept."""
        return self._column("SELECT id FROM kept")

    def ended_since(self, at: float, after: int, limit: int) -> tuple[int, list[SandboxRecord]]:
        """A page of tombstones of sandboxes that ended at that time or later, and where the next begins."""
        rows = self._db.execute(
            "SELECT turn, doc FROM ended WHERE ended_at >= ? AND turn > ? ORDER BY turn LIMIT ?", (at, after, limit)
        ).fetchall()
        return (rows[-1][0] if rows else after), [_record(row[1]) for row in rows]

    def sandbox(self, sandbox_id: str) -> SandboxRecord | None:
        """A sandbox by ID, live or ended."""
        row = self._db.execute(
            "SELECT doc FROM live WHERE id = ? UNION ALL SELECT doc FROM ended WHERE id = ?", (sandbox_id, sandbox_id)
        ).fetchone()
        return _record(row[0]) if row else None

    def has_ended(self, sandbox_id: str) -> bool:
        """Whether there is a tombstone of that ID."""
        return self._db.execute("SELECT 1 FROM ended WHERE id = ?", (sandbox_id,)).fetchone() is not None

    def named(self, project: str, name: str) -> SandboxRecord | None:
        """The live sandbox of that name, else the one that ended last."""
        for query in (
            "SELECT doc FROM live WHERE project = ? AND name = ?",
            "SELECT doc FROM ended WHERE project = ? AND name = ? ORDER BY ended_at DESC, turn DESC LIMIT 1",
        ):
            row = self._db.execute(query, (project, name)).fetchone()
            if row is not None:
                return _record(row[0])
        return None

    def projects_with(self, name: str) -> list[str]:
        """The projects in which a sandbox, live or ended, has that name."""
        rows = self._db.execute(
            "SELECT project FROM live WHERE name = ? UNION SELECT project FROM ended WHERE name = ? ORDER BY 1",
            (name, name),
        )
        return [row[0] for row in rows]

    def live(self) -> list[SandboxRecord]:
        """All sandboxes that have not ended."""
        return [_record(row[0]) for row in self._db.execute("SELECT doc FROM live")]

    def ended(self) -> Iterator[SandboxRecord]:
        """All tombstones, the latest first."""
        return (
            _record(row[0]) for row in self._db.execute("SELECT doc FROM ended ORDER BY ended_at DESC, turn DESC")
        )

    def not_catalogued(self) -> list[SandboxRecord]:
        """Tombstones that are not known to be in the catalogue, in the order they were made."""
        rows = self._db.execute(
            "SELECT doc FROM ended WHERE turn > (SELECT coalesce(max(turn), 0) FROM catalogued) ORDER BY turn"
        )
        return [_record(row[0]) for row in rows]

    def note_catalogued(self, last: str) -> None:
        """This tombstone, and all that were made before it, are in the catalogue."""
        with self._transaction():
            self._db.execute("DELETE FROM catalogued WHERE turn <= (SELECT turn FROM ended WHERE id = ?)", (last,))
            self._db.execute("INSERT INTO catalogued SELECT turn FROM ended WHERE id = ?", (last,))

    def ended_before(self, at: float, limit: int) -> list[str]:
        """IDs of tombstones older than a time."""
        rows = self._db.execute("SELECT id FROM ended WHERE ended_at < ? LIMIT ?", (at, limit))
        return [row[0] for row in rows]

    def count_ended(self, project: str | None = None) -> int:
        """How many tombstones there are, in all or in a project."""
        query = "SELECT count(*) FROM ended WHERE ? IS NULL OR project = ?"
        return int(self._db.execute(query, (project, project)).fetchone()[0])

    def remove(self, sandbox_ids: Iterable[str]) -> None:
        """Drop sandboxes with their execs; the create keys stay."""
        rows = [(each,) for each in sandbox_ids]
        with self._transaction():
            self._db.executemany("DELETE FROM live WHERE id = ?", rows)
            self._db.executemany("DELETE FROM ended WHERE id = ?", rows)
            self._db.executemany("DELETE FROM kept WHERE id = ?", rows)
            self._db.executemany("DELETE FROM execs WHERE sandbox_id = ?", rows)
            self.runs.remove(each for (each,) in rows)
        for (sandbox_id,) in rows:
            self._open.pop(sandbox_id, None)

    def of_another_boot(self, boot_id: str) -> bool:
        """Whether the records are those of an earlier boot of the machine."""
        row = self._db.execute("SELECT id FROM boot").fetchone()
        return row is not None and row[0] != boot_id

    def begin_boot(self, boot_id: str) -> None:
        """Drop what an earlier boot left; from now on the records are this boot's."""
        if self.of_another_boot(boot_id):
            self._db.executescript(
                "DELETE FROM live; DELETE FROM ended; DELETE FROM catalogued; DELETE FROM creates; DELETE FROM execs;"
                "DELETE FROM jobs; DELETE FROM kept; DELETE FROM runs; DELETE FROM snapshots; DELETE FROM packs;"
            )
            self._jobs.clear()
        self._db.execute("DELETE FROM boot")
        self._db.execute("INSERT INTO boot VALUES (?)", (boot_id,))

    # Creates

    def create(self, project: str, key: str) -> CreateRecord | None:
        """What a create key led to."""
        row = self._db.execute(
            "SELECT body, sandbox_id, error, cancelled FROM creates WHERE project = ? AND key = ?", (project, key)
        ).fetchone()
        if row is None:
            return None
        error = None if row[2] is None else _any(row[2])
        return CreateRecord(body=row[0], sandbox_id=row[1], error=error, cancelled=bool(row[3]))

    def refuse_create(self, project: str, key: str, body: bytes, error: dict[str, Any], at: float) -> None:
        """Remember the error of a key."""
        self._db.execute(
            "INSERT OR REPLACE INTO creates VALUES (?,?,?,NULL,?,0,?)", (project, key, body, _pack(error), at)
        )

    def cancel_create(self, project: str, key: str, at: float) -> None:
        """Remember that a key was cancelled, whether or not it was used."""
        self._db.execute(
            "INSERT INTO creates VALUES (?,?,NULL,NULL,NULL,1,?) ON CONFLICT DO UPDATE SET cancelled = 1",
            (project, key, at),
        )

    def undo(self, record: SandboxRecord) -> None:
        """Drop a sandbox that was not made, and its key unless that was cancelled."""
        self.remove([record.id])
        self._db.execute(
            "DELETE FROM creates WHERE project = ? AND key = ? AND sandbox_id = ? AND NOT cancelled",
            (record.project, record.key, record.id),
        )

    def expire_creates(self, before: float) -> None:
        """Forget keys that are older than a time, and whose sandboxes have no record any more."""
        self._db.execute(
            "DELETE FROM creates WHERE at < ? AND NOT EXISTS (SELECT 1 FROM live WHERE id = sandbox_id) "
            "AND NOT EXISTS (SELECT 1 FROM ended WHERE id = sandbox_id)",
            (before,),
        )

    # Jobs

    def job(self, project: str, name: str) -> JobRecord | None:
        """A job by name."""
        return self._jobs.get((project, name))

    def jobs(self) -> list[JobRecord]:
        """All jobs, by name."""
        return [self._jobs[key] for key in sorted(self._jobs)]

    def save_job(self, record: JobRecord) -> None:
        """Commit a job as it is now."""
        self._db.execute("INSERT OR REPLACE INTO jobs VALUES (?,?,?)", (record.project, record.name, _pack(record)))
        self._jobs[record.project, record.name] = record

    def remove_job(self, project: str, name: str) -> None:
        """Forget a job."""
        self._db.execute("DELETE FROM jobs WHERE project = ? AND name = ?", (project, name))
        self._jobs.pop((project, name), None)

    # Execs

    def begin_exec(self, record: ExecRecord) -> None:
        """Commit the intent to start an exec."""
        self._db.execute(
            "INSERT INTO execs VALUES (?,?,?,?,?,?,NULL,NULL)",
            (
                record.sandbox_id,
                record.exec_id,
                record.body,
                _pack(record.argv),
                record.started_at,
                sum(bit for name, bit in _TRAITS.items() if getattr(record, name)),
            ),
        )
        self._open.setdefault(record.sandbox_id, set()).add(record.exec_id)

    def exec(self, sandbox_id: str, exec_id: str) -> ExecRecord | None:
        """An exec by ID."""
        rows = self._execs("sandbox_id = ? AND exec_id = ?", (sandbox_id, exec_id))
        return rows[0] if rows else None

    def execs(self, sandbox_id: str, *, unended: bool = False) -> list[ExecRecord]:
        """The execs of a sandbox in order of their start; all, or those without an outcome."""
        if unended and sandbox_id not in self._open:
            return []
        only = " AND result IS NULL AND error IS NULL" if unended else ""
        return self._execs(f"sandbox_id = ?{only} ORDER BY started_at, rowid", (sandbox_id,))

    def _execs(self, where: str, values: tuple[Any, ...]) -> list[ExecRecord]:
        rows = self._db.execute(f"SELECT * FROM execs WHERE {where}", values)  # noqa: S608  (constant texts)
        return [
            ExecRecord(
                sandbox_id=row[0],
                exec_id=row[1],
                body=row[2],
                argv=_argv(row[3]),
                started_at=row[4],
                end=None if row[6] is None else _end(row[6]),
                error=None if row[7] is None else _any(row[7]),
                **{name: bool(row[5] & bit) for name, bit in _TRAITS.items()},
            )
            for row in rows
        ]

    def end_exec(
        self, sandbox_id: str, exec_id: str, *, end: ExecEnd | None = None, error: dict[str, Any] | None = None
    ) -> bool:
        """Commit an exec's outcome; False when it has one already, which stands, or is not known."""
        if exec_id not in self._open.get(sandbox_id, ()):
            return False
        done = self._db.execute(
            "UPDATE execs SET result = ?, error = ? WHERE sandbox_id = ? AND exec_id = ?"
            " AND result IS NULL AND error IS NULL",
            (None if end is None else _pack(end), None if error is None else _pack(error), sandbox_id, exec_id),
        )
        self._no_longer_open(sandbox_id, exec_id)
        return done.rowcount == 1

    def drop_exec(self, sandbox_id: str, exec_id: str) -> None:
        """Forget an exec that was not started."""
        self._db.execute(
            "DELETE FROM execs WHERE sandbox_id = ? AND exec_id = ? AND result IS NULL AND error IS NULL",
            (sandbox_id, exec_id),
        )
        self._no_longer_open(sandbox_id, exec_id)

    def _no_longer_open(self, sandbox_id: str, exec_id: str) -> None:
        of_sandbox = self._open.get(sandbox_id, set())
        of_sandbox.discard(exec_id)
        if not of_sandbox:
            self._open.pop(sandbox_id, None)
