"""Identifiers: what they look like, and how an exec's ID follows from its key."""

from __future__ import annotations

import hashlib
import re
import secrets

from dsec.errors import InvalidArgument

__all__ = [
    "check_exec_id",
    "check_job",
    "check_key",
    "check_name",
    "check_sandbox_id",
    "check_snapshot_id",
    "exec_id",
    "is_sandbox_id",
    "new_key",
    "new_sandbox_id",
    "node_of",
    "snapshot_id",
]

_SANDBOX_ID = re.compile(r"sb-([a-z0-9]{1,12})-([a-z2-7]{26})")
_SNAPSHOT_ID = re.compile(r"sn-([a-z0-9]{1,12})-([a-z2-7]{26})")
_EXEC_ID = re.compile(r"[a-z2-7]{26}")
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}")
_JOB = re.compile(r"(?!_\.)[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,63}")
_KEY = re.compile(r"[\x21-\x7e]{1,200}")


_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
_SHIFTS = range(120, -1, -10)


def _base32(raw: bytes) -> str:
    """The first 26 characters of base32, in lower case: 130 bits, by ten at a time."""
    number = int.from_bytes(raw[:17], "big") >> 6
    return "".join([_PAIRS[number >> shift & 1023] for shift in _SHIFTS])


def new_sandbox_id(node: str) -> str:
    """A fresh ID, ``sb-<node>-<26 base32 characters>``."""
    return f"sb-{node}-{_base32(secrets.token_bytes(17))}"


def is_sandbox_id(text: str) -> bool:
    """Whether the text has the form of a sandbox ID (and so is not a name)."""
    return _SANDBOX_ID.fullmatch(text) is not None


def check_sandbox_id(text: str) -> str:
    """The ID itself, or InvalidArgument."""
    if not is_sandbox_id(text):
        raise InvalidArgument(f"not a sandbox ID: {text[:80]!r}", remedy="`dsec ps` lists them")
    return text


def node_of(sandbox_id: str) -> str:
    """Name of the node that the sandbox is on."""
    match = _SANDBOX_ID.fullmatch(sandbox_id)
    if match is None:
        raise InvalidArgument(f"not a sandbox ID: {sandbox_id[:80]!r}")
    return match[1]


def new_key() -> str:
    """A random key for one create or exec."""
    return secrets.token_urlsafe(18)


def check_key(text: str) -> str:
    """The key itself, 1 to 200 printable ASCII characters, or InvalidArgument."""
    if not _KEY.fullmatch(text):
        raise InvalidArgument("a key is 1 to 200 printable ASCII characters without spaces")
    return text


def exec_id(sandbox_id: str, key: str) -> str:
    """The exec's ID: the same sandbox and key always give the same one."""
    digest = hashlib.sha256(sandbox_id.encode() + b"\0" + key.encode()).digest()
    return _base32(digest)


def check_exec_id(text: str) -> str:
    """The ID itself, or InvalidArgument."""
    if not _EXEC_ID.fullmatch(text):
        raise InvalidArgument(f"not an exec ID: {text[:80]!r}")
    return text


def snapshot_id(sandbox_id: str, key: str) -> str:
    """The snapshot's ID, ``sn-<node>-<26 base32 characters>``: the same sandbox and key always give the same one."""
    return f"sn-{node_of(sandbox_id)}-{exec_id(sandbox_id, key)}"


def check_snapshot_id(text: str) -> str:
    """The ID itself, or InvalidArgument."""
    if not _SNAPSHOT_ID.fullmatch(text):
        raise InvalidArgument(f"not a snapshot ID: {text[:80]!r}", remedy="`dsec snapshot ls` lists them")
    return text


def check_name(text: str) -> str:
    """A sandbox name as Docker allows it, and not of the form of an ID; or InvalidArgument."""
    if not _NAME.fullmatch(text) or is_sandbox_id(text):
        raise InvalidArgument(
            f"invalid name {text[:80]!r}", remedy="Use letters, digits, '_', '.', '-'; at most 128 characters"
        )
    return text


def check_job(text: str) -> str:
    """A job's name, or InvalidArgument."""
    if not _JOB.fullmatch(text):
        raise InvalidArgument(
            f"invalid job name {text[:80]!r}", remedy="Use letters, digits, '_', '.', '-'; at most 64 characters"
        )
    return text
