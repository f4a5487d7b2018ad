"""Lanes: an exec's output on a connection of its own, which the edge joins to the runtime's and never reads.

How the exec ended is not told on it: that is committed before anybody hears of it, which takes the WebSocket.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl, unquote

from dsec.api.ids import check_exec_id
from dsec.edge.core import Core
from dsec.errors import InvalidArgument, NotFound

__all__ = ["LANE_WINDOW", "output_params"]

LANE_WINDOW = 4 << 20
"""Credit that a lane begins with, beyond its offsets; the client goes on from there."""
_PATH = re.compile(r"/v1/sandboxes/([^/]+)/execs/([^/]+)/output")
_CHANNELS = {"stdout": 1, "stderr": 2}


def output_params(core: Core, target: str) -> tuple[str, dict[str, Any]] | None:
    """(method, parameters) of the runtime's for a request's target; None for one that asks for no output.

    Raises InvalidArgument, NotFound, SandboxGone.
    """
    path, _, text = target.partition("?")
    found = _PATH.fullmatch(path)
    if found is None:
        return None
    query = dict(parse_qsl(text, keep_blank_values=True))
    unknown = set(query) - set(_CHANNELS)
    if unknown:
        raise InvalidArgument(f"unknown query parameter {min(unknown)[:80]!r}")
    record = core.running(unquote(found[1]))
    exec_id = unquote(found[2])
    check_exec_id(exec_id)
    if core.records.exec(record.id, exec_id) is None:
        raise NotFound(f"no exec {exec_id}", sandbox_id=record.id, exec_id=exec_id)
    offsets = {channel: _offset(name, query.get(name, "0")) for name, channel in _CHANNELS.items()}
    credit = {channel: offset + LANE_WINDOW for channel, offset in offsets.items()}
    return "exec.output", {"sandbox_id": record.id, "exec_id": exec_id, "offsets": offsets, "credit": credit}


def _offset(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) >= 2**63:
        raise InvalidArgument(f"{name} must be an offset, a number from 0")
    return int(text)
