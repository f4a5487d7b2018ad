"""The same images by ``docker load`` and run, of the same ``tar.gz`` layers."""

from __future__ import annotations

import io
import json
import tarfile
import time
from collections.abc import AsyncIterator, Sequence

from bench.environments.publishing import Archived, Made
from bench.environments.world import World
from bench.targets import LABEL
from dsec.demo.docker_api import DockerApi
from dsec.errors import NodeError
from dsec.images.oci import node_architecture

__all__ = ["DockerLoad"]

_PIECE = 1 << 20
_NAME = "dsec-bench-environments:1"
_SECONDS = 5


class DockerLoad:
    """A daemon that images are loaded into."""

    def __init__(self, api: DockerApi) -> None:
        self._api = api

    async def first(self, world: World, layers: Sequence[Made]) -> tuple[float, float, list[float]]:
        """Seconds of the load, of the first container and its program, and of each of some after it."""
        archives = [each.archive for each in layers if each.archive is not None]
        begun = time.perf_counter()
        # The bytes come from the disk and not over the slow line: what Docker is spared.
        answer = await self._api.call("POST", "/images/load", data=_saved(world, archives))
        if b'"error"' in answer:
            raise NodeError(f"Docker: {answer[-300:].decode(errors='replace')}")
        loaded_s = time.perf_counter() - begun
        taken = []
        for _ in range(1 + _SECONDS):
            begun = time.perf_counter()
            container = await self._api.create(_NAME, {"Memory": 1 << 30}, Labels={LABEL: "1"})
            code, _, error = await self._api.execute(container, ["true"])
            taken.append(time.perf_counter() - begun)
            await self._api.remove(container)
            if code:
                raise NodeError(f"Docker: `true` ended with {code}: {error!r}")
        await self._api.call("DELETE", f"/images/{_NAME}", query={"force": "1"})
        return loaded_s, taken[0], taken[1:]


async def _saved(world: World, archives: Sequence[Archived]) -> AsyncIterator[bytes]:
    """What ``docker save`` would write, the layers compressed."""
    config = {
        "architecture": node_architecture(),
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{each.diff_id}" for each in archives]},
    }
    names = [f"{number}/layer.tar" for number in range(len(archives))]
    manifest = [{"Config": "config.json", "RepoTags": [_NAME], "Layers": names}]
    for name, document in (("config.json", config), ("manifest.json", manifest)):
        raw = json.dumps(document).encode()
        yield _head(name, len(raw)) + raw + bytes(-len(raw) % tarfile.BLOCKSIZE)
    for name, archive in zip(names, archives, strict=True):
        yield _head(name, archive.bytes)
        with (world.shelf / archive.key).open("rb") as file:
            while piece := file.read(_PIECE):
                yield piece
        yield bytes(-archive.bytes % tarfile.BLOCKSIZE)
    yield io.BytesIO(bytes(2 * tarfile.BLOCKSIZE)).getvalue()


def _head(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT)
