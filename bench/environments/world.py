"""What the scenarios run in: a store with a known latency and bandwidth, and nodes that have nothing yet."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import dsec
from bench.environments.publishing import Made, Publisher
from dsec.testing.node import RunningNode, private_node
from dsec.testing.slow_bucket import SlowBucket, slow_bucket

__all__ = ["IMAGE", "LABELS", "SMALL", "Scale", "World", "allocated", "open_world"]

IMAGE = "bench.dsec/base:1"
LABELS = {"dsec-bench": "environments"}
SMALL = dsec.SandboxArgs(
    IMAGE, cpu=(0.001, 2), memory_mib=(4, 1024), disk_mib=(1, 4096), pids=(4, 1024), labels=LABELS, lifetime_s=3600
)
"""Requests so small that hundreds are admitted: what is measured is not the queue."""


@dataclass(frozen=True)
class Scale:
    """How large everything is; at 1 it is what the promises speak of."""

    factor: float

    def of(self, full: int, least: int = 1) -> int:
        """So much of what is ``full`` at 1, at least ``least``."""
        return max(least, round(full * self.factor))


@dataclass(frozen=True)
class World:
    """The store, seen from both sides."""

    scale: Scale
    scratch: Path
    shelf: Path
    """The store's directory: written without any delay."""
    bucket: SlowBucket
    """The same, as nodes read it."""
    publisher: Publisher
    base: Made
    """The image ``dsec/debian:12``, as the layer of ``IMAGE``."""
    latency_s: float
    bytes_per_s: float

    @asynccontextmanager
    async def node(
        self, *, on_demand: bool, pool_mib: int = 4096
    ) -> AsyncIterator[tuple[RunningNode, dsec.DSecClient]]:
        """A node that has no image and no layer."""
        reader = "filled" if on_demand else "whole"
        settings = f'reader = "{reader}"\n[stores.slow]\n{self.bucket.settings}'
        with private_node(None, settings=settings, pool_mib=pool_mib) as node:
            async with node.client(max_creates_in_flight=256) as client:
                try:
                    yield node, client
                finally:
                    await client.stop_all(labels=LABELS)


@contextmanager
def _credentials(bucket: SlowBucket) -> Iterator[None]:
    """Nodes take them from the environment of whoever starts them."""
    before = {name: os.environ.get(name) for name in bucket.environment}
    os.environ.update(bucket.environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@asynccontextmanager
async def open_world(
    scratch: Path, test_store: Path, scale: Scale, *, latency_s: float, bytes_per_s: float
) -> AsyncIterator[World]:
    """A store with the base image in it, below ``scratch``; ``test_store`` is that of ``dsec.testing.store``."""
    shelf = scratch / "shelf"
    publisher = Publisher(shelf, scratch / "publisher")
    digest = next(path.name for path in (test_store / "layers").iterdir() if (path / "layer.json").exists())
    base = await publisher.existing(test_store / "layers", digest, "base")
    publisher.image(IMAGE, [base])
    with slow_bucket(shelf, latency_s=latency_s, bytes_per_s=bytes_per_s) as bucket, _credentials(bucket):
        yield World(scale, scratch, shelf, bucket, publisher, base, latency_s, bytes_per_s)


def allocated(path: Path) -> int:
    """Bytes that a directory's files take on disk, holes left out."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(f"{folder}/{name}").st_blocks * 512
            except FileNotFoundError:
                continue
    return total
