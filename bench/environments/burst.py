"""A burst of sandboxes of many environments, on a node that has none of them: on demand, and copied whole first."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import dsec
from bench.environments.contents import Contents, file_sizes, write_tree
from bench.environments.eager import copy_and_extract
from bench.environments.holder import loading_counts
from bench.environments.publishing import Made
from bench.environments.world import IMAGE, SMALL, World, allocated
from bench.record import Record

__all__ = ["measure_burst"]

_SANDBOXES = 256
_ENVIRONMENTS = 32
_BYTES = 200_000_000
_FILES = 2_000
_READ_SHARE = 0.08
"""Of an environment's bytes: the paper's catalogue has 4.2 to 13.3 %."""
_LIST = ".reads"
_PROGRAM = "cd /work && xargs cat < .reads | sha256sum"
_TOLD_S = 1.5
"""The fetcher tells the holder what it counts once a second."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class _Environment:
    tag: str
    made: Made
    expected: str
    """Sha256 of what its program reads."""


async def measure_burst(world: World, record: Record, say: Say) -> None:
    """From nothing on the node until the last sandbox's program has read its files; what that wrote; how long reads
    waited.
    """
    say("burst: making the environments")
    environments = [await _publish(world, number) for number in range(world.scale.of(_ENVIRONMENTS, 4))]
    count = world.scale.of(_SANDBOXES, 64)
    say("burst: on demand")
    async with world.node(on_demand=True) as (node, client):
        begun = time.perf_counter()
        await client.images.fetch(IMAGE, store="slow")
        taken = await _all(client, environments, count, begun, lambda one: _pull(client, one))
        wall = time.perf_counter() - begun
        await asyncio.sleep(_TOLD_S)
        counts = loading_counts(node.paths)
        record.add(
            "dsec", "burst", taken, wall_s=wall, sandboxes=count, environments=len(environments),
            written_bytes=allocated(node.paths.layers), loading=counts,
            data_bytes=sum(each.made.manifest.data.size for each in environments) + world.base.manifest.data.size,
        )  # fmt: skip
        await client.stop_all(labels=SMALL.labels)
    say("burst: copied and extracted")
    await _eager(world, record, environments, count)


async def _publish(world: World, number: int) -> _Environment:
    contents, seed = Contents(4), 100 + number
    size, files = world.scale.of(_BYTES, 4_000_000), world.scale.of(_FILES, 40)
    sizes = file_sizes(seed, files, size)
    expected: list[str] = []

    def write(folder: Path) -> None:
        write_tree(folder, contents, sizes, number * 10_000)
        read, left = hashlib.sha256(), _READ_SHARE * size
        names = []
        # Neighbours, as the modules of one package are.
        for path in sorted(folder.rglob("f*"))[files // 3 :]:
            if left <= 0:
                break
            content = path.read_bytes()
            left -= len(content)
            read.update(content)
            names.append(str(path.relative_to(folder)))
        (folder / _LIST).write_text("\n".join(names) + "\n")
        expected.append(read.hexdigest())

    tag = f"workspace/burst-{number}:1"
    made = await world.publisher.layer(write, tag=tag, archive=f"burst-{number}", at="/work")
    return _Environment(tag, made, expected[0])


async def _pull(client: dsec.DSecClient, environment: _Environment) -> None:
    await client.layers.pull(environment.tag)


async def _all(
    client: dsec.DSecClient, environments: list[_Environment], count: int, begun: float,
    prepare: Callable[[_Environment], Awaitable[None]],
) -> list[float]:  # fmt: skip
    """Each environment is prepared and then used by its share of the sandboxes; seconds until each has read."""

    async def one(environment: _Environment) -> float:
        sandbox = await client.sandbox(SMALL.replace(workspace=environment.tag))
        result = await sandbox.exec("sh", "-c", _PROGRAM)
        taken = time.perf_counter() - begun
        if not result.ok or result.stdout.split()[0] != environment.expected:
            raise RuntimeError(f"{environment.tag}: the program read something else: {result}")
        return taken

    async def these(environment: _Environment, share: int) -> list[float]:
        await prepare(environment)
        return await asyncio.gather(*(one(environment) for _ in range(share)))

    shares = [count // len(environments) + (place < count % len(environments)) for place in range(len(environments))]
    found = await asyncio.gather(*(these(*pair) for pair in zip(environments, shares, strict=True)))
    return [each for group in found for each in group]


async def _eager(world: World, record: Record, environments: list[_Environment], count: int) -> None:
    """The sandboxes are dsec's here too, of layers that were brought whole beforehand and not timed."""
    target = world.scratch / "eager-burst"
    async with world.node(on_demand=False) as (_, client):
        await client.images.fetch(IMAGE, store="slow")
        for each in environments:
            await _pull(client, each)
        begun = time.perf_counter()
        base = asyncio.create_task(_copied(world, world.base, target / "base"))

        async def copied(environment: _Environment) -> None:
            await _copied(world, environment.made, target / environment.tag.replace(":", "-"))
            await base

        taken = await _all(client, environments, count, begun, copied)
        wall = time.perf_counter() - begun
        await client.stop_all(labels=SMALL.labels)
    record.add("eager", "burst", taken, wall_s=wall, sandboxes=count, written_bytes=allocated(target))
    await asyncio.to_thread(shutil.rmtree, target)


async def _copied(world: World, layer: Made, target: Path) -> None:
    assert layer.archive is not None
    await copy_and_extract(world, [layer.archive], target)
