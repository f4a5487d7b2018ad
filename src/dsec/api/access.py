"""What a token lets its bearer do: a scope, in one project or in all of them. Pure."""

from __future__ import annotations

import re
from typing import Final, Literal

from dsec.errors import InvalidArgument

__all__ = ["DEFAULT_PROJECT", "EVERY_PROJECT", "Scope", "check_principal", "check_project", "check_scope", "includes"]

Scope = Literal["read", "exec", "admin"]
"""``read`` looks, ``exec`` makes sandboxes and acts in them, ``admin`` rules the node. Each has the former."""

DEFAULT_PROJECT: Final = "default"
EVERY_PROJECT: Final = "*"
_RANKS: Final[dict[str, int]] = {"read": 0, "exec": 1, "admin": 2}
_PROJECT = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
_PRINCIPAL = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.@:+-]{0,63}")


def includes(held: str, needed: str) -> bool:
    """Whether a scope lets do what needs another; one that is unknown lets do nothing."""
    return _RANKS.get(held, -1) >= _RANKS[needed]


def check_scope(text: str) -> Scope:
    """The scope itself, or InvalidArgument."""
    if text not in _RANKS:
        raise InvalidArgument(f"there is no scope {text[:40]!r}", remedy="read, exec or admin")
    return text  # type: ignore[return-value]


def check_project(text: str) -> str:
    """A project's name, or ``*`` for all of them; or InvalidArgument."""
    if text != EVERY_PROJECT and _PROJECT.fullmatch(text) is None:
        raise InvalidArgument(
            f"invalid project {text[:80]!r}", remedy="Use lower-case letters, digits, '-'; at most 32 characters"
        )
    return text


def check_principal(text: str) -> str:
    """Whoever a token stands for, or InvalidArgument."""
    if _PRINCIPAL.fullmatch(text) is None:
        raise InvalidArgument(
            f"invalid principal {text[:80]!r}",
            remedy="Use letters, digits, '_', '.', '@', ':', '+', '-'; at most 64 characters",
        )
    return text
