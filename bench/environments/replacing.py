"""A toolkit is replaced in many environments: what that writes."""

from __future__ import annotations

import asyncio
from pathlib import Path

from bench.environments.contents import Contents, file_sizes, write_tree
from bench.environments.world import IMAGE, SMALL, World, allocated
from bench.record import Record

__all__ = ["measure_replacing"]

_ENVIRONMENTS = 1_000
_TOOLKIT_BYTES = 50_000_000
_TOOLKIT_FILES = 500
_AT_ONCE = 8
_TRIED = 20
_READ = "cat /opt/replaced/version; find /opt/replaced -type f -print0 | xargs -0 cat | sha256sum"


async def measure_replacing(world: World, record: Record) -> None:
    """Bytes that the store and a node with all environments grow by when the toolkit's next version comes."""
    # Its size is its number, not its bytes: as many as promised from scale 0.1 on.
    count = min(_ENVIRONMENTS, world.scale.of(10 * _ENVIRONMENTS, 20))
    turn = asyncio.Semaphore(_AT_ONCE)

    async def workspace(number: int) -> str:
        def write(folder: Path) -> None:
            (folder / "who").write_text(f"{number}\n")

        tag = f"workspace/environment-{number}:1"
        async with turn:
            await world.publisher.small(write, tag=tag, at="/work")
        return tag

    tags = await asyncio.gather(*(workspace(number) for number in range(count)))
    await _toolkit(world, 1)
    async with world.node(on_demand=True) as (node, client):
        await client.images.fetch(IMAGE, store="slow")

        async def pulled(tag: str) -> None:
            async with turn:
                await client.layers.pull(tag)

        await asyncio.gather(*(pulled(each) for each in [*tags, "toolkit/replaced:1"]))
        tried = tags[:: max(1, count // _TRIED)]

        async def used(version: int) -> set[str]:
            said = set()
            for tag in tried:
                args = SMALL.replace(workspace=tag, toolkits=(f"toolkit/replaced:{version}",))
                async with client.sandbox(args) as sandbox:
                    said.add((await sandbox.run_shell(f"cat /work/who > /dev/null; {_READ}", check=True)).stdout)
            return said

        before = await used(1)
        shelf, layers = allocated(world.shelf), allocated(node.paths.layers)
        stored, size = await _toolkit(world, 2)
        await client.layers.pull("toolkit/replaced:2")
        after = await used(2)
        if len(before) != 1 or len(after) != 1 or before == after:
            raise RuntimeError(f"environments have another toolkit than they should: {before}, {after}")
        record.add(
            "dsec", "replace", [], environments=count, toolkit_bytes=size, toolkit_stored_bytes=stored,
            store_bytes=allocated(world.shelf) - shelf, node_bytes=allocated(node.paths.layers) - layers,
            image_bytes=world.base.manifest.size,
        )  # fmt: skip


async def _toolkit(world: World, version: int) -> tuple[int, int]:
    """Bytes of a version of the toolkit, in the store and on a node."""
    contents = Contents(5)
    sizes = file_sizes(version, world.scale.of(_TOOLKIT_FILES, 20), world.scale.of(_TOOLKIT_BYTES, 2_000_000))

    def write(folder: Path) -> None:
        write_tree(folder, contents, sizes, 10_000 * version)
        (folder / "version").write_text(f"{version}\n")

    made = await world.publisher.layer(write, tag=f"toolkit/replaced:{version}", at="/opt/replaced")
    return made.stored_bytes, made.manifest.size
