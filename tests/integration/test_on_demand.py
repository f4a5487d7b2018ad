"""Layers whose data is fetched while it is read: from a bucket and from a directory, whoever dies meanwhile."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import dsec
from dsec.errors import Conflict
from dsec.testing.node import RunningNode, private_node, wait_until
from dsec.testing.seaweed import Seaweed, mounted, seaweed

pytestmark = [pytest.mark.node, pytest.mark.anyio, pytest.mark.timeout(180)]
IMAGE = "dsec/debian:12"
SIZE = 32 << 20


@pytest.fixture(scope="module")
def server() -> Iterator[Seaweed]:
    """SeaweedFS, for the module."""
    with seaweed() as running:
        yield running


@pytest.fixture(scope="module")
def settings(server: Seaweed) -> Iterator[str]:
    """A bucket and the same server's FUSE mount."""
    with mounted(server) as point, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment().items():
            patch.setenv(name, value)
        (point / "on-demand").mkdir()
        yield f"""
reader = "filled"
[stores.bucket]
url = "s3://{server.bucket}/on-demand"
endpoint = "{server.s3}"
default = true
[stores.dfs]
url = "file://{point}/on-demand"
"""


@pytest.fixture(scope="module")
def nodes(settings: str, store: Path) -> Iterator[tuple[RunningNode, RunningNode]]:
    """Two nodes with the same stores."""
    with private_node(store, settings=settings) as one, private_node(store, settings=settings) as two:
        yield one, two


@pytest.fixture
async def clients(nodes: tuple[RunningNode, RunningNode]) -> AsyncIterator[tuple[dsec.DSecClient, dsec.DSecClient]]:
    """A client of each."""
    one, two = nodes
    async with dsec.DSecClient(one.url, one.token) as first, dsec.DSecClient(two.url, two.token) as second:
        yield first, second


def _tree(folder: Path) -> str:
    """A program, and much that it does not read; the sha256 of that."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "greet").write_text("#!/bin/sh\necho hello\n")
    (folder / "bin" / "greet").chmod(0o755)
    large = secrets.token_bytes(SIZE)
    (folder / "large").write_bytes(large)
    return hashlib.sha256(large).hexdigest()


async def _published(one: dsec.DSecClient, folder: Path, tag: str, where: str) -> str:
    digest = _tree(folder)
    await one.layers.build(folder, tag, at="/opt/tool")
    await one.layers.push(tag, store=where)
    return digest


@pytest.mark.parametrize("where", ["bucket", "dfs"])
async def test_only_what_is_read_is_fetched(
    nodes: tuple[RunningNode, RunningNode],
    clients: tuple[dsec.DSecClient, dsec.DSecClient],
    tmp_path: Path,
    where: str,
) -> None:
    """A pulled layer has none of its data; a program of it runs after a small part of it; read whole it is exact, and
    nothing tells it from one that was pulled whole.
    """
    one, two = clients
    tag = f"toolkit/on-demand-{where}:1"
    digest = await _published(one, tmp_path / "tree", tag, where)
    pulled = await two.layers.pull(tag, store=where)
    layer = nodes[1].paths.layers / pulled.digest
    assert (layer / "data").stat().st_blocks == 0
    assert (layer / "data").stat().st_size >= SIZE
    with pytest.raises(Conflict):
        await two.layers.verify(tag)
    with pytest.raises(Conflict):
        await two.layers.push(tag, store=where)
    async with two.sandbox(IMAGE, toolkits=(tag,)) as sandbox:
        assert (await sandbox.exec("/opt/tool/bin/greet")).stdout == "hello\n"
        assert (layer / "data").stat().st_blocks * 512 < SIZE // 10
        said = await sandbox.exec("sha256sum", "/opt/tool/large")
        assert said.stdout.split()[0] == digest
    wait_until(lambda: not (layer / "filled").exists(), "the layer is complete", timeout_s=60)
    assert (await two.layers.verify(tag)).faults == []


async def test_holder_and_fetcher_die_while_it_is_read(
    nodes: tuple[RunningNode, RunningNode],
    clients: tuple[dsec.DSecClient, dsec.DSecClient],
    tmp_path: Path,
) -> None:
    """Readers wait for the successors, and read what is right."""
    one, two = clients
    tag = "toolkit/on-demand-deaths:1"
    digest = await _published(one, tmp_path / "tree", tag, "bucket")
    await two.layers.pull(tag, store="bucket")
    async with two.sandbox(IMAGE, toolkits=(tag,)) as sandbox:
        reading = [await sandbox.spawn("sha256sum", "/opt/tool/large") for _ in range(4)]
        for name in ("fetcher", "holder", "fetcher", "holder"):
            before = nodes[1].services()[name].pid
            nodes[1].kill(name)
            wait_until(lambda: nodes[1].services()[name].pid not in (0, before), f"a new {name}", timeout_s=60)  # noqa: B023
        for each in reading:
            assert (await each.wait()).stdout.split()[0] == digest


async def test_removed_layers_are_let_go(
    nodes: tuple[RunningNode, RunningNode],
    clients: tuple[dsec.DSecClient, dsec.DSecClient],
    tmp_path: Path,
) -> None:
    """A layer that was read in part is removed, pulled again, and read whole."""
    one, two = clients
    tag = "toolkit/on-demand-again:1"
    digest = await _published(one, tmp_path / "tree", tag, "bucket")
    for command in (["/opt/tool/bin/greet"], ["sha256sum", "/opt/tool/large"]):
        pulled = await two.layers.pull(tag, store="bucket")
        async with two.sandbox(IMAGE, toolkits=(tag,)) as sandbox:
            said = (await sandbox.exec(*command)).stdout
        await two.layers.remove(tag)
        assert not (nodes[1].paths.layers / pulled.digest).exists()
    assert said.split()[0] == digest


async def test_a_workspace_that_is_here_in_part_is_packed_whole(
    nodes: tuple[RunningNode, RunningNode],
    clients: tuple[dsec.DSecClient, dsec.DSecClient],
    tmp_path: Path,
) -> None:
    """A new workspace holds the old one, whose rest is fetched for it: exact, also of what no sandbox has read."""
    one, two = clients
    digest = await _published(one, tmp_path / "tree", "workspace/on-demand-packed:1", "bucket")
    pulled = await two.layers.pull("workspace/on-demand-packed:1", store="bucket")
    layer = nodes[1].paths.layers / pulled.digest
    async with two.sandbox(IMAGE, workspace="workspace/on-demand-packed:1") as sandbox:
        await sandbox.write("/opt/tool/more", b"more")
        assert (layer / "data").stat().st_blocks * 512 < SIZE // 10
        packed = await sandbox.pack_diff("workspace/on-demand-packed:2")
        assert packed.provenance.merged == [pulled.digest]
    assert not (layer / "filled").exists()
    await two.layers.push("workspace/on-demand-packed:2", store="bucket")
    async with two.sandbox(IMAGE, workspace="workspace/on-demand-packed:2") as sandbox:
        said = await sandbox.run_shell("cat /opt/tool/more; /opt/tool/bin/greet; sha256sum < /opt/tool/large")
        assert said.stdout.split() == ["morehello", digest, "-"]
