"""The default image: one layer, a fixed configuration, equal packages equal layers (mmdebstrap is played)."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from dsec.errors import ImageNotFound, InvalidArgument, NodeError
from dsec.images import Images, ImagesConfig, Progress, SubprocessTools, ToolResult
from dsec.images.fakes import FakeTools
from dsec.images.samples import Member, layer_archive

pytestmark = [pytest.mark.node, pytest.mark.anyio]
Configure = Callable[..., ImagesConfig]
Mounted = Callable[[Path, str], str]
Log = Callable[[str], None]
LATER = 4_000_000_000


async def mkfs(argv: Sequence[str], _: Log) -> ToolResult:
    """The real mkfs.erofs."""
    return await SubprocessTools().run("mkfs", argv, timeout_s=60)


async def apt_config(_: Sequence[str], __: Log) -> ToolResult:
    """A machine behind a proxy."""
    return ToolResult(0, b'Acquire::http::Proxy "http://proxy.example:1/";\n')


def bootstrap(touched_at: float) -> Callable[[Sequence[str], Log], object]:
    """Plays mmdebstrap: a file with a package's own time, one touched while building."""

    async def run(argv: Sequence[str], _: Log) -> ToolResult:
        members = [
            Member(name="./", kind=tarfile.DIRTYPE, mode=0o755, mtime=touched_at),
            Member(name="./bin/bash", data=b"#", mode=0o755, mtime=1_600_000_000),
            Member(name="./etc/passwd", data=b"root", mtime=touched_at),
        ]
        Path(argv[argv.index("bookworm") + 1]).write_bytes(layer_archive(members))  # noqa: ASYNC240 (a fake's few bytes)
        return ToolResult(0)

    return run


def tools(touched_at: float) -> FakeTools:
    """All programs of a build."""
    programs = {"mkfs": mkfs, "apt-config": apt_config, "mmdebstrap": bootstrap(touched_at)}
    return FakeTools(programs)  # type: ignore[arg-type]


async def test_built_as_one_layer(configure: Configure, mounted: Mounted) -> None:
    """The image has bash for its command, a PATH, one layer; the machine's proxy holds while it is built."""
    played = tools(LATER)
    async with Images(configure(), played) as images:
        with pytest.raises(ImageNotFound, match="dsec image build"):
            await images.resolve("dsec/debian:12")
        seen: list[Progress] = []
        image = await images.build_default(progress=seen.append)
        assert await images.resolve("dsec/debian:12", pull="always") == image
        assert image.config.cmd == ("bash",)
        assert image.config.env["LANG"] == "C.UTF-8"
        assert "/usr/bin" in image.config.env["PATH"].split(":")
        assert [each.phase for each in seen] == ["build", "unpack", "unpack", "done"]
        argv = next(argv for name, argv in played.calls if name == "mmdebstrap")
        assert '--aptopt=Acquire::http::Proxy "http://proxy.example:1/"' in argv
        said = mounted(
            images.layer_path(image.layers[0]),
            "print(int(os.stat('bin/bash').st_mtime), int(os.stat('etc/passwd').st_mtime))",
        )
        assert said.split() == ["1600000000", "1704067200"]


async def test_equal_whenever_it_is_built(configure: Configure) -> None:
    """Two builds of the same packages at different times are the same layer."""
    found = []
    for name, touched_at in (("one", LATER), ("two", LATER + 86_400)):
        async with Images(configure(name), tools(touched_at)) as images:
            found.append((await images.build_default()).layers)
    assert found[0] == found[1]


async def test_a_failed_build_says_why(configure: Configure) -> None:
    """mmdebstrap's last words are in the error; nothing stays."""

    async def fail(_: Sequence[str], __: Log) -> ToolResult:
        return ToolResult(25, b"", "E: cannot reach the mirror\n")

    config = configure()
    played = FakeTools({"apt-config": apt_config, "mmdebstrap": fail})
    async with Images(config, played) as images:
        with pytest.raises(NodeError, match="cannot reach the mirror") as caught:
            await images.build_default()
        assert caught.value.remedy
        assert list(config.scratch_dir.iterdir()) == []
    async with Images(config, FakeTools({"apt-config": apt_config})) as images:
        with pytest.raises(NodeError, match="mmdebstrap is not installed"):
            await images.build_default()


async def test_reserved_names_are_never_pulled(configure: Configure) -> None:
    """Whatever is asked for, a dsec/ name runs no program; a layer is not an image."""
    played = FakeTools({})
    async with Images(configure(), played) as images:
        for pull in ("missing", "always", "never"):
            with pytest.raises(ImageNotFound):
                await images.resolve("dsec/other:1", pull=pull)
        with pytest.raises(InvalidArgument, match="workspace="):
            await images.resolve("workspace/x:1")
        assert played.calls == []
