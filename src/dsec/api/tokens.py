"""Tokens: requests and answers of ``/v1``."""

from __future__ import annotations

import msgspec

__all__ = [
    "TokenCreated",
    "TokenInfo",
    "TokenRequest",
]


class TokenRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``ttl_s`` None: until revoked. ``project`` None: "default", or "*" (all of them) for scope admin."""

    name: str = ""
    ttl_s: float | None = None
    scope: str = "exec"
    project: str | None = None
    principal: str | None = None
    """None: the maker's."""


class TokenInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A token without its secret."""

    id: str
    name: str
    created_at: float
    expires_at: float | None = None
    principal: str = ""
    project: str = "*"
    scope: str = "admin"


class TokenCreated(msgspec.Struct, frozen=True, kw_only=True):
    """The only time that the secret is seen."""

    id: str
    name: str
    token: str
    expires_at: float | None = None
    principal: str = ""
    project: str = "*"
    scope: str = "admin"
