"""What the fake edge's handlers answer with."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from dsec.api import types

__all__ = ["USAGE", "json_answer", "limit"]

USAGE = types.Usage(cpu_s=0.1, memory_mib=1, memory_peak_mib=2, disk_mib=0, pids=1, wall_s=1, oom_kills=0)


def limit(limit: types.Limit) -> float:
    """The limit of a (request, limit) pair or of a lone limit."""
    return limit[1] if isinstance(limit, tuple) else limit


def json_answer(value: Any, status: int = 200) -> web.Response:
    """A value as an answer's JSON body."""
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")
