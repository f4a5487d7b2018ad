"""The first program of a large image: read on demand, copied whole, loaded into Docker."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import dsec
from bench.environments.contents import Contents, file_sizes, write_tree
from bench.environments.docker import DockerLoad
from bench.environments.eager import copy_and_extract, first_program
from bench.environments.publishing import Made
from bench.environments.world import SMALL, World, allocated
from bench.record import Record
from dsec.testing.node import RunningNode

__all__ = ["LARGE", "measure_first"]

LARGE = "bench.dsec/large:1"
_BYTES = 10_000_000_000
_FILES = 200_000
_SHARES = (0.1, 0.2, 0.3, 0.4)
_ROUNDS = 5
_SECONDS = 5
_IMPORT = ("python3", "-c", "import json, re, subprocess, asyncio")
Say = Callable[[str], None]


async def _publish(world: World) -> tuple[list[Made], float]:
    """The image's layers, and how long making them took."""
    begun = time.perf_counter()
    contents = Contents(1)
    count, total = world.scale.of(_FILES, 400), world.scale.of(_BYTES)
    total = max(total - world.base.manifest.size, total // 2)
    sizes = file_sizes(1, count, total)
    layers, first = [world.base], 0
    for number, share in enumerate(_SHARES):
        own = sizes[first : first + round(share * count)]

        def write(folder: Path, own: list[int] = own, first: int = first) -> None:
            write_tree(folder, contents, own, first)

        layers.append(await world.publisher.layer(write, archive=f"large-{number}", at=f"/opt/large{number}"))
        first += len(own)
    world.publisher.image(LARGE, layers)
    return layers, time.perf_counter() - begun


async def measure_first(world: World, record: Record, docker: DockerLoad | None, say: Say) -> None:
    """Pull, create and first exec on a node that has nothing; the second sandbox there; then the same eagerly."""
    say("first: making the image")
    layers, made_s = await _publish(world)
    total = sum(each.manifest.data.size for each in layers)
    facts = {
        "image_bytes": sum(each.manifest.size for each in layers),
        "image_files": world.scale.of(_FILES, 400),
        "stored_bytes": sum(each.stored_bytes for each in layers),
        "archive_bytes": sum(each.archive.bytes for each in layers if each.archive),
        "made_s": round(made_s, 1),
    }
    say("first: on demand")
    await _on_demand(world, record, total, facts)
    say("first: copied and extracted")
    await _eager(world, record, layers)
    if docker is not None:
        say("first: docker load")
        loaded_s, first_s, second_s = await docker.first(world, layers)
        record.add("docker", "first exec", [loaded_s + first_s], load_s=loaded_s)
        record.add("docker", "second sandbox", second_s)


async def _on_demand(world: World, record: Record, total: int, facts: Mapping[str, object]) -> None:
    pulls: list[float] = []
    firsts: list[float] = []
    seconds: list[float] = []
    imports: list[float] = []
    read: list[int] = []
    import_read: list[int] = []
    written = 0
    async with world.node(on_demand=True) as (node, client):
        args = SMALL.replace(image=LARGE)
        for _ in range(_ROUNDS):
            begun = time.perf_counter()
            image = await client.images.fetch(LARGE, store="slow")
            pulls.append(time.perf_counter() - begun)
            made = [await _timed(client, args, firsts, "true")]
            read.append(await _local(client, image.layers))
            for _ in range(_SECONDS):
                made.append(await _timed(client, args, seconds, "true"))
            begun = time.perf_counter()
            assert (await made[0].exec(*_IMPORT)).ok
            imports.append(time.perf_counter() - begun)
            import_read.append(await _local(client, image.layers))
            written = allocated(node.paths.layers)
            for sandbox in made:
                await sandbox.stop()
            await _forget(node, client, image.layers)
    record.add("dsec", "first exec", firsts, pull_s=pulls, read_bytes=read, data_bytes=total, **facts)
    record.add("dsec", "second sandbox", seconds)
    record.add("dsec", "import", imports, read_bytes=import_read, data_bytes=total)
    record.add("dsec", "first writes", [], bytes=written)


async def _timed(client: dsec.DSecClient, args: dsec.SandboxArgs, taken: list[float], *argv: str) -> dsec.Sandbox:
    begun = time.perf_counter()
    sandbox = await client.sandbox(args)
    result = await sandbox.exec(*argv)
    taken.append(time.perf_counter() - begun)
    if not result.ok:
        raise RuntimeError(f"{argv} failed: {result}")
    return sandbox


async def _local(client: dsec.DSecClient, digests: list[str]) -> int:
    """Bytes of the layers' data that are on the node."""
    return sum([(await client.layers.get(f"@sha256:{each}")).local_bytes for each in digests])


async def _forget(node: RunningNode, client: dsec.DSecClient, digests: list[str]) -> None:
    """The image leaves the node, so that the next round begins with nothing."""
    await client.images.remove(LARGE)
    await client.layers.gc()
    left = [each for each in digests if (node.paths.layers / each).exists()]
    if left:
        raise RuntimeError(f"layers stay on the node: {left}")


async def _eager(world: World, record: Record, layers: list[Made]) -> None:
    archives = [each.archive for each in layers if each.archive is not None]
    target = world.scratch / "eager-large"
    begun = time.perf_counter()
    folders = await copy_and_extract(world, archives, target)
    copied_s = time.perf_counter() - begun
    ran_s = await asyncio.to_thread(first_program, folders, world.scratch, ["true"])
    seconds = [await asyncio.to_thread(first_program, folders, world.scratch, ["true"]) for _ in range(_SECONDS)]
    record.add("eager", "first exec", [copied_s + ran_s], copy_s=copied_s)
    record.add("eager", "second sandbox", seconds)
    record.add("eager", "first writes", [], bytes=allocated(target))
    await asyncio.to_thread(shutil.rmtree, target)
