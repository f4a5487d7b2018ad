"""What a node's reads on demand have come to: asked of the runtime, or of the holder as the runtime asks it."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import msgspec

from dsec.errors import Unsupported
from dsec.node.local_calls import RuntimeCalls
from dsec.node.paths import NodePaths

__all__ = ["loading_counts", "waits_ms"]

_VERSION = 1
_LONGEST = 1 << 20
Counts = dict[str, float]


def loading_counts(paths: NodePaths) -> Counts:
    """Since the holder began: ``misses``, ``requests``, ``bytes`` that were filled; ``p50_ms`` and ``p99_ms`` are how
    long the misses waited at most.
    """
    with RuntimeCalls(paths.runtime_socket) as runtime:
        try:
            found = runtime.call("layer.loading", {})["counts"]
        except Unsupported:
            # A runtime that cannot be asked has a holder of the first version of its protocol.
            return _asked(paths.holder_socket)
    return {
        "misses": found["misses"],
        "requests": found["requests"],
        "bytes": found["fetched_bytes"],
        "p50_ms": found["wait_p50_us"] / 1e3,
        "p99_ms": found["wait_p99_us"] / 1e3,
    }


def _asked(holder_socket: Path) -> Counts:
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
                counts = said["going"]["counts"]
                break
    return {
        "misses": counts["misses"],
        "requests": counts["fetched"]["requests"],
        "bytes": counts["fetched"]["filled_bytes"],
        "p50_ms": waits_ms(counts["waits"], 0.5),
        "p99_ms": waits_ms(counts["waits"], 0.99),
    }


def waits_ms(waits: list[int], share: float) -> float:
    """The bound in milliseconds below which that share of the waits is; bucket N counts those below 2^N ms."""
    wanted, seen = share * sum(waits), 0
    for power, count in enumerate(waits):
        seen += count
        if seen >= wanted:
            return float(2**power)
    return float(2 ** len(waits))
