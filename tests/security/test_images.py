"""Images and layers made by an enemy: device nodes, set-ID files, and links where a sandbox's mounts go."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import aiohttp
import pytest

import dsec
from dsec.images.samples import Member, docker_archive, layer_archive
from dsec.testing.node import RunningNode

from .inside import IMAGE, USERS, attempts

pytestmark = [pytest.mark.node, pytest.mark.anyio]

SECRET = f"/tmp/dsec-secret-{os.getpid()}"
"""A file of the host that archives try to get into a layer."""
ESCAPED = f"/tmp/dsec-escape-{os.getpid()}"
"""One that they try to make."""
DIR, SYM, CHR, BLK, FIFO, HARD = (
    tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.LNKTYPE,
)  # fmt: skip


def link(name: str, to: str) -> Member:
    """A symbolic link."""
    return Member(name=name, kind=SYM, link=to)


def folder(name: str) -> Member:
    """A directory."""
    return Member(name=name, kind=DIR, mode=0o755)


def mount_tables(pid: int) -> set[str]:
    """The mount tables of a process's threads."""
    return {path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/mountinfo")}


async def imported(client: dsec.DSecClient, members: Sequence[Member], where: Path, name: str) -> str:
    """An image of one layer with these members."""
    archive = docker_archive(where / "image.tar", [layer_archive(members)], name=name)
    await client.images.import_(f"docker-archive:{archive}")
    return name


def host_marks() -> dict[str, object]:
    """What of the host the mounts of a hostile image would change."""
    found: dict[str, object] = {path: Path(path).stat().st_ino for path in ("/", "/etc", "/proc", "/dev", "/sys")}
    found["mounts"] = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()} & set(found)
    return found


@pytest.mark.parametrize(
    ("number", "members"),
    list(
        enumerate(
            [
                [link(name, "../../../../.." + f"/{name}") for name in ("proc", "dev", "sys")],
                [link("proc", "sys"), link("sys", "dev"), link("dev", "proc")],
                [link("proc", "/"), folder("dev")],
                [link("sys", "/"), folder("dev")],
                [link("dev", "/")],
                [link("proc", "etc"), link("sys", "etc"), link("dev", "etc"), folder("etc")],
                [Member(name=name, data=b"x") for name in ("proc", "sys", "dev")],
                [link("etc", "/proc/self/root/../../etc")],
                [
                    folder("etc"),
                    link("etc/hosts", "../../../../../etc/hosts"),
                    link("etc/resolv.conf", "/proc/self/mem"),
                ],
                [folder("etc"), folder("etc/hosts"), Member(name="etc/hostname", kind=FIFO)],
                [
                    folder("etc"),
                    Member(name="etc/hosts", kind=BLK, device=(7, 0)),
                    link("etc/resolv.conf", "/dev/null"),
                ],
                [
                    folder("dev"),
                    link("dev/shm", "/etc"),
                    link("dev/pts", "../../../tmp"),
                    Member(name="dev/null", data=b"x"),
                ],
            ]
        )
    ),
)
async def test_hostile_mount_targets(
    client: dsec.DSecClient, tmp_path: Path, number: int, members: list[Member]
) -> None:
    """An image whose /proc, /dev, /etc/hosts, … are links out, loops, files, devices: mounted inside, or refused.

    A link in the place of /proc, /sys or /dev is always refused.
    """
    # Targets are resolved below the new root (RESOLVE_IN_ROOT, no magic links), in a mount namespace of its own.
    before = host_marks()
    linked = [each.name for each in members if each.kind == SYM and each.name in ("proc", "sys", "dev")]
    name = await imported(client, [*members, Member(name="x", data=b"x")], tmp_path, f"hostile/targets:{number}")
    try:
        async with client.sandbox(name, deadline_s=1.5) as sandbox:
            assert linked == []
            with pytest.raises(dsec.DSecError):
                await sandbox.exec("/proc/self/exe")
            for path in ("/etc/hosts", "/x"):
                try:
                    assert b"root:" not in await sandbox.read(path)
                except dsec.FileError:
                    continue
    except dsec.DSecError as error:
        # The image is to blame, and will be the next time: no retry.
        assert isinstance(error, dsec.ImageError) and not error.retryable, error
    assert host_marks() == before


async def test_devices_of_a_layer_are_dead(client: dsec.DSecClient, tmp_path: Path) -> None:
    """Device nodes that come with an image, in it and over its /dev, cannot be opened by root or anybody."""
    # EROFS, the overlay and the pool are mounted nodev; /dev is a mount of the node's own.
    devices = {"null": (1, 3), "mem": (1, 1), "kmsg": (1, 11), "vda": (254, 0), "loop0": (7, 0), "fuse": (10, 229)}
    members = [folder("dev"), folder("nodes")]
    for name, numbers in devices.items():
        kind = BLK if name in ("vda", "loop0") else CHR
        members += [
            Member(name=f"{place}/{name}", kind=kind, device=numbers, mode=0o666) for place in ("nodes", "dev")
        ]
    await imported(client, members, tmp_path, "hostile/devices:1")
    async with client.sandbox("hostile/devices:1") as sandbox:
        for name in devices:
            with pytest.raises(dsec.FileError):
                await sandbox.read(f"/nodes/{name}")
        with pytest.raises(dsec.FileError):
            await sandbox.read("/dev/mem")


@pytest.fixture
def host_secret() -> Iterator[Path]:
    """The file."""
    path = Path(SECRET)
    path.write_text("the host's secret")
    yield path
    path.unlink()


def escaped() -> bool:
    """Whether an archive has made its file."""
    return Path(ESCAPED).exists() or Path(ESCAPED).is_symlink()


async def post_layer(node: RunningNode, archive: bytes, name: str) -> tuple[int, dict[str, object]]:
    """A layer from raw bytes, as no client of ours would send them."""
    headers = {"authorization": f"Bearer {node.token}"}
    query = {"reference": f"workspace/{name}:1", "at": "/", "owner": "0:0"}
    async with aiohttp.ClientSession() as session:
        url = f"{node.url}/v1/layers"
        async with session.post(url, params=query, data=archive, headers=headers) as answer:
            return answer.status, await answer.json()


@pytest.mark.parametrize(
    ("number", "members"),
    list(
        enumerate(
            [
                [Member(name="../../../.." + ESCAPED, data=b"x")],
                [Member(name=ESCAPED, data=b"x")],
                [link("out", "/tmp"), Member(name=f"out/{Path(ESCAPED).name}", data=b"x")],
                [link("out", "../../../../../../tmp"), Member(name=f"out/{Path(ESCAPED).name}", data=b"x")],
                [Member(name="hard", kind=HARD, link=SECRET)],
                [Member(name="hard", kind=HARD, link=f"../../../../../../..{SECRET}")],
                [link("pass", SECRET), Member(name="hard", kind=HARD, link="pass")],
                [
                    folder("a"),
                    link("a/b", "/tmp"),
                    folder("a/b"),
                    Member(name=f"a/b/{Path(ESCAPED).name}", data=b"x"),
                ],
            ]
        )
    ),
)
async def test_hostile_layer_archives(
    node: RunningNode, host_secret: Path, number: int, members: list[Member]
) -> None:
    """Dots, absolute names, files behind links, hard links to the host's: nothing outside is written or read."""
    # Unpacked below one directory descriptor, never through a link; hard links only to what the archive brought.
    status, answer = await post_layer(node, layer_archive(members), f"escape{number}")
    assert not escaped()
    assert status in (200, 400, 422), answer
    if status == 200:
        async with node.client() as client, client.sandbox(IMAGE, workspace=f"workspace/escape{number}:1") as sandbox:
            found = await sandbox.run_shell(f"cat /hard {ESCAPED} /out {host_secret} 2>/dev/null")
            assert "secret" not in found.stdout


async def test_garbage_layers(node: RunningNode) -> None:
    """Noise, a cut archive, an endless header, a sparse giant: typed errors."""
    whole = layer_archive([Member(name="x", data=b"y" * 100_000)])
    giant = tarfile.TarInfo("giant")
    giant.size = 1 << 50
    accepted = []
    for number, archive in enumerate(
        (b"junk" * 1000, whole[:50_000], giant.tobuf(), b"\xff" * 1024, io.BytesIO().getvalue())
    ):
        status, answer = await post_layer(node, archive, f"garbage{number}")
        assert status in (200, 400, 422), answer
        if status == 200:
            accepted.append(archive[:8])
    assert accepted == [], "what is no archive became a layer"


@pytest.mark.parametrize(
    "attribute", ["trusted.overlay.redirect", "trusted.overlay.opaque", "trusted.overlay.metacopy"]
)
async def test_layers_bring_no_overlay_attributes(node: RunningNode, attribute: str) -> None:
    """A layer that would redirect or uncover directories of the layers below is refused."""
    # The unpacker knows the overlay's own attributes, and takes whiteouts only by their names.
    marked = Member(name="marked", data=b"x", xattrs={f"trusted.overlay.{attribute}": "/etc"})
    status, answer = await post_layer(node, layer_archive([marked]), "marked")
    assert status == 400 and "image_corrupt" in str(answer)


@pytest.mark.parametrize("user", USERS)
async def test_devices_over_the_default_image(client: dsec.DSecClient, node: RunningNode, user: str) -> None:
    """A workspace with device nodes, and a script with set-ID bits and all capabilities of host root."""
    # The overlay is nodev whatever the layer says; set-ID bits and capabilities of scripts count for nothing.
    name = f"setid{user[0]}"
    # Version 3, permitted, of host root; ASCII, as the archive's text holds it.
    capability = b"\0\0\0\x03" + b"\x7f" * 4 + bytes(16)
    nodes = {"disk": (BLK, (254, 0)), "mem": (CHR, (1, 1)), "kmsg": (CHR, (1, 11)), "zero": (CHR, (1, 5))}
    members = [Member(name=each, kind=kind, device=of, mode=0o666) for each, (kind, of) in nodes.items()]
    members.append(
        Member(
            name="capable",
            data=b"#!/bin/sh\nexec grep CapPrm /proc/self/status",
            mode=0o6755,
            xattrs={"security.capability": capability.decode()},
        )
    )
    status, answer = await post_layer(node, layer_archive(members), name)
    assert status == 200, answer
    async with client.sandbox(IMAGE, workspace=f"workspace/{name}:1") as sandbox:
        found = await attempts(
            sandbox,
            """
for name in ("disk", "mem", "kmsg", "zero"):
    attempt(name, lambda: os.open("/" + name, os.O_RDONLY))
""",
            user,
        )
        assert set(found.values()) == {"EACCES"}, found
        assert (await sandbox.exec("stat", "-c", "%a", "/capable")).stdout == "6755\n"
        held = (await sandbox.exec("/capable", user=user, check=True)).stdout
        assert int(held.split()[1], 16) == (0xA00405FB if user == "root" else 0)


async def test_set_ids_stay_inside(client: dsec.DSecClient, node: RunningNode) -> None:
    """Set-ID programs and file capabilities that root makes inside work inside, and are dead on the host's side."""
    # The pool is nosuid and nodev, below a directory that only root enters; capabilities bear the namespace's root.
    async with client.sandbox(IMAGE) as sandbox:
        await sandbox.run_shell("cp /usr/bin/id /bin/rid; chmod 6755 /bin/rid; cp /usr/bin/cat /bin/rcat", check=True)
        assert "euid=0(root)" in (await sandbox.exec("rid", user="1000:1000")).stdout
        found = await attempts(
            sandbox,
            'value = struct.pack("<IIIIII", 0x03000001, 0xffffffff, 0, 0xffffffff, 0, 0)\n'
            'attempt("root of the host", os.setxattr, "/bin/rcat", "security.capability", value)\n'
            'value = struct.pack("<IIIII", 0x02000000, 0xffffffff, 0, 0xffffffff, 0)\n'
            'attempt("own root", os.setxattr, "/bin/rcat", "security.capability", value)',
        )
        assert found["own root"] is None
        status = (await sandbox.exec("rcat", "/proc/self/status", user="1000:1000", check=True)).stdout
        permitted = next(line.split()[1] for line in status.splitlines() if line.startswith("CapPrm"))
        assert int(permitted, 16) == 0xA00405FB, "a file gives the bounding set at most"
        pid = node.services()["runtime"].pid
        tables = mount_tables(pid)
        pools = [line for table in tables for line in table.splitlines() if f"/{node.paths.name}/pool" in line]
        assert pools and all({"nosuid", "nodev"} <= set(line.split()[5].split(",")) for line in pools)
    assert (node.paths.run / "pool").stat().st_mode & 0o777 == 0o700
