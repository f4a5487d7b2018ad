"""Stores that are far away: a FUSE mount and a bucket whose every answer takes a while. Nothing is timed."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import dsec
from dsec.testing.node import RunningNode, private_node, wait_until
from dsec.testing.slow_bucket import SlowBucket, slow_bucket
from dsec.testing.slow_directory import SlowDirectory, slow_directory

pytestmark = [pytest.mark.node, pytest.mark.anyio, pytest.mark.timeout(180)]
IMAGE = "dsec/debian:12"
SIZE = 32 << 20
LATENCY_S, BYTES_PER_S = 0.003, 200e6
CHUNK = 256 << 10
READERS = 6


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlowDirectory]:
    """A slow mount of a directory, with the store below it, where any user may look for it."""
    source = tmp_path_factory.mktemp("source")
    (source / "store").mkdir()
    source.chmod(0o755)
    with tempfile.TemporaryDirectory(prefix="dsec-slow-", dir="/tmp") as point:
        Path(point).chmod(0o755)
        with slow_directory(source, Path(point), latency_s=LATENCY_S, bytes_per_s=BYTES_PER_S) as mounted:
            yield mounted


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlowBucket]:
    """A slow bucket."""
    with slow_bucket(tmp_path_factory.mktemp("bucket"), latency_s=LATENCY_S, bytes_per_s=BYTES_PER_S) as running:
        yield running


@pytest.fixture(scope="module")
def own(directory: SlowDirectory, bucket: SlowBucket, store: Path) -> Iterator[RunningNode]:
    """A node with both as stores, which it reads on demand."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in bucket.environment.items():
            patch.setenv(name, value)
        settings = f'reader = "filled"\n[stores.mount]\nurl = "file://{directory.point}/store"\ndefault = true\n'
        settings += f"[stores.bucket]\n{bucket.settings}"
        with private_node(store, settings=settings) as running:
            yield running


def _tree(folder: Path) -> bytes:
    folder.mkdir()
    content = secrets.token_bytes(SIZE)
    (folder / "large").write_bytes(content)
    return content


async def _pulled(client: dsec.DSecClient, folder: Path, tag: str, where: str) -> str:
    """A layer with one large file is in the store and, without its data, on the node; the file's sha256."""
    content = _tree(folder)
    await client.layers.build(folder, tag, at="/opt/tool")
    await client.layers.push(tag, store=where)
    await client.layers.remove(tag)
    await client.layers.pull(tag, store=where)
    return hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("where", ["mount", "bucket"])
async def test_a_slow_store_is_read_in_large_pieces(
    own: RunningNode, directory: SlowDirectory, bucket: SlowBucket, tmp_path: Path, where: str
) -> None:
    """Pushed, pulled and read on demand; a file that is read forwards comes in pieces of a chunk or more, its bytes
    cross the line once, and they are right.
    """
    tag = f"toolkit/slow-{where}:1"

    def counts() -> tuple[int, int]:
        if where == "mount":
            found = directory.counts()
            return found["reads"], found["read_bytes"]
        found = bucket.counts()
        return found["gets"], found["sent_bytes"]

    async with own.client() as client:
        digest = await _pulled(client, tmp_path / "tree", tag, where)
        before = counts()
        async with client.sandbox(IMAGE, toolkits=(tag,)) as sandbox:
            said = await sandbox.exec("sha256sum", "/opt/tool/large")
        assert said.stdout.split()[0] == digest
        layer = own.paths.layers / (await client.layers.get(tag)).digest
        wait_until(lambda: not (layer / "filled").exists(), "the layer is complete", timeout_s=60)
    reads, size = (after - then for after, then in zip(counts(), before, strict=True))
    assert SIZE <= size <= SIZE * 5 // 4
    assert size / reads >= CHUNK


async def test_a_mount_is_lost_and_comes_back(own: RunningNode, directory: SlowDirectory, tmp_path: Path) -> None:
    """Its server is killed while programs read, twice, and it is mounted again: they wait, and read what is right."""
    tag = "toolkit/lost-mount:1"
    async with own.client() as client:
        digest = await _pulled(client, tmp_path / "tree", tag, "mount")
        layer = own.paths.layers / (await client.layers.get(tag)).digest
        async with client.sandbox(IMAGE, toolkits=(tag,)) as sandbox:
            reading = [await sandbox.spawn("sha256sum", "/opt/tool/large") for _ in range(READERS)]
            for part in (1, 2):
                await asyncio.to_thread(_wait_filled, layer / "data", part * SIZE // 8)
                await asyncio.to_thread(directory.unmount)
                await asyncio.to_thread(directory.mount)
            for each in reading:
                result = await each.wait()
                assert (result.stderr, result.stdout.split()[:1]) == ("", [digest])


def _wait_filled(data: Path, size: int) -> None:
    wait_until(lambda: data.stat().st_blocks * 512 >= size, "some of it came", timeout_s=60)
