"""Streams about files that a client opens on its WebSocket: completed from the sandbox's record, then copied."""

from __future__ import annotations

from typing import Any

import msgspec

from dsec.edge.core import Core
from dsec.edge.record import SandboxRecord
from dsec.edge.specs import refused
from dsec.errors import InvalidArgument, Unsupported

__all__ = ["FileOpening", "check_path", "file_place", "open_file_stream"]

_MOST_PATH = 4096


class FileOpening(msgspec.Struct, frozen=True, kw_only=True):
    """What to open at the runtime. Nothing is recorded of it."""

    method: str
    params: dict[str, Any]
    sandbox_id: str


class _Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    sandbox_id: str
    user: str | None = None


class _Call(_Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    call: dict[str, Any]
    """``{"stat": {…}}`` and its like; the runtime checks it."""


class _List(_Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: bytes
    depth: int = 1
    credit: dict[int, int] = {}


class _Watch(_Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: bytes
    recursive: bool = False
    credit: dict[int, int] = {}


_KINDS: dict[str, type[_Request]] = {"file.call": _Call, "file.list": _List, "file.watch": _Watch}


def open_file_stream(core: Core, method: str, params: dict[str, Any]) -> FileOpening:
    """Complete a client's request; raises InvalidArgument, Unsupported, NotFound, SandboxGone."""
    kind = _KINDS.get(method)
    if kind is None:
        raise Unsupported(f"this server has no method {method[:80]!r}")
    try:
        request = msgspec.convert(params, kind, strict=False)
    except msgspec.ValidationError as error:
        raise refused(error) from None
    record = core.running(request.sandbox_id)
    asked = msgspec.structs.asdict(request) | file_place(record, request.user)
    if "path" in asked:
        check_path(asked["path"])
    if not 1 <= asked.get("depth", 1) <= 64:
        raise InvalidArgument("depth is a number of levels, 1 to 64")
    return FileOpening(method=method, params=asked, sandbox_id=record.id)


def file_place(record: SandboxRecord, user: str | None) -> dict[str, Any]:
    """Whose file operation, and where relative paths begin."""
    return {
        "sandbox_id": record.id,
        "user": record.user if user is None else user,
        "cwd": record.workdir.encode(errors="surrogateescape"),
    }


def check_path(path: bytes) -> None:
    """Raises InvalidArgument for what names nothing."""
    if not path or b"\0" in path or len(path) > _MOST_PATH:
        raise InvalidArgument("path is missing, too long or contains a NUL byte")
