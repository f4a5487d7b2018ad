"""Files, images, layers, tokens: what is sent and in how much memory."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
import tracemalloc
from pathlib import Path

import pytest

import dsec
from dsec.client.client import DSecClient
from dsec.client.tarball import tar_pieces
from dsec.testing.fake_node import FakeNode

pytestmark = pytest.mark.anyio


async def test_files_are_exact_bytes(client: DSecClient) -> None:
    """What is written is read back, whole and in part, small and larger than any buffer; names need not be UTF-8."""
    sandbox = await client.sandbox("image")
    large = os.urandom(3 << 20)
    for path, data in (("/small", b"a\x00b"), ("/empty", b""), ("/large", large), ("/na me?&%\udcff", b"x")):
        written = await sandbox.write(path, data, mode=0o750)
        assert (written.bytes, written.mode) == (len(data), 0o750)
        assert await sandbox.read(path) == data
    assert await sandbox.files.read("/large", offset=5, limit=7) == large[5:12]
    assert (await sandbox.write("/text", "äö")).bytes == 4


async def test_a_missing_file_is_pythons_error_too(client: DSecClient) -> None:
    """FileMissing is a FileNotFoundError with errno and file name, and no infrastructure fault."""
    sandbox = await client.sandbox("image")
    with pytest.raises(FileNotFoundError) as raised:
        await sandbox.read("/nosuch")
    assert isinstance(raised.value, dsec.FileMissing)
    assert raised.value.errno == 2 and raised.value.filename == "/nosuch" and not raised.value.is_infra


async def test_a_layer_is_the_directorys_tar(fake: FakeNode, client: DSecClient, tmp_path: Path) -> None:
    """layers.build sends names, modes, links and long names of a directory, and no owner of this machine's."""
    source = tmp_path / "source"
    (source / "deep" / ("long" * 60)).mkdir(parents=True)
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o755)
    (source / "link").symlink_to("run.sh")
    os.link(source / "run.sh", source / "same")
    (source / "deep" / "dirlink").symlink_to("/etc")
    layer = await client.layers.build(source, "workspace/a:1", at="/work", owner="1000:1000")
    assert layer.reference == "workspace/a:1"
    with tarfile.open(fileobj=io.BytesIO(fake.edge.uploads["workspace/a:1"])) as archive:
        entries = {entry.name: entry for entry in archive.getmembers()}
    assert set(entries) == {"deep", "deep/" + "long" * 60, "deep/dirlink", "link", "run.sh", "same"}
    assert entries["run.sh"].mode == 0o755 and entries["link"].linkname == "run.sh"
    assert entries["same"].islnk() and entries["same"].linkname == "run.sh"
    assert entries["deep/dirlink"].issym()
    assert {(entry.uid, entry.gid, entry.uname) for entry in entries.values()} == {(0, 0, "")}


def test_owners_are_kept_where_they_are_wanted(tmp_path: Path) -> None:
    """Each entry's own owner for a layer with ``owner="keep"``, else root's."""
    (tmp_path / "file").write_text("x")
    found = (tmp_path / "file").stat()
    for owners, expected in ((True, (found.st_uid + 7, found.st_gid)), (False, (0, 0))):
        if os.getuid() == 0:
            os.chown(tmp_path / "file", found.st_uid + 7, found.st_gid)
        else:
            expected = (found.st_uid, found.st_gid) if owners else expected
        packed = io.BytesIO(b"".join(tar_pieces(tmp_path, owners=owners)))
        with tarfile.open(fileobj=packed) as archive:
            entry = archive.getmember("file")
        assert (entry.uid, entry.gid) == expected


async def test_what_cannot_be_read_is_the_callers_error(client: DSecClient, tmp_path: Path) -> None:
    """A missing directory or archive is InvalidArgument with its path, not a broken connection."""
    with pytest.raises(dsec.InvalidArgument, match="nosuch"):
        await client.layers.build(tmp_path / "nosuch", "workspace/a:1")
    with pytest.raises(dsec.InvalidArgument, match="nosuch"):
        await client.images.import_(f"docker-archive:{tmp_path / 'nosuch'}")


def test_a_tar_takes_constant_memory(tmp_path: Path) -> None:
    """The tar of 64 MiB is made with a few MiB of memory."""
    (tmp_path / "source").mkdir()
    with (tmp_path / "source" / "sparse").open("wb") as file:
        file.truncate(64 << 20)
    tracemalloc.start()
    total = sum(len(piece) for piece in tar_pieces(tmp_path / "source"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert total > 64 << 20
    assert peak < 8 << 20


async def test_an_import_tells_its_progress(fake: FakeNode, client: DSecClient, tmp_path: Path) -> None:
    """images.import_ reports progress and returns the image: of a registry, and of an archive of this machine."""
    seen: list[dsec.ImageProgress] = []
    image = await client.images.import_("docker://python:3.12", on_progress=seen.append)
    assert image.reference == "docker://python:3.12"
    assert [(step.phase, step.done, step.total) for step in seen] == [("copy", 1, 2)]
    (tmp_path / "image.tar").write_bytes(b"archive" * 1000)
    sent = await client.images.import_(f"docker-archive:{tmp_path / 'image.tar'}", reference="mine:1")
    assert sent.reference == "mine:1" and fake.edge.uploads["mine:1"] == b"archive" * 1000
    assert {known.reference for known in await client.images.list()} == {"docker://python:3.12", "mine:1"}


async def test_tokens_are_made_and_revoked(fake: FakeNode, client: DSecClient) -> None:
    """A made token works until it is revoked; then it is refused, and its open WebSocket is cut."""
    made = await client.tokens.create("ci", ttl_s=60)
    assert made.token not in str(await client.tokens.list())
    assert "ci" in [token.name for token in await client.tokens.list()]
    async with DSecClient(fake.url, made.token) as other:
        sandbox = await other.sandbox("image")
        assert (await sandbox.exec("true")).ok
        await client.tokens.revoke(made.id)
        with pytest.raises(dsec.Denied):
            await other.status()
        with pytest.raises(dsec.Denied):
            await sandbox.exec("true")


async def test_ensure_gives_each_image_or_its_error(fake: FakeNode, client: DSecClient) -> None:
    """As each becomes ready, asked once each; one that cannot be had is an ImageError and disturbs nobody."""
    fake.edge.fail_next("POST /v1/images/import", dsec.ImageNotFound("no such image"))
    made = [one async for one in client.images.ensure(["a:1", "b:1", "a:1", "c:1"], concurrency=1)]
    assert [one.details["reference"] for one in made if isinstance(one, dsec.ImageError)] == ["a:1"]
    assert sorted(one.reference for one in made if isinstance(one, dsec.ImageReady)) == ["b:1", "c:1"]
    assert set(fake.edge.images) == {"b:1", "c:1"}
    seen: list[str] = []
    async for _ in client.images.ensure(
        ["d:1", "e:1"], on_progress=lambda name, step: seen.append(f"{name} {step.phase}")
    ):
        pass
    assert {each.split()[0] for each in seen} == {"d:1", "e:1"}


async def test_ensure_raises_what_is_no_images_fault(fake: FakeNode, client: DSecClient) -> None:
    """A full disk ends the iteration; leaving it early leaves no task behind."""
    fake.edge.fail_next("POST /v1/images/import", dsec.CapacityError("the disk is full"))
    with pytest.raises(dsec.CapacityError):
        async for _ in client.images.ensure(["a:1"]):
            raise AssertionError("nothing is ready")
    with pytest.raises(dsec.InvalidArgument):
        await anext(client.images.ensure("a:1"))
    before = len(asyncio.all_tasks())
    images = client.images.ensure([f"x:{number}" for number in range(20)], concurrency=2)
    await anext(images)
    await images.aclose()
    assert len(asyncio.all_tasks()) == before
