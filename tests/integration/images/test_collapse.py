"""An image of many layers becomes one of few, while nobody waits and nothing is lost."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.integration.images.stacks import Stacks

from dsec.errors import ImageNotFound
from dsec.images import Images, ImagesConfig, SubprocessTools, ToolResult
from dsec.images.fakes import FakeTools
from dsec.images.samples import Member, layer_archive, oci_layout

pytestmark = [pytest.mark.node, pytest.mark.anyio]
Configure = Callable[..., ImagesConfig]
Log = Callable[[str], None]

BASE = layer_archive([
    Member(name="etc/", kind=tarfile.DIRTYPE, mode=0o755),
    Member(name="etc/old", data=b"old"),
    Member(name="bin/sh", data=b"\x7fELF" * 100_000, mode=0o755),
])  # fmt: skip
TWELVE = [
    BASE,
    layer_archive([Member(name="etc/.wh.old"), Member(name="home/a", data=b"1")]),
    layer_archive([Member(name="home/.wh..wh..opq"), Member(name="home/b", data=b"2")]),
    *(layer_archive([Member(name=f"srv/file-{i}", data=b"%d" % i * 5_000)]) for i in range(9)),
]


async def settled(images: Images, reference: str, layers: int) -> None:
    """Wait for what goes on in the background: then an image has so many layers."""
    await images.settled()
    assert len(images.get(reference).layers) == layers


class Slow:
    """The program that makes layers, which waits before it puts layers together until it is let go."""

    def __init__(self) -> None:
        self.begun, self.go = asyncio.Event(), asyncio.Event()

    async def __call__(self, argv: Sequence[str], _: Log) -> ToolResult:
        if "FromLayers" in (Path(argv[-1]) / "job").read_text():
            self.begun.set()
            await self.go.wait()
        return await SubprocessTools().run("mkfs", argv, timeout_s=60)


async def test_twelve_layers_become_one(images: Images, tmp_path: Path) -> None:
    """By itself after an import, showing the same; the parts can go then, and their digests stay known."""
    imported = await images.import_(f"oci:{oci_layout(tmp_path / 'l', TWELVE)}", "many:1")
    parts = imported.layers
    assert len(parts) == 12
    with images.holding(parts):
        await settled(images, "many:1", 1)
        image = images.get("many:1")
        assert (image.parts, image.digest, image.config) == (parts, imported.digest, imported.config)
        with Stacks(tmp_path / "stacks") as stacks:
            apart, together = stacks.seen(
                [images.layer_path(each) for each in parts], [images.layer_path(each) for each in image.layers]
            )
        assert apart == together
        assert await images.collapse("many:1") == image
        assert set(await images.prune()) == set()
    assert set(await images.prune()) == set(parts)
    assert images.get("many:1").parts == parts


async def test_nobody_waits_for_it(configure: Configure, tmp_path: Path) -> None:
    """The import ends before, the image can be used with its parts meanwhile, and a restart begins it anew."""
    slow, config = Slow(), configure()
    async with Images(config, FakeTools({"mkfs": slow})) as images:
        image = await images.import_(f"oci:{oci_layout(tmp_path / 'l', TWELVE)}", "many:1")
        await slow.begun.wait()
        assert images.get("many:1") == image
        assert all(images.layer_path(each).is_dir() for each in image.layers)
    assert [each for each in config.layers_dir.iterdir() if each.name.startswith(".new-")] == []
    async with Images(config, SubprocessTools()) as images:
        images.resume()
        await settled(images, "many:1", 1)


async def test_an_image_that_moved_or_went_meanwhile(configure: Configure, tmp_path: Path) -> None:
    """What another import or a removal made of the name in the meantime stands."""
    slow = Slow()
    async with Images(configure(), FakeTools({"mkfs": slow})) as images:
        await images.import_(f"oci:{oci_layout(tmp_path / 'l', TWELVE)}", "many:1")
        await images.import_(f"oci:{oci_layout(tmp_path / 'k', TWELVE[:11])}", "gone:1")
        await slow.begun.wait()
        other = await images.import_(f"oci:{oci_layout(tmp_path / 'm', [BASE])}", "many:1")
        await images.remove("gone:1")
        slow.go.set()
        assert await images.collapse("many:1") == other
        with pytest.raises(ImageNotFound):
            await images.collapse("gone:1")


async def test_made_once_for_the_same_run(configure: Configure, tmp_path: Path) -> None:
    """Imported again, or under another name, an image has the collapsed layer at once, with the digest it had."""
    tools = FakeTools({"mkfs": lambda argv, _: SubprocessTools().run("mkfs", argv, timeout_s=60)})
    layout = oci_layout(tmp_path / "l", TWELVE)
    async with Images(configure(), tools) as images:
        await images.import_(f"oci:{layout}", "many:1")
        await settled(images, "many:1", 1)
        runs, layers = len(tools.calls), images.get("many:1").layers
        await images.import_(f"oci:{layout}", "many:1")
        await settled(images, "many:1", 1)
        assert (len(tools.calls), images.get("many:1").layers) == (runs, layers)
    async with Images(configure("other"), SubprocessTools()) as images:
        await images.import_(f"oci:{layout}", "many:1")
        await settled(images, "many:1", 1)
        assert images.get("many:1").layers == layers


async def test_settings_decide(configure: Configure, tmp_path: Path) -> None:
    """With collapse_mib 0 layers stay; with a small one the large layer stays alone."""
    layout = oci_layout(tmp_path / "l", TWELVE)
    async with Images(configure("never", collapse_mib=0), SubprocessTools()) as images:
        await images.import_(f"oci:{layout}", "many:1")
        assert len((await images.collapse("many:1")).layers) == 12
    big = layer_archive([Member(name="big", data=random.Random(1).randbytes(2 << 20))])
    async with Images(configure("small", collapse_mib=1), SubprocessTools()) as images:
        image = await images.import_(f"oci:{oci_layout(tmp_path / 'b', [big, *TWELVE])}", "many:1")
        collapsed = await images.collapse("many:1")
        assert collapsed.layers[0] == image.layers[0]
        assert len(collapsed.layers) == 2


async def test_a_catalogue_of_before_is_adopted(configure: Configure, tmp_path: Path) -> None:
    """A shared catalogue without the tables of collapsed layers is read as one without collapsed layers."""
    config = configure("first")
    async with Images(config, SubprocessTools()) as images:
        await images.import_(f"oci:{oci_layout(tmp_path / 'l', [BASE])}", "one:1")
    with sqlite3.connect(config.catalogue) as db:
        db.execute("DROP TABLE image_parts")
        db.execute("DROP TABLE collapsed")
    db.close()
    async with Images(configure("second", shared_dir=config.layers_dir.parent), SubprocessTools()) as images:
        assert images.get("one:1").parts == ()
