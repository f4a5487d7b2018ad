"""One side of ``bench.beside``, run by that checkout's interpreter: a node, and creates and execs as asked for.

It uses only what every version of dsec has had.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import dsec
from dsec.testing.node import private_node
from dsec.testing.store import ensure_store

_IMAGE = "dsec/debian:12"


async def _turn(client: dsec.DSecClient, sandboxes: int, execs: int) -> dict[str, list[float]]:
    """Seconds from create until the first result, and those of each further exec."""
    created, ran = [], []
    for _ in range(sandboxes):
        begun = time.perf_counter()
        async with client.sandbox(_IMAGE) as sandbox:
            await sandbox.exec("true")
            created.append(time.perf_counter() - begun)
            for _ in range(execs):
                begun = time.perf_counter()
                await sandbox.exec("true")
                ran.append(time.perf_counter() - begun)
    return {"create": created, "exec": ran}


async def _serve(url: str, token: str) -> None:
    async with dsec.DSecClient(url, token) as client:
        while line := await asyncio.to_thread(sys.stdin.readline):
            sandboxes, execs = map(int, line.split())
            print(json.dumps(await _turn(client, sandboxes, execs)), flush=True)


def main() -> None:
    """Until standard input ends."""
    store = Path("build/test-store").absolute()
    ensure_store(store)
    with private_node(store) as node:
        asyncio.run(_serve(node.url, node.token))


if __name__ == "__main__":
    main()
