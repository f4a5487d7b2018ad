"""The root of a sandbox of base, workspace and three toolkits, once its layers are mounted."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from bench.environments.contents import Contents, write_tree
from bench.environments.eager import copy_and_extract, overlay_s
from bench.environments.world import IMAGE, SMALL, World
from bench.record import Record

__all__ = ["measure_mounts"]

_COUNT = 100
_WARM = 3
_TAGS = ("workspace/mounted:1", "toolkit/mounted-a:1", "toolkit/mounted-b:1", "toolkit/mounted-c:1")
_PHASES = ("volume", "layers", "overlay")


async def measure_mounts(world: World, record: Record) -> None:
    """The runtime's own phases of each create; beside it an overlay of the same layers, extracted."""
    contents, made = Contents(2), [world.base]
    for number, tag in enumerate(_TAGS):

        def write(folder: Path, number: int = number) -> None:
            write_tree(folder, contents, [4096] * 100, 1000 * number)

        name = tag.replace("/", "-").replace(":", "-")
        made.append(await world.publisher.layer(write, tag=tag, archive=name, at=f"/opt/{name}"))
    phases: dict[str, list[float]] = {name: [] for name in _PHASES}
    async with world.node(on_demand=True) as (_, client):
        await client.images.fetch(IMAGE, store="slow")
        for tag in _TAGS:
            await client.layers.pull(tag)
        args = SMALL.replace(workspace=_TAGS[0], toolkits=_TAGS[1:])
        for turn in range(_WARM + _COUNT):
            async with client.sandbox(args) as sandbox:
                found = (await sandbox.info()).phases_us
                assert (await sandbox.exec("true")).ok
            if turn >= _WARM:
                for name in _PHASES:
                    phases[name].append(found[name] / 1e6)
    mounts = [layers + over for layers, over in zip(phases["layers"], phases["overlay"], strict=True)]
    record.add("dsec", "mount", mounts, phases_s=phases)
    target = world.scratch / "eager-mounts"
    folders = await copy_and_extract(world, [each.archive for each in made if each.archive], target)
    record.add("eager", "mount", await asyncio.to_thread(overlay_s, folders, world.scratch, _COUNT))
    await asyncio.to_thread(shutil.rmtree, target)
