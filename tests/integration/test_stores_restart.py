"""The edge dies in the middle of a push and of a pull: nothing is half there, and asked again they go on."""

from __future__ import annotations

import hashlib
import os
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

import dsec
from dsec.api.images import ImageProgress
from dsec.client.progressing import OnProgress
from dsec.testing.node import RunningNode, private_node

pytestmark = [pytest.mark.node, pytest.mark.anyio, pytest.mark.timeout(180)]
TAG = "workspace/large:1"


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store's directory."""
    return tmp_path_factory.mktemp("shelf")


@pytest.fixture(scope="module")
def own(store: Path, shelf: Path) -> Iterator[RunningNode]:
    """A node whose edge is killed."""
    with private_node(store, settings=f'reader = "whole"\n[stores.shelf]\nurl = "{shelf.as_uri()}"\n') as running:
        yield running


@pytest.fixture
async def client(own: RunningNode) -> AsyncIterator[dsec.DSecClient]:
    """Its client."""
    async with own.client() as opened:
        yield opened


async def test_push_and_pull_go_on(client: dsec.DSecClient, own: RunningNode, shelf: Path, tmp_path: Path) -> None:
    """No manifest before all is there, the packs that were sent are not sent again, chunks that came are kept."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for number in range(12):
        (tree / f"part{number}").write_bytes(secrets.token_bytes(16 << 20))
    built = await client.layers.build(tree, TAG, at="/large")

    with pytest.raises(dsec.DSecError) as caught:
        await client.layers.push(TAG, on_progress=_killing(own, lambda: any(shelf.glob("blobs/*"))))
    assert caught.value.is_infra
    assert not (shelf / "layers" / built.digest / "layer.json").exists()
    assert await client.layers.list()  # Answered by the next edge.
    sent = {path.name for path in (shelf / "blobs").iterdir()}
    assert sent
    pushed = await client.layers.push(TAG)
    assert pushed.sent_bytes <= pushed.stored_bytes - len(sent) * (31 << 20)
    assert (await client.layers.verify(TAG, store="shelf", deep=True)).faults == []

    await client.layers.remove(TAG)
    kept = own.paths.layers / f".pull-{built.digest}" / "data"
    with pytest.raises(dsec.DSecError):
        await client.layers.pull(TAG, on_progress=_killing(own, lambda: kept.stat().st_blocks * 512 >= 32 << 20))
    with pytest.raises(dsec.NotFound):
        await client.layers.get(TAG)
    assert kept.stat().st_blocks * 512 >= 32 << 20
    assert (await client.layers.pull(TAG)).digest == built.digest
    assert not kept.exists()
    assert (await client.layers.verify(TAG)).faults == []
    async with client.sandbox("dsec/debian:12", workspace=TAG) as sandbox:
        here = await sandbox.exec("sha256sum", "/large/part7")
    assert here.stdout.split()[0] == _sha256(tree / "part7")


def _killing(node: RunningNode, when: Callable[[], bool]) -> OnProgress:
    killed = False

    def show(_: ImageProgress) -> None:
        nonlocal killed
        if not killed and when():
            killed = True
            os.kill(node.services()["edge"].pid, signal.SIGKILL)

    return show


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
