"""Images that are not there, not right or not given: typed errors with a remedy, nothing left of the attempt."""

from __future__ import annotations

import asyncio
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import dsec
from dsec.images.samples import Member, docker_archive, layer_archive, oci_layout
from dsec.testing.node import RunningNode, private_node, wait_until

from .images.registries import free_port, misbehaving

pytestmark = [pytest.mark.node, pytest.mark.anyio]

LAYER = layer_archive([Member(name="bin/x", data=os.urandom(300_000), mode=0o755)])


class Ports(NamedTuple):
    """Where registries of these tests listen; the node speaks to them without TLS."""

    misbehaving: int
    dead: int


@pytest.fixture(scope="module")
def ports() -> Ports:
    """Two free ports."""
    return Ports(free_port(), free_port())


@pytest.fixture(scope="module")
def node(store: Path, ports: Ports) -> Iterator[RunningNode]:
    """A node with insecure registries on loopback."""
    insecure = ", ".join(f"'127.0.0.1:{port}'" for port in ports)
    with private_node(store, settings=f"[registries]\ninsecure = [{insecure}]\n") as running:
        yield running


@pytest.fixture(autouse=True)
def no_scratch_left(node: RunningNode) -> Iterator[None]:
    """After each test nothing of an import is left but what was imported."""
    yield
    data = node.paths.data
    wait_until(lambda: not [*data.glob("scratch/*"), *data.glob("pulls/*"), *data.glob("tools/*")], "nothing is left")


async def fails(work: object, error: type[dsec.DSecError]) -> dsec.DSecError:
    """The error of a call, which has a remedy."""
    with pytest.raises(error) as caught:
        await work  # type: ignore[misc]
    assert caught.value.remedy, str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    "reference", ["UPPER/case", "a b", "x@sha256:123", "x:", ":tag", "a//b", "http://x/y", "x" * 300, "dsec/../x"]
)
async def test_malformed_references(client: dsec.DSecClient, reference: str) -> None:
    """InvalidArgument from create, import and get alike; nothing is pulled."""
    for call in (
        lambda: client.sandbox(reference, deadline_s=20),
        lambda: client.images.import_(f"docker://{reference}"),
        lambda: client.images.get(reference),
    ):
        with pytest.raises((dsec.InvalidArgument, dsec.ImageNotFound)) as caught:
            await call()
        assert caught.value.fault == "caller" and not caught.value.retryable


async def test_an_image_that_is_not_here(client: dsec.DSecClient) -> None:
    """pull="never" says how to get it; the platform's own names are never pulled; get and remove say NotFound too."""
    for reference in ("no/such:image", "dsec/no-such:1"):
        error = await fails(client.sandbox(reference, pull="never"), dsec.ImageNotFound)
        assert error.fault == "caller"
    await fails(client.sandbox("dsec/no-such:1"), dsec.ImageNotFound)
    await fails(client.images.get("no/such:image"), dsec.ImageNotFound)
    await fails(client.images.remove("no/such:image"), dsec.ImageNotFound)


@pytest.mark.parametrize(
    ("status", "headers", "error"),
    [
        (429, "Retry-After: 7\r\n", dsec.RegistryRateLimited),
        (404, "", dsec.ImageNotFound),
        (401, "", dsec.RegistryDenied),
        (403, "", dsec.RegistryDenied),
        (500, "", dsec.RegistryUnreachable),
    ],
)
async def test_registries_that_refuse(
    client: dsec.DSecClient, ports: Ports, status: int, headers: str, error: type[dsec.ImageError]
) -> None:
    """Each answer of a registry has its own error, from import and from a create that needs the image."""
    reference = f"127.0.0.1:{ports.misbehaving}/team/app:1"
    async with misbehaving(status, headers, ports.misbehaving) as registry:
        caught = await fails(client.images.import_(f"docker://{reference}"), error)
        assert caught.retryable == (error in (dsec.RegistryRateLimited, dsec.RegistryUnreachable))
        with pytest.raises((error, dsec.DeadlineExceeded)) as created:
            await client.sandbox(reference, deadline_s=3)
        assert created.value.remedy
        assert registry.requests


async def test_a_registry_that_hangs(node: RunningNode, client: dsec.DSecClient, ports: Ports) -> None:
    """The create's deadline ends the call in phase image; cancelling an import gives it up."""
    reference = f"127.0.0.1:{ports.misbehaving}/team/hangs:1"
    async with misbehaving(None, port=ports.misbehaving) as registry:
        error = await fails(client.sandbox(reference, deadline_s=1), dsec.DeadlineExceeded)
        assert isinstance(error, TimeoutError) and error.phase == "image"
        task = asyncio.ensure_future(client.images.import_(f"docker://{reference}"))
        await asyncio.wait_for(registry.asked.wait(), 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await asyncio.to_thread(
        wait_until, lambda: node.sandbox_processes() == set(), "the pull is given up", timeout_s=30
    )


async def test_a_registry_that_is_not_there(client: dsec.DSecClient, ports: Ports) -> None:
    """RegistryUnreachable, retryable, soon."""
    reference = f"docker://127.0.0.1:{ports.dead}/team/app:1"
    async with asyncio.timeout(30):
        error = await fails(client.images.import_(reference), dsec.RegistryUnreachable)
    assert error.retryable


async def test_archives_cut_short(client: dsec.DSecClient, tmp_path: Path) -> None:
    """A docker archive cut anywhere is ImageCorrupt, and nothing of it can be found afterwards."""
    whole = docker_archive(tmp_path / "whole.tar", [LAYER], name="team/cut:1").read_bytes()
    before = [image.reference for image in await client.images.list()]
    for part in (0, 1, 700, len(whole) // 2, len(whole) - 20_000):
        cut = tmp_path / f"cut-{part}.tar"
        cut.write_bytes(whole[:part])
        error = await fails(client.images.import_(f"docker-archive:{cut}", reference="team/cut:1"), dsec.ImageCorrupt)
        assert error.fault == "caller" and not error.retryable
    assert [image.reference for image in await client.images.list()] == before
    (tmp_path / "whole.tar").write_bytes(whole)
    image = await client.images.import_(f"docker-archive:{tmp_path / 'whole.tar'}", reference="team/cut:1")
    await client.images.remove(image.reference)


async def test_layouts_that_are_wrong(client: dsec.DSecClient, tmp_path: Path) -> None:
    """A layout with a blob missing, changed, or no layout at all."""
    missing = oci_layout(tmp_path / "missing", [LAYER])
    blobs = sorted((missing / "blobs" / "sha256").iterdir(), key=lambda path: path.stat().st_size)
    blobs[-1].unlink()
    await fails(client.images.import_(f"oci:{missing}", reference="team/bad:1"), dsec.ImageCorrupt)
    changed = oci_layout(tmp_path / "changed", [LAYER], compress=False)
    blobs = sorted((changed / "blobs" / "sha256").iterdir(), key=lambda path: path.stat().st_size)
    data = bytearray(blobs[-1].read_bytes())
    data[-5000] ^= 1
    blobs[-1].write_bytes(data)
    await fails(client.images.import_(f"oci:{changed}", reference="team/bad:1"), dsec.ImageCorrupt)
    empty = tmp_path / "empty"
    empty.mkdir()
    await fails(client.images.import_(f"oci:{empty}", reference="team/bad:1"), dsec.ImageCorrupt)
    with pytest.raises(dsec.ImageNotFound):
        await client.images.get("team/bad:1")


async def test_files_of_the_client_that_are_not_there(client: dsec.DSecClient, tmp_path: Path) -> None:
    """A missing archive, a directory for one, a missing layer directory: the caller's error."""
    for source in (f"docker-archive:{tmp_path}/none.tar", f"docker-archive:{tmp_path}", f"oci:{tmp_path}/none"):
        with pytest.raises(dsec.CallerError):
            await client.images.import_(source, reference="team/none:1")
    with pytest.raises(dsec.CallerError):
        await client.layers.build(tmp_path / "none", "workspace/none:1")
    with pytest.raises(dsec.InvalidArgument):
        await client.layers.build(tmp_path, "elsewhere/none:1")
    with pytest.raises(dsec.InvalidArgument):
        await client.layers.build(tmp_path, "workspace/none:1", at="relative")


async def test_an_image_without_a_program(client: dsec.DSecClient, tmp_path: Path) -> None:
    """An image of one file makes a sandbox; what cannot run is named; removing it disturbs nobody who uses it."""
    layout = oci_layout(tmp_path / "data", [layer_archive([Member(name="data", data=b"d", kind=tarfile.REGTYPE)])])
    image = await client.images.import_(f"oci:{layout}", reference="team/data:1")
    async with client.sandbox("team/data:1") as sandbox:
        assert await sandbox.read("/data") == b"d"
        with pytest.raises(dsec.ExecutableNotFound):
            await sandbox.run_shell("true")
        with pytest.raises(dsec.CallerError):
            await client.sandbox("team/data:1", command="image")
        await client.images.remove(image.reference)
        assert await sandbox.read("/data") == b"d"
    with pytest.raises(dsec.ImageNotFound):
        await client.sandbox("team/data:1", pull="never")
