"""Tokens: what is kept, what is accepted, until when."""

from __future__ import annotations

import grp
import os
import sqlite3
from pathlib import Path

import pytest

from dsec.errors import InvalidArgument, NotFound
from dsec.iam.first import FIRST_PRINCIPAL, ensure_first_token
from dsec.iam.tokens import Tokens


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def test_a_token_is_accepted_and_another_is_not(tmp_path: Path) -> None:
    """A made token names its principal; a changed one, a prefix and junk name nobody."""
    tokens = Tokens(tmp_path / "iam.db")
    token = tokens.create("alice").token
    grant = tokens.check(token)
    assert grant is not None and grant.principal == "alice"
    changed = token[:-1] + ("A" if token[-1] != "A" else "B")
    for wrong in (changed, token[:-1], token + "A", "", "dsec_", "x" * 10_000, "dsec_é", "\udcff"):
        assert tokens.check(wrong) is None
    tokens.close()


def test_the_database_holds_no_secret(tmp_path: Path) -> None:
    """Neither the token nor its secret part is in any file of the database, whose mode is 0600."""
    tokens = Tokens(tmp_path / "iam.db")
    token = tokens.create("alice").token
    secret = token.split("_", 2)[2].encode()
    held = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert secret not in held
    assert (tmp_path / "iam.db").stat().st_mode & 0o777 == 0o600
    tokens.close()


def test_writes_are_synchronous(tmp_path: Path) -> None:
    """The connection runs with synchronous=FULL (2), so a token that was given out survives the machine."""
    tokens = Tokens(tmp_path / "iam.db")
    assert tokens._db.execute("PRAGMA synchronous").fetchone() == (2,)
    tokens.close()


def test_a_token_expires(tmp_path: Path) -> None:
    """A token with a time to live is refused at its end, also one that is cached as valid."""
    clock = Clock()
    tokens = Tokens(tmp_path / "iam.db", clock=clock)
    token = tokens.create("alice", ttl_s=60).token
    assert tokens.check(token) is not None
    clock.now += 59.9
    assert tokens.check(token) is not None
    clock.now += 0.1
    assert tokens.check(token) is None
    tokens.close()


@pytest.mark.parametrize("ttl_s", [0, -1, float("nan"), float("inf")])
def test_an_impossible_life_is_refused(tmp_path: Path, ttl_s: float) -> None:
    """A token cannot live for no time, a negative time, or for ever by infinity."""
    tokens = Tokens(tmp_path / "iam.db")
    with pytest.raises(InvalidArgument):
        tokens.create("alice", ttl_s=ttl_s)
    tokens.close()


def test_a_revoked_token_is_refused_at_once(tmp_path: Path) -> None:
    """Revoking works on a token that is cached as valid, and only once."""
    tokens = Tokens(tmp_path / "iam.db")
    made = tokens.create("alice")
    assert tokens.check(made.token) is not None
    tokens.revoke(made.id)
    assert tokens.check(made.token) is None
    with pytest.raises(NotFound):
        tokens.revoke(made.id)
    tokens.close()


def test_a_valid_token_costs_no_query(tmp_path: Path) -> None:
    """The second check of a token does not touch the database: it works with the table gone."""
    tokens = Tokens(tmp_path / "iam.db")
    token = tokens.create("alice").token
    assert tokens.check(token) is not None
    tokens._db.execute("DROP TABLE tokens")
    assert tokens.check(token) is not None
    with pytest.raises(sqlite3.OperationalError):
        tokens.check(token[:-1] + ("A" if token[-1] != "A" else "B"))
    tokens.close()


def test_tokens_are_listed_with_what_they_may_do(tmp_path: Path) -> None:
    """Whoever looks after the tokens sees all of them: name, principal, project, scope, and no secret."""
    tokens = Tokens(tmp_path / "iam.db")
    tokens.create("alice", name="laptop")
    made = tokens.create("bob", name="server", project="vision", scope="read", ttl_s=60)
    listed = tokens.list()
    assert [(one.name, one.principal, one.project, one.scope) for one in listed] == [
        ("laptop", "alice", "*", "admin"),
        ("server", "bob", "vision", "read"),
    ]
    assert made.token not in str(listed) and made.token.rpartition("_")[2] not in str(listed)
    grant = tokens.check(made.token)
    assert grant is not None and (grant.principal, grant.project, grant.scope) == ("bob", "vision", "read")
    tokens.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"scope": "root"},
        {"scope": ""},
        {"project": "Vision"},
        {"project": "a\r\nb"},
        {"project": ""},
        {"scope": "admin", "project": "vision"},
        {"principal": "a\nb"},
        {"principal": ""},
        {"principal": "x" * 65},
    ],
)
def test_what_no_token_can_say(tmp_path: Path, wrong: dict[str, str]) -> None:
    """An unknown scope, a name that could break a header, and an admin of one project are refused."""
    tokens = Tokens(tmp_path / "iam.db")
    fields = {"principal": "alice", "scope": "exec", "project": "vision"} | wrong
    with pytest.raises(InvalidArgument):
        tokens.create(fields["principal"], scope=fields["scope"], project=fields["project"])
    assert tokens.list() == []
    tokens.close()


def test_tokens_from_before_scopes_keep_what_they_could(tmp_path: Path) -> None:
    """A database without projects and scopes grows; its tokens are an admin's, as all tokens were."""
    tokens = Tokens(tmp_path / "iam.db")
    token = tokens.create("alice", scope="read", project="vision").token
    tokens.close()
    db = sqlite3.connect(tmp_path / "iam.db", isolation_level=None)
    db.execute("ALTER TABLE tokens DROP COLUMN project")
    db.execute("ALTER TABLE tokens DROP COLUMN scope")
    db.close()
    tokens = Tokens(tmp_path / "iam.db")
    grant = tokens.check(token)
    assert grant is not None and (grant.project, grant.scope) == ("*", "admin")
    tokens.close()


def test_the_first_token_is_made_once(tmp_path: Path) -> None:
    """A second `dsec up` keeps the token; it has mode 0600 and is valid for the first principal."""
    database, file = tmp_path / "iam.db", tmp_path / "token"
    token = ensure_first_token(database, file)
    assert ensure_first_token(database, file) == token == file.read_text().strip()
    assert file.stat().st_mode & 0o777 == 0o600
    tokens = Tokens(database)
    grant = tokens.check(token)
    assert grant is not None and grant.principal == FIRST_PRINCIPAL
    tokens.close()


def test_the_first_token_is_replaced_when_the_database_was_lost(tmp_path: Path) -> None:
    """A token file that the database does not know is made anew, not left useless."""
    database, file = tmp_path / "iam.db", tmp_path / "token"
    old = ensure_first_token(database, file)
    for path in tmp_path.glob("iam.db*"):
        path.unlink()
    new = ensure_first_token(database, file)
    assert new != old and new == file.read_text().strip()


def test_a_group_may_read_the_first_token(tmp_path: Path) -> None:
    """With a group the file is 0640 and belongs to it; an unknown group is refused by name."""
    group = grp.getgrgid(os.getgid()).gr_name
    file = tmp_path / "token"
    ensure_first_token(tmp_path / "iam.db", file, group=group)
    assert file.stat().st_mode & 0o777 == 0o640
    assert file.stat().st_gid == os.getgid()
    with pytest.raises(InvalidArgument, match="no-such-group"):
        ensure_first_token(tmp_path / "iam.db", file, group="no-such-group")
