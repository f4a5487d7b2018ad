"""What a node's reads on demand have come to."""

from __future__ import annotations

from dsec.node.local_calls import RuntimeCalls
from dsec.node.paths import NodePaths

__all__ = ["loading_counts"]

Counts = dict[str, float]


def loading_counts(paths: NodePaths) -> Counts:
    """Since the holder began: ``misses``, ``requests``, ``bytes`` that were filled; ``p50_ms`` and ``p99_ms`` are how
    long the misses waited at most.
    """
    with RuntimeCalls(paths.runtime_socket) as runtime:
        found = runtime.call("layer.loading", {})["counts"]
    return {
        "misses": found["misses"],
        "requests": found["requests"],
        "bytes": found["fetched_bytes"],
        "p50_ms": found["wait_p50_us"] / 1e3,
        "p99_ms": found["wait_p99_us"] / 1e3,
    }
