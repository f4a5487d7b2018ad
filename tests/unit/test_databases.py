"""Files of other versions of dsec: grown, begun anew, or refused with what to do."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

import dsec
from dsec.databases import FORMATS, check_format, connect, format_of, open_tables
from dsec.edge.catalogue import Catalogue as PastSandboxes
from dsec.edge.records import Records
from dsec.errors import Unsupported
from dsec.iam.tokens import Tokens
from dsec.images.catalogue import Catalogue
from dsec.node.formats import check_databases, settle_databases
from dsec.node.paths import NodePaths

GOLDEN = Path(__file__).parents[1] / "golden" / "databases"
OLD = "CREATE TABLE IF NOT EXISTS things (id TEXT PRIMARY KEY, size INTEGER NOT NULL) STRICT;"
GROWN = """
CREATE TABLE IF NOT EXISTS things (
    id TEXT PRIMARY KEY, size INTEGER NOT NULL, colour TEXT NOT NULL DEFAULT 'red', note TEXT) STRICT;
CREATE TABLE IF NOT EXISTS others (id TEXT);
"""


@pytest.fixture
def paths(tmp_path: Path) -> NodePaths:
    """A node's places, its data directory made."""
    made = NodePaths("test", tmp_path)
    made.data.mkdir(parents=True)
    return made


def write_format(path: Path, number: int) -> None:
    """A database that says it is of this format."""
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version={number}")
    db.execute("CREATE TABLE IF NOT EXISTS something (id TEXT)")
    db.close()


def test_new_files_say_their_format(paths: NodePaths) -> None:
    """Each of the node's files has its format in the header, readable while another holds the file for itself."""
    records, tokens, catalogue = Records(paths.node_db), Tokens(paths.iam_db), Catalogue(paths.catalogue_db)
    try:
        found = {path.name: format_of(path) for path in (paths.node_db, paths.iam_db, paths.catalogue_db)}
        header = paths.node_db.read_bytes()[60:64]
    finally:
        records.close()
        tokens.close()
        catalogue.close()
    assert found == FORMATS
    assert int.from_bytes(header, "big") == FORMATS["node.db"]


def test_earlier_file_grows(tmp_path: Path) -> None:
    """New tables and new columns with a default are added to an earlier file, its rows keep what they had."""
    db = sqlite3.connect(tmp_path / "node.db", isolation_level=None)
    open_tables(db, OLD, name="node.db")
    db.execute("INSERT INTO things VALUES ('a', 1)")
    open_tables(db, GROWN, name="node.db")
    db.execute("INSERT INTO things VALUES ('b', 2, 'blue', 'new')")
    assert db.execute("SELECT * FROM things ORDER BY id").fetchall() == [
        ("a", 1, "red", None),
        ("b", 2, "blue", "new"),
    ]
    open_tables(db, GROWN, name="node.db")  # again: nothing to do
    db.close()


@pytest.mark.parametrize(
    "other",
    [
        "CREATE TABLE IF NOT EXISTS things (id TEXT PRIMARY KEY, weight INTEGER NOT NULL) STRICT;",
        "CREATE TABLE IF NOT EXISTS things (id TEXT PRIMARY KEY, size TEXT NOT NULL) STRICT;",
        "CREATE TABLE IF NOT EXISTS things (id TEXT PRIMARY KEY) STRICT;",
        "CREATE TABLE IF NOT EXISTS things (id TEXT PRIMARY KEY, colour TEXT, size INTEGER NOT NULL) STRICT;",
    ],
)
def test_other_columns_are_refused(tmp_path: Path, other: str) -> None:
    """A column renamed, retyped, gone or put between is never guessed at."""
    db = sqlite3.connect(tmp_path / "catalogue.db", isolation_level=None)
    open_tables(db, OLD, name="catalogue.db")
    with pytest.raises(Unsupported, match="things"):
        open_tables(db, other, name="catalogue.db")
    db.close()


def test_file_of_a_later_dsec_is_refused(paths: NodePaths) -> None:
    """A format that this program does not know is refused by every part that would open it, with a remedy."""
    for path, opened in ((paths.node_db, Records), (paths.iam_db, Tokens), (paths.catalogue_db, Catalogue)):
        write_format(path, FORMATS[path.name] + 1)
        with pytest.raises(Unsupported, match=f"format {FORMATS[path.name] + 1}") as refused:
            opened(path)
        assert refused.value.remedy
        with pytest.raises(Unsupported):
            check_format(path)


def test_only_records_of_the_boot_are_begun_anew(paths: NodePaths) -> None:
    """With nothing alive `dsec up` drops node.db of another format and says so; the other two are refused."""
    said: list[str] = []
    write_format(paths.node_db, 7)
    settle_databases(paths, said.append)
    assert not paths.node_db.exists() and "format 7" in said[0]
    for path in (paths.catalogue_db, paths.iam_db):
        write_format(path, 7)
        with pytest.raises(Unsupported, match=path.name):
            settle_databases(paths, said.append)
        assert format_of(path) == 7
        path.unlink()


def test_node_that_runs_is_not_restarted_over_another_format(paths: NodePaths) -> None:
    """A restart is refused before any part is stopped, node.db included: its sandboxes live."""
    check_databases(paths)  # no files: nothing against it
    write_format(paths.node_db, 7)
    with pytest.raises(Unsupported, match=r"node\.db") as refused:
        check_databases(paths)
    assert "dsec down" in (refused.value.remedy or "") and refused.value.phase == "machine"


def recorded(path: Path) -> Path:
    """A file as a dsec of format 1 left it: tests/golden/databases, never to be made anew for the same format."""
    db = sqlite3.connect(path)
    db.executescript((GOLDEN / f"{path.stem}-1.sql").read_text())
    db.execute("PRAGMA user_version=1")
    db.close()
    return path


def test_recorded_files_open(paths: NodePaths) -> None:
    """What an earlier dsec of the same format wrote is read whole, documents in rows included. A change that fails
    here needs the next number in FORMATS, and a migration for what must survive."""
    records = Records(recorded(paths.node_db))
    (live,), (ended,) = records.live(), list(records.ended())
    assert (live.name, live.labels, live.is_live) == ("live", {"run": "1"}, True)
    assert (ended.name, ended.cause, len(ended.story)) == ("ended", "stopped", 3)
    known = records.create("default", "one")
    assert known is not None and known.sandbox_id == live.id
    records.save(live)
    records.close()
    catalogue = Catalogue(recorded(paths.catalogue_db))
    (image,) = catalogue.images()
    assert image.reference == "dsec/debian:12" and image.config.workdir == "/srv" and len(image.layers) == 1
    catalogue.close()
    past = PastSandboxes(paths.catalogue_db)
    past.add([ended])
    found = past.find(ended.id)
    assert found is not None and found.cause == "stopped"
    tokens = Tokens(recorded(paths.iam_db))
    assert [one.name for one in tokens.list()] == ["recorded"]
    assert tokens.create("admin").token
    tokens.close()


def test_no_database_needs_a_directory_for_files_of_its_own(tmp_path: Path) -> None:
    """What is sorted beyond the cache is sorted in memory: a part without root could open no file for it."""
    opened = {path: path.read_text() for path in Path(dsec.__file__).parent.rglob("*.py")}
    assert [path.name for path, text in opened.items() if "sqlite3.connect(" in text] == ["databases.py"]
    db = connect(tmp_path / "db")
    assert db.execute("PRAGMA temp_store").fetchone() == (2,)
    db.close()
