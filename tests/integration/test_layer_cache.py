"""A node's layers as a cache of its store: evicted under creates, brought back, kept below the marks."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import dsec
from dsec.testing.node import RunningNode, private_node, wait_until

pytestmark = [pytest.mark.node, pytest.mark.anyio, pytest.mark.timeout(180)]
IMAGE = "dsec/debian:12"
MIB = 1 << 20
CACHE_MIB = 40


@pytest.fixture(scope="module", params=["filled", "whole"])
def node(request: pytest.FixtureRequest, store: Path) -> Iterator[RunningNode]:
    """A node with a store and little room for layers, for each way to read them."""
    with tempfile.TemporaryDirectory(prefix="dsec-store-") as folder:
        Path(folder).chmod(0o755)
        settings = (
            f'reader = "{request.param}"\nlayer_cache_mib = {CACHE_MIB}\n[stores.shelf]\nurl = "file://{folder}"\n'
        )
        with private_node(store, settings=settings) as running:
            yield running


@pytest.fixture
async def client(node: RunningNode) -> AsyncIterator[dsec.DSecClient]:
    """Its client."""
    async with node.client() as client:
        yield client


def _made(folder: Path, content: bytes) -> None:
    folder.mkdir()
    (folder / "large").write_bytes(content)


async def _published(client: dsec.DSecClient, folder: Path, tag: str, size: int) -> str:
    """A layer with one large file, on the node and in the store; the file's sha256."""
    content = secrets.token_bytes(size)
    _made(folder, content)
    await client.layers.build(folder, tag, at="/opt/it")
    await client.layers.push(tag)
    return hashlib.sha256(content).hexdigest()


async def test_evicted_and_back_under_creates(client: dsec.DSecClient, tmp_path: Path) -> None:
    """While one evicts and others create, every sandbox has its layer, whole."""
    tag = "toolkit/racing:1"
    digest = await _published(client, tmp_path / "tree", tag, MIB)

    async def evict() -> int:
        try:
            return int((await client.layers.evict(tag)).evicted)
        except dsec.Conflict:
            return 0

    async def create() -> None:
        async with client.sandbox(IMAGE, toolkits=(tag,)) as sandbox:
            said = await sandbox.exec("sha256sum", "/opt/it/large")
            assert said.stdout.split()[:1] == [digest], said.stderr

    async def create_often() -> None:
        for _ in range(8):
            await create()

    creating = asyncio.create_task(create_often())
    while not creating.done():
        await evict()
    await creating
    await client.layers.evict(tag)
    assert not (await client.layers.get(tag)).here
    await create()
    await client.layers.remove(tag)
    with pytest.raises(dsec.NotFound):
        await client.layers.get(tag)


async def test_a_full_cache_gives_up_what_was_not_used(
    client: dsec.DSecClient, node: RunningNode, tmp_path: Path
) -> None:
    """Of three layers, two of which fit, the one that was not used for longest goes by itself; the one that a sandbox
    reads stays though it is older, and reads on; all are listed, and all can be used again.
    """
    digests = {}
    reading = "toolkit/room-0:1"
    digests[reading] = await _published(client, tmp_path / "0", reading, 16 * MIB)
    async with client.sandbox(IMAGE, toolkits=(reading,)) as reader:
        for number in (1, 2):
            tag = f"toolkit/room-{number}:1"
            digests[tag] = await _published(client, tmp_path / str(number), tag, 16 * MIB)
            async with client.sandbox(IMAGE, toolkits=(tag,)) as sandbox:
                assert (await sandbox.exec("sha256sum", "/opt/it/large")).stdout.split()[0] == digests[tag]
        away = node.paths.layers / (await client.layers.get("toolkit/room-1:1")).digest
        await asyncio.to_thread(wait_until, lambda: not away.exists(), "the unused one is gone", timeout_s=60)
        assert (await reader.exec("sha256sum", "/opt/it/large")).stdout.split()[0] == digests[reading]
        listed = {each.reference: each for each in await client.layers.list()}
        assert listed["toolkit/room-1:1"].local_bytes == 0
        assert listed[reading].local_bytes > 0
        assert {name for name in listed if "room" in (name or "")} == set(digests)
    async with client.sandbox(IMAGE, toolkits=("toolkit/room-1:1",)) as sandbox:
        said = await sandbox.exec("sha256sum", "/opt/it/large")
        assert said.stdout.split()[0] == digests["toolkit/room-1:1"]


def _groups_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text()


async def test_how_layers_are_read_is_told(client: dsec.DSecClient, node: RunningNode) -> None:
    """Status says which way, and why; what fills them is in a group of its own."""
    now = await client.status()
    running = set(node.services())
    assert now.reader == ("filled" if "holder" in running else "whole")
    assert now.reader_why.startswith("as the settings say")
    for name in running & {"holder", "fetcher"}:
        assert f"/dsec/{node.paths.name}/layers" in _groups_of(node.services()[name].pid)
    wait_until(lambda: node.leftovers() == [], "nothing is left")
