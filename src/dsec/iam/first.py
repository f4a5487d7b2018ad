"""The first token of a node: made by ``dsec up``, read by the clients of the same machine."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from dsec.errors import InvalidArgument
from dsec.iam.tokens import Tokens

__all__ = ["FIRST_PRINCIPAL", "ensure_first_token"]

FIRST_PRINCIPAL = "admin"


def ensure_first_token(iam_db: Path, token_file: Path, *, group: str | None = None) -> str:
    """The token in ``token_file``, made anew when the file is missing or what it holds is not valid.

    The file has mode 0600, or 0640 with ``group`` as its group. Raises InvalidArgument for an unknown group.
    """
    tokens = Tokens(iam_db)
    try:
        token = _read(token_file)
        grant = None if token is None else tokens.check(token)
        if token is None or grant is None or grant.scope != "admin":
            token = tokens.create(FIRST_PRINCIPAL, name="first").token
            _write(token_file, token)
    finally:
        tokens.close()
    _set_readers(token_file, group)
    return token


def _read(token_file: Path) -> str | None:
    try:
        return token_file.read_text().strip()
    except FileNotFoundError:
        return None


def _write(token_file: Path, token: str) -> None:
    partial = token_file.with_name(token_file.name + ".new")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(token + "\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(token_file)


def _set_readers(token_file: Path, group: str | None) -> None:
    if group is None:
        token_file.chmod(0o600)
        return
    try:
        shutil.chown(token_file, group=group)
    except LookupError:
        raise InvalidArgument(f"no group is named {group!r}", remedy="`getent group` lists them") from None
    token_file.chmod(0o640)
