"""Images come in from archives and layouts with their files and configuration, each layer once."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from dsec.errors import ImageCorrupt, ImageNotFound, InvalidArgument
from dsec.images import Images, ImagesConfig, Progress, SubprocessTools
from dsec.images.oci import node_architecture
from dsec.images.samples import Member, docker_archive, layer_archive, oci_layout

pytestmark = [pytest.mark.node, pytest.mark.anyio]
Configure = Callable[..., ImagesConfig]
Mounted = Callable[[Path, str], str]

CAPABILITY = "\x01\x00\x00\x02\x00\x20\x00\x00" + "\x00" * 12
BASE = layer_archive(
    [
        Member(name="etc/", kind=tarfile.DIRTYPE, mode=0o755),
        Member(name="etc/passwd", data=b"root:x:0:0::/root:/bin/sh\n"),
        Member(name="etc/old", data=b"old"),
        Member(name="bin/su", data=b"\x7fELF" * 3000, mode=0o4755, xattrs={"security.capability": CAPABILITY}),
        Member(name="bin/su2", kind=tarfile.LNKTYPE, link="bin/su"),
        Member(name="home/u/f", data=b"mine", uid=1000, gid=100, mode=0o600, mtime=1_600_000_000.5),
    ]
)
TOP = layer_archive([Member(name="etc/.wh.old"), Member(name="home/.wh..wh..opq"), Member(name="new", data=b"n")])
CONFIG = {
    "Env": ["PATH=/bin", "A=b=c"],
    "User": "1000:100",
    "WorkingDir": "/home/u",
    "Entrypoint": ["/bin/su"],
    "Cmd": ["-"],
}


async def chunks(data: bytes) -> AsyncIterator[bytes]:
    """A client's stream."""
    for at in range(0, len(data), 60_000):
        yield data[at : at + 60_000]


async def test_layout_with_everything(images: Images, tmp_path: Path, mounted: Mounted) -> None:
    """Configuration and layers of a layout arrive; mounted by the kernel, the files are what the archive said."""
    layout = oci_layout(tmp_path / "layout", [BASE, TOP], CONFIG)
    seen: list[Progress] = []
    image = await images.import_(f"oci:{layout}", "example.org/a/b:1", progress=seen.append)
    assert images.get("example.org/a/b:1") == image
    config = image.config
    assert (config.env, config.user, config.workdir) == ({"PATH": "/bin", "A": "b=c"}, "1000:100", "/home/u")
    assert (config.entrypoint, config.cmd) == (("/bin/su",), ("-",))
    assert (seen[-1].layers_done, seen[-1].layers_total, seen[-1].phase) == (2, 2, "done")
    assert seen[-2].bytes_done == seen[-2].bytes_total
    base, top = (images.layer_path(each) for each in image.layers)
    said = mounted(
        base,
        "s = os.stat('bin/su'); print(oct(s.st_mode), s.st_nlink, s.st_ino == os.stat('bin/su2').st_ino)\n"
        "print(open('bin/su', 'rb').read() == b'\\x7fELF' * 3000)\n"
        "print(len(os.getxattr('bin/su', 'security.capability')))\n"
        "s = os.stat('home/u/f'); print(s.st_uid, s.st_gid, oct(s.st_mode), s.st_mtime_ns)\n"
        "print(open('home/u/f').read())\n",
    )
    assert said.split() == [
        "0o104755",
        "2",
        "True",
        "True",
        "20",
        "1000",
        "100",
        "0o100600",
        "1600000000500000000",
        "mine",
    ]
    said = mounted(
        top,
        "import stat; s = os.lstat('etc/old'); print(stat.S_ISCHR(s.st_mode), s.st_rdev)\n"
        "print(os.getxattr('home', 'trusted.overlay.opaque').decode(), open('new').read())",
    )
    assert said.split() == ["True", "0", "y", "n"]


async def test_overlay_sees_the_deletions(images: Images, tmp_path: Path) -> None:
    """Stacked by overlay as a sandbox has them, the upper layer's whiteouts delete and its opaque directory hides."""
    image = await images.import_(f"oci:{oci_layout(tmp_path / 'l', [BASE, TOP])}", "x.io/a")
    base, top = (images.layer_path(each) for each in image.layers)
    code = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def mount(source, target, kind, options):
    os.makedirs(target, exist_ok=True)
    if libc.mount(source.encode(), target.encode(), kind, 1, options.encode()) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
root, base, top = sys.argv[1:]
mount(f"{base}/metadata", f"{root}/base", b"erofs", f"device={base}/data")
mount(f"{top}/metadata", f"{root}/top", b"erofs", f"device={top}/data")
mount("overlay", f"{root}/both", b"overlay", f"lowerdir={root}/top:{root}/base")
print(sorted(os.listdir(f"{root}/both")), os.listdir(f"{root}/both/etc"), os.listdir(f"{root}/both/home"))
"""
    argv = ["unshare", "--mount", "python3", "-c", code, str(tmp_path / "m"), str(base), str(top)]
    said = await asyncio.to_thread(subprocess.check_output, argv, text=True)
    assert said.strip() == "['bin', 'etc', 'home', 'new'] ['passwd'] []"


async def test_docker_archive(images: Images, tmp_path: Path) -> None:
    """What docker save writes comes in under its own name, with the same layers as the layout's."""
    archive = docker_archive(tmp_path / "saved.tar", [BASE, TOP], CONFIG, name="team/app:2")
    image = await images.import_(f"docker-archive:{archive}")
    assert image.reference == "docker.io/team/app:2"
    assert image.config.cmd == ("-",)
    layout = oci_layout(tmp_path / "layout", [BASE, TOP], CONFIG)
    same = await images.import_(f"oci:{layout}", "other:1")
    assert same.layers == image.layers


async def test_streams_of_a_client(images: Images, tmp_path: Path) -> None:
    """An archive and a layout sent as bytes are imported alike."""
    archive = docker_archive(tmp_path / "saved.tar", [BASE], name="a:1")
    image = await images.import_stream("docker-archive", chunks(archive.read_bytes()))
    layout = oci_layout(tmp_path / "layout", [BASE])
    packed = await asyncio.to_thread(subprocess.check_output, ["tar", "-C", str(layout), "-c", "."])
    same = await images.import_stream("oci", chunks(packed), "b:1")
    assert same.layers == image.layers
    assert [each.reference for each in images.list()] == ["docker.io/library/a:1", "docker.io/library/b:1"]


async def test_equal_content_gives_equal_layers_on_every_node(configure: Configure, tmp_path: Path) -> None:
    """Two nodes that import the same image make bit for bit the same layers."""
    layout = oci_layout(tmp_path / "layout", [BASE, TOP])
    found = []
    for name in ("one", "two"):
        async with Images(configure(name), SubprocessTools()) as node:
            image = await node.import_(f"oci:{layout}", "a:1")
            found.append(image.layers)
            assert [node.layer_path(each).name for each in image.layers] == list(image.layers)
    assert found[0] == found[1]


async def test_zstd_layers(images: Images, tmp_path: Path) -> None:
    """A layer compressed with zstd is read; its diffID is still checked."""
    plain = oci_layout(tmp_path / "plain", [BASE], compress=False)
    wanted = (await images.import_(f"oci:{plain}", "plain:1")).layers
    async with Images(_sibling(tmp_path), SubprocessTools()) as other:
        layout = _with_zstd(oci_layout(tmp_path / "zstd", [BASE], compress=False))
        assert (await other.import_(f"oci:{layout}", "zstd:1")).layers == wanted


def _sibling(tmp_path: Path) -> ImagesConfig:
    root = tmp_path / "sibling"
    return ImagesConfig(layers_dir=root / "layers", catalogue=root / "c.db", scratch_dir=root / "scratch")


def _with_zstd(layout: Path) -> Path:
    def put(data: bytes) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        (layout / "blobs/sha256" / digest).write_bytes(data)
        return {"digest": f"sha256:{digest}", "size": len(data)}

    index = json.loads((layout / "index.json").read_text())
    manifest = json.loads((layout / "blobs/sha256" / index["manifests"][0]["digest"][7:]).read_text())
    layer = (layout / "blobs/sha256" / manifest["layers"][0]["digest"][7:]).read_bytes()
    manifest["layers"] = [put(subprocess.run(["zstd", "-c"], input=layer, capture_output=True, check=True).stdout)]
    index["manifests"] = [put(json.dumps(manifest).encode())]
    (layout / "index.json").write_text(json.dumps(index))
    return layout


async def test_the_platform_of_this_node_is_taken(images: Images, tmp_path: Path) -> None:
    """Of an index with several architectures the node's own is imported; without it, the error says what there is."""
    layout = oci_layout(tmp_path / "many", [BASE], architectures=["s390x", node_architecture()])
    assert len((await images.import_(f"oci:{layout}", "a:1")).layers) == 1
    foreign = oci_layout(tmp_path / "foreign", [BASE], architectures=["s390x"])
    with pytest.raises(ImageNotFound, match="s390x"):
        await images.import_(f"oci:{foreign}", "b:1")


async def test_cut_and_changed_sources(images: Images, tmp_path: Path) -> None:
    """A cut archive, a cut, changed or missing blob, a FIFO for a blob: ImageCorrupt, and nothing is recorded."""
    saved = docker_archive(tmp_path / "saved.tar", [BASE, TOP], name="a:1").read_bytes()
    for cut in (0, 100, 5000, len(saved) // 2, len(saved.rstrip(b"\0")) - 600):
        (tmp_path / "cut.tar").write_bytes(saved[:cut])
        with pytest.raises(ImageCorrupt):
            await images.import_(f"docker-archive:{tmp_path / 'cut.tar'}")
        with pytest.raises(ImageCorrupt):
            await images.import_(f"docker-archive:{tmp_path / 'cut.tar'}", "named:1")
    blobs = sorted((oci_layout(tmp_path / "good", [BASE, TOP]) / "blobs/sha256").iterdir())
    for i, blob in enumerate(blobs):
        for kind, damage in enumerate((_cut, _change, _remove, _fifo)):
            layout = tmp_path / f"bad-{i}-{kind}"
            shutil.copytree(tmp_path / "good", layout)
            damage(layout / "blobs/sha256" / blob.name)
            with pytest.raises(ImageCorrupt):
                await images.import_(f"oci:{layout}", "a:1")
            # Of a layer that was made beside the damaged one the blob would not be read again.
            await images.prune()
    assert images.list() == []


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def _change(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def _remove(file: Path) -> None:
    file.unlink()


def _fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


async def test_sources_that_are_none(images: Images, tmp_path: Path) -> None:
    """A missing file, no image name, a reserved name: typed errors."""
    with pytest.raises(ImageCorrupt):
        await images.import_(f"docker-archive:{tmp_path}/nowhere.tar")
    with pytest.raises(ImageCorrupt):
        await images.import_(f"oci:{tmp_path}")
    nameless = docker_archive(tmp_path / "nameless.tar", [BASE])
    with pytest.raises(InvalidArgument, match="name"):
        await images.import_(f"docker-archive:{nameless}")
    with pytest.raises(InvalidArgument, match="dsec/"):
        await images.import_(f"docker-archive:{nameless}", "dsec/debian:12")
    with pytest.raises(InvalidArgument):
        await images.import_("docker://dsec/debian:12")


async def test_a_broken_stream_leaves_nothing(images: Images, tmp_path: Path) -> None:
    """When the client's connection breaks, its error comes through and nothing stays."""
    archive = docker_archive(tmp_path / "saved.tar", [BASE], name="a:1").read_bytes()

    async def broken() -> AsyncIterator[bytes]:
        yield archive[:3000]
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await images.import_stream("docker-archive", broken())
    assert images.list() == []


async def test_removing_keeps_what_others_need(images: Images, tmp_path: Path) -> None:
    """A layer goes when the last image that has it goes, unless a sandbox uses it."""
    both = await images.import_(f"oci:{oci_layout(tmp_path / 'both', [BASE, TOP])}", "both:1")
    one = await images.import_(f"oci:{oci_layout(tmp_path / 'one', [BASE])}", "one:1")
    assert one.layers == both.layers[:1]
    await images.remove("both:1")
    assert images.layer_path(one.layers[0]).is_dir()
    with pytest.raises(LookupError):
        images.layer_path(both.layers[1])
    await images.remove("one:1")
    with pytest.raises(LookupError):
        images.layer_path(one.layers[0])
    with pytest.raises(ImageNotFound):
        await images.remove("one:1")


async def test_layers_in_use_stay_until_pruned(configure: Configure, tmp_path: Path) -> None:
    """A sandbox's layer outlives its image, and the next start, and goes when the sandbox is gone."""
    used: set[str] = set()
    layout = oci_layout(tmp_path / "l", [BASE])
    async with Images(configure(), SubprocessTools(), in_use=used.__contains__) as node:
        image = await node.import_(f"oci:{layout}", "a:1")
        used.update(image.layers)
        await node.remove("a:1")
        assert node.layer_path(image.layers[0]).is_dir()
    async with Images(configure(), SubprocessTools(), in_use=used.__contains__) as node:
        assert node.layer_path(image.layers[0]).is_dir()
        assert len(await node.prune()) == 0
        used.clear()
        assert len(await node.prune()) == 1
        with pytest.raises(LookupError):
            node.layer_path(image.layers[0])


async def test_start_sweeps_what_a_crash_left(configure: Configure) -> None:
    """Scratch directories and layers that the catalogue does not know are gone after a start."""
    config = configure()
    (config.scratch_dir / "import-dead/tree").mkdir(parents=True)
    orphan = config.layers_dir / ("a" * 64)
    orphan.mkdir(parents=True)
    (orphan / "layer.json").write_text("{}")
    async with Images(config, SubprocessTools()) as images:
        images.resume()
        assert list(config.scratch_dir.iterdir()) == []
        assert list(config.layers_dir.iterdir()) == []


async def test_a_shared_store_serves_without_import(configure: Configure, tmp_path: Path) -> None:
    """A second node with the first one's directory as shared store has its images and writes no layer."""
    layout = oci_layout(tmp_path / "l", [BASE, TOP])
    async with Images(configure("first"), SubprocessTools()) as first:
        image = await first.import_(f"oci:{layout}", "a:1")
    config = configure("second", shared_dir=tmp_path / "first")
    async with Images(config, SubprocessTools()) as second:
        assert (await second.resolve("a:1", pull="never")).layers == image.layers
        assert second.layer_path(image.layers[0]).parent == tmp_path / "first" / "layers"
        assert (await second.import_(f"oci:{layout}", "b:1")).layers == image.layers
        await second.remove("a:1")
        await second.remove("b:1")
        assert list(config.layers_dir.iterdir()) == []
    assert (tmp_path / "first" / "layers" / image.layers[0] / "data").exists()
