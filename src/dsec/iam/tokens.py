"""Tokens: made once, kept as hashes, checked on every request.

A token is ``dsec_<id>_<secret>``. The database holds the SHA-256 of the whole, so a stolen database opens nothing;
the secret has 256 bits, so a slow hash would add nothing.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
import re
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from dsec.api.access import EVERY_PROJECT, check_principal, check_project, check_scope
from dsec.api.tokens import TokenCreated, TokenInfo
from dsec.databases import connect, open_tables
from dsec.errors import InvalidArgument, NotFound

__all__ = ["Grant", "Tokens"]

_FORM = re.compile(r"dsec_([a-z2-7]{13})_[A-Za-z0-9_-]{43}")
_CACHED = 4096
_LISTED = ("id", "name", "principal", "project", "scope", "created_at", "expires_at")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS tokens (
    id TEXT PRIMARY KEY,
    hash BLOB NOT NULL,
    principal TEXT NOT NULL,
    name TEXT NOT NULL,
    created_at REAL NOT NULL,
    expires_at REAL,
    project TEXT NOT NULL DEFAULT '*', -- of tokens made before there were projects and scopes: they could do all
    scope TEXT NOT NULL DEFAULT 'admin'
) STRICT, WITHOUT ROWID;
"""


class Grant(msgspec.Struct, frozen=True):
    """What a valid token says of its bearer."""

    token_id: str
    principal: str
    expires_at: float | None
    project: str = EVERY_PROJECT
    scope: str = "admin"

    @property
    def headers(self) -> dict[str, str]:
        """What an edge is told of it."""
        return {"dsec-principal": self.principal, "dsec-project": self.project, "dsec-scope": self.scope}


class Tokens:
    """The store of tokens. Safe to use from several threads; writes reach the disk before they return."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._clock = clock
        self._lock = threading.Lock()
        self._valid: dict[bytes, Grant] = {}
        self._db = connect(path, shared=True)
        path.chmod(0o600)
        open_tables(self._db, _SCHEMA, name="iam.db")
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._db.close()

    def create(
        self, principal: str, *, name: str = "", ttl_s: float | None = None, project: str = EVERY_PROJECT,
        scope: str = "admin",
    ) -> TokenCreated:  # fmt: skip
        """Make a token of ``principal``; the secret is in the answer and nowhere else.

        An ``admin`` is one of the whole node: its project is ``*``. Raises InvalidArgument.
        """
        check_principal(principal)
        if check_scope(scope) == "admin" and check_project(project) != EVERY_PROJECT:
            raise InvalidArgument(
                "scope admin is of the whole node, not of a project", remedy="Leave the project out, or use exec"
            )
        check_project(project)
        if ttl_s is not None and not (math.isfinite(ttl_s) and ttl_s > 0):
            raise InvalidArgument(f"ttl_s must be a positive number of seconds, not {ttl_s}")
        if len(name) > 128:
            raise InvalidArgument("a token's name has at most 128 characters")
        token_id = base64.b32encode(secrets.token_bytes(8)).decode().lower().rstrip("=")
        token = f"dsec_{token_id}_{secrets.token_urlsafe(32)}"
        now = self._clock()
        expires_at = None if ttl_s is None else now + ttl_s
        row = (token_id, _digest(token), principal, name, now, expires_at, project, scope)
        with self._lock:
            self._db.execute("INSERT INTO tokens VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        return TokenCreated(
            id=token_id, name=name, token=token, expires_at=expires_at, principal=principal, project=project,
            scope=scope,
        )  # fmt: skip

    def check(self, token: str) -> Grant | None:
        """The bearer's grant, or None for a token that is unknown, revoked or expired."""
        digest = _digest(token)
        grant = self._valid.get(digest) or self._look_up(token, digest)
        if grant is None:
            return None
        if grant.expires_at is not None and grant.expires_at <= self._clock():
            self._valid.pop(digest, None)
            return None
        return grant

    def list(self) -> list[TokenInfo]:
        """All tokens, oldest first, the expired ones too."""
        with self._lock:
            rows = self._db.execute(f"SELECT {', '.join(_LISTED)} FROM tokens ORDER BY created_at").fetchall()  # noqa: S608
        return [TokenInfo(**dict(zip(_LISTED, row, strict=True))) for row in rows]

    def revoke(self, token_id: str) -> None:
        """Make a token invalid at once; raises NotFound."""
        with self._lock:
            found = self._db.execute("DELETE FROM tokens WHERE id = ?", (token_id,))
            self._valid = {digest: grant for digest, grant in self._valid.items() if grant.token_id != token_id}
        if found.rowcount == 0:
            raise NotFound(f"no token has the ID {token_id[:40]!r}")

    def _look_up(self, token: str, digest: bytes) -> Grant | None:
        form = _FORM.fullmatch(token)
        if form is None:
            return None
        with self._lock:
            row = self._db.execute(
                "SELECT hash, principal, expires_at, project, scope FROM tokens WHERE id = ?", (form[1],)
            ).fetchone()
            if row is None or not hmac.compare_digest(row[0], digest):
                return None
            if len(self._valid) >= _CACHED:
                self._valid.clear()
            grant = self._valid[digest] = Grant(form[1], row[1], row[2], row[3], row[4])
        return grant


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
