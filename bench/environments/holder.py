"""What a node's layer holder counts: asked as the runtime asks it."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import msgspec

__all__ = ["ask_holder", "waits_ms"]

_VERSION = 1
_LONGEST = 1 << 20


def ask_holder(holder_socket: Path) -> dict[str, Any]:
    """Its ``counts``: ``hits``, ``misses``, ``denied``, ``waits`` (a histogram), ``fetched``; since it began."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dialled:
        dialled.connect(str(holder_socket))
        socket.send_fds(dialled, [b"\0"], [theirs.fileno()])
        ours.settimeout(10)
        ours.send(msgspec.msgpack.encode({"hello": {"version": _VERSION}}))
        ours.send(msgspec.msgpack.encode({"ask": {"turn": 1}}))
        while True:
            said: dict[str, Any] = msgspec.msgpack.decode(ours.recv(_LONGEST))
            if "going" in said:
                counts: dict[str, Any] = said["going"]["counts"]
                return counts


def waits_ms(waits: list[int], share: float) -> float:
    """The bound in milliseconds below which that share of the waits is; bucket N counts those below 2^N ms."""
    wanted, seen = share * sum(waits), 0
    for power, count in enumerate(waits):
        seen += count
        if seen >= wanted:
            return float(2**power)
    return float(2 ** len(waits))
