"""A full disk is a typed error, wherever it strikes, and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from dsec.errors import CapacityError
from dsec.images import Images, ImagesConfig, SubprocessTools
from dsec.images.samples import Member, docker_archive, layer_archive, oci_layout

pytestmark = [pytest.mark.node, pytest.mark.anyio]
BIG = layer_archive([Member(name="big", data=os.urandom(6_000_000))])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], check=True)
    yield disk
    subprocess.run(["umount", disk], check=True)


async def chunks(data: bytes) -> AsyncIterator[bytes]:
    """A client's stream."""
    for at in range(0, len(data), 1 << 20):
        yield data[at : at + (1 << 20)]


@pytest.mark.parametrize("full", ["scratch", "layers"])
async def test_full_disk(tmp_path: Path, small_disk: Path, full: str) -> None:
    """Imports of all kinds and layer builds fail as CapacityError, with scratch or store on the full disk."""
    small, large = small_disk / full, tmp_path / "large"
    config = ImagesConfig(
        layers_dir=small if full == "layers" else large / "layers",
        scratch_dir=small if full == "scratch" else large / "scratch",
        catalogue=tmp_path / "catalogue.db",
    )
    layout = oci_layout(tmp_path / "layout", [BIG])
    archive = docker_archive(tmp_path / "saved.tar", [BIG], name="a:1")
    async with Images(config, SubprocessTools()) as images:
        attempts = (
            lambda: images.import_(f"oci:{layout}", "a:1"),
            lambda: images.import_(f"docker-archive:{archive}"),
            lambda: images.import_stream("docker-archive", chunks(archive.read_bytes())),
            lambda: images.build_layer("workspace/a:1", chunks(BIG)),
        )
        # A layout's layers are made without scratch space.
        for attempt in attempts[full == "scratch" :]:
            with pytest.raises(CapacityError):
                await attempt()
        assert images.list() == []
        assert list(config.scratch_dir.iterdir()) == []
        assert list(config.layers_dir.iterdir()) == []
