"""Imports side by side, cancelled, and against the clean-up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from dsec.errors import NotFound
from dsec.images import Images, ImagesConfig, SubprocessTools, ToolResult
from dsec.images.fakes import FakeTools
from dsec.images.samples import Member, layer_archive, oci_layout
from dsec.images.threads import in_thread

pytestmark = [pytest.mark.node, pytest.mark.anyio]
Configure = Callable[..., ImagesConfig]
Log = Callable[[str], None]

SHARED = layer_archive([Member(name="shared", data=b"s" * 10_000)])
OWN = layer_archive([Member(name="own", data=b"o")])


class SlowMkfs:
    """The real mkfs.erofs, which waits to be let go."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        self.runs = 0

    async def __call__(self, argv: Sequence[str], _: Log) -> ToolResult:
        self.runs += 1
        self.begun.set()
        await self.go.wait()
        return await SubprocessTools().run("mkfs", argv, timeout_s=60)


async def test_a_layer_that_two_imports_want_is_made_once(configure: Configure, tmp_path: Path) -> None:
    """Two images with the same base, imported at the same moment, make the base once."""
    mkfs = SlowMkfs()
    one, two = oci_layout(tmp_path / "one", [SHARED]), oci_layout(tmp_path / "two", [SHARED, OWN])
    async with (
        Images(configure(parallel_layers=4), FakeTools({"mkfs": mkfs})) as images,
        asyncio.TaskGroup() as group,
    ):
        first = group.create_task(images.import_(f"oci:{one}", "one:1"))
        second = group.create_task(images.import_(f"oci:{two}", "two:1"))
        await mkfs.begun.wait()
        mkfs.go.set()
        assert (await second).layers[0] == (await first).layers[0]
        assert mkfs.runs == 2


async def test_a_cancelled_import_leaves_nothing(configure: Configure, tmp_path: Path) -> None:
    """Cancelled while a layer is made: no file, no record; the next import works."""
    mkfs = SlowMkfs()
    config = configure()
    layout = oci_layout(tmp_path / "l", [SHARED, OWN])
    async with Images(config, FakeTools({"mkfs": mkfs})) as images:
        running = asyncio.create_task(images.import_(f"oci:{layout}", "a:1"))
        await mkfs.begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert list(config.scratch_dir.iterdir()) == []
        assert list(config.layers_dir.iterdir()) == []
        assert images.list() == []
        mkfs.go.set()
        assert len((await images.import_(f"oci:{layout}", "a:1")).layers) == 2


async def test_clean_up_spares_what_an_import_has_made(configure: Configure, tmp_path: Path) -> None:
    """A layer that is finished while another of the same image is still being made survives a prune."""
    layout = oci_layout(tmp_path / "l", [SHARED, OWN])
    mkfs = SlowMkfs()
    second_begun = asyncio.Event()

    async def first_at_once(argv: Sequence[str], log: Log) -> ToolResult:
        if mkfs.runs == 0:
            mkfs.runs += 1
            return await SubprocessTools().run("mkfs", argv, timeout_s=60)
        second_begun.set()
        return await mkfs(argv, log)

    async with Images(configure(parallel_layers=1), FakeTools({"mkfs": first_at_once})) as images:
        running = asyncio.create_task(images.import_(f"oci:{layout}", "a:1"))
        await second_begun.wait()
        assert len(await images.prune()) == 0
        mkfs.go.set()
        image = await running
        assert all(images.layer_path(each).is_dir() for each in image.layers)


async def test_held_layers_outlive_their_image(configure: Configure, tmp_path: Path) -> None:
    """Between asking for an image and recording its use, holding keeps its layers."""
    layout = oci_layout(tmp_path / "l", [SHARED])
    async with Images(configure(), SubprocessTools()) as images:
        image = await images.import_(f"oci:{layout}", "a:1")
        with images.holding(image.layers):
            await images.remove("a:1")
            assert images.layer_path(image.layers[0]).is_dir()
        assert len(await images.prune()) == 1
        with pytest.raises(NotFound):
            images.layer_path(image.layers[0])


async def test_cancelling_waits_for_the_thread() -> None:
    """Cancelled work in a thread is told to stop, and has ended when the caller goes on."""
    begun, ended = threading.Event(), threading.Event()

    def work(stop: threading.Event) -> None:
        begun.set()
        assert stop.wait(30)
        ended.set()

    running = asyncio.create_task(in_thread(work))
    await asyncio.to_thread(begun.wait)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended.is_set()
