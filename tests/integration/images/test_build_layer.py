"""Users' layers: a directory's archive under a tag."""

from __future__ import annotations

import io
import tarfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from dsec.errors import ImageCorrupt, InvalidArgument, NotFound
from dsec.images import Images
from dsec.images.samples import Member, layer_archive

pytestmark = [pytest.mark.node, pytest.mark.anyio]
Mounted = Callable[[Path, str], str]


async def chunks(data: bytes) -> AsyncIterator[bytes]:
    """A client's stream."""
    for at in range(0, len(data), 10_000):
        yield data[at : at + 10_000]


async def test_directory_over_a_path(images: Images, mounted: Mounted) -> None:
    """Files lie below --at with their modes, of the owner given; parents are root's."""
    archive = layer_archive([
        Member(name="./", kind=tarfile.DIRTYPE, mode=0o700, uid=501),
        Member(name="./run.sh", data=b"echo hi\n", mode=0o755, uid=501, gid=20),
        Member(name="./.wh.plain", data=b"kept", uid=501),
    ])  # fmt: skip
    tag = await images.build_layer("workspace/repo:1", chunks(archive), at="/srv/repo", owner=(1000, 1000))
    assert (
        images.resolve_layer("workspace/repo:1")
        == images.resolve_layer("workspace/repo:1", "workspace")
        == tag.digest
    )
    with pytest.raises(InvalidArgument, match="is a workspace, not a toolkit"):
        images.resolve_layer("workspace/repo:1", "toolkit")
    assert [each.tag for each in images.list_layers()] == ["workspace/repo:1"]
    said = mounted(
        images.layer_path(tag.digest),
        "import stat\n"
        "for p in ('srv', 'srv/repo', 'srv/repo/run.sh', 'srv/repo/.wh.plain'):\n"
        "    s = os.lstat(p); print(oct(s.st_mode), s.st_uid, s.st_gid)\n"
        "print(open('srv/repo/run.sh').read())",
    )
    assert said.split() == ["0o40755", "0", "0", "0o40700", "1000", "1000", "0o100755", "1000", "1000",
                            "0o100644", "1000", "1000", "echo", "hi"]  # fmt: skip


async def test_owners_that_are_kept(images: Images, mounted: Mounted) -> None:
    """Without an owner each file is its own's; one that no sandbox has is refused."""
    archive = layer_archive([Member(name="a", uid=33, gid=44, mode=0o4755), Member(name="d/b", uid=0, gid=7)])
    tag = await images.build_layer("base/kept:1", chunks(archive), owner=None)
    said = mounted(
        images.layer_path(tag.digest),
        "for p in ('a', 'd', 'd/b'): s = os.lstat(p); print(oct(s.st_mode & 0o7777), s.st_uid, s.st_gid)",
    )
    assert said.split() == ["0o4755", "33", "44", "0o755", "0", "0", "0o644", "0", "7"]
    with pytest.raises(ImageCorrupt):
        await images.build_layer("base/kept:2", chunks(layer_archive([Member(name="a", uid=1 << 33)])), owner=None)


async def test_equal_directories_are_one_layer(images: Images) -> None:
    """The same content under two tags is stored once, and goes with the last tag."""
    archive = layer_archive([Member(name="x", data=b"1")])
    one = await images.build_layer("workspace/a:1", chunks(archive))
    two = await images.build_layer("toolkit/b:1", chunks(archive))
    assert one.digest == two.digest
    await images.remove_layer("workspace/a:1")
    assert images.layer_path(two.digest).is_dir()
    await images.remove_layer("toolkit/b:1")
    with pytest.raises(NotFound):
        images.layer_path(two.digest)
    with pytest.raises(NotFound):
        images.resolve_layer("toolkit/b:1")


async def test_empty_directory(images: Images, mounted: Mounted) -> None:
    """A layer without any file's data can be mounted too."""
    tag = await images.build_layer("workspace/empty:1", chunks(layer_archive([])))
    assert mounted(images.layer_path(tag.digest), "print(os.listdir('.'))").strip() == "[]"


async def test_bad_arguments(images: Images) -> None:
    """Malformed tags, paths and owners are refused before anything is read."""

    async def untouched() -> AsyncIterator[bytes]:
        raise AssertionError("the stream was read")
        yield b""

    for reference, at, owner in (
        ("python:3", "/", (0, 0)),
        ("workspace/x:1", "relative", (0, 0)),
        ("workspace/x:1", "/../etc", (0, 0)),
        ("workspace/x:1", "/a\0b", (0, 0)),
        ("workspace/x:1", "/", (-1, 0)),
        ("workspace/x:1", "/", (0, 70_000)),
    ):
        with pytest.raises(InvalidArgument):
            await images.build_layer(reference, untouched(), at=at, owner=owner)


@pytest.mark.parametrize("data", [b"", b"not a tar", b"\x28\xb5\x2f\xfd", bytes(600)[:300]])
async def test_streams_that_are_no_archive(images: Images, data: bytes) -> None:
    """What is no tar, or cut short, is ImageCorrupt, and the tag stays unknown."""
    with pytest.raises(ImageCorrupt) as caught:
        await images.build_layer("workspace/x:1", chunks(data))
    assert "Make the archive anew" in (caught.value.remedy or "")
    with pytest.raises(NotFound):
        images.resolve_layer("workspace/x:1")


async def test_escape_is_refused(images: Images, tmp_path: Path) -> None:
    """A client's archive cannot write outside its layer."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        link = tarfile.TarInfo("l")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
        archive.addfile(link)
        archive.addfile(tarfile.TarInfo("l/escaped"))
    with pytest.raises(ImageCorrupt):
        await images.build_layer("workspace/x:1", chunks(out.getvalue()))
    assert not (tmp_path / "escaped").exists()
