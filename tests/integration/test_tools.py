"""Image tools belong to the keeper: a pull outlives edge and runtime, and nothing outlives the node."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dsec
from dsec.errors import DeadlineExceeded, InvalidArgument
from dsec.images.samples import Member, layer_archive, oci_layout
from dsec.node.local_calls import RuntimeCalls
from dsec.testing.node import RunningNode, private_node, wait_until

from .images.registries import docker_registry, free_port, gated, push

pytestmark = [pytest.mark.node, pytest.mark.anyio]


@pytest.fixture(scope="module")
def gate_port() -> int:
    """Where the gate of each test listens."""
    return free_port()


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A registry with images team/1:1 … team/4:1, none of which shares a layer with another."""
    root = tmp_path_factory.mktemp("registry")
    with docker_registry(root / "server") as address:
        for name in "1234":
            layer = layer_archive([Member(name="bin/x", data=os.urandom(100_000), mode=0o755)])
            push(oci_layout(root / name, [layer]), address, f"team/{name}:1")
        yield address


@pytest.fixture(scope="module")
def node(store: Path, gate_port: int) -> Iterator[RunningNode]:
    """A node that pulls through the gate, and whose parts are killed."""
    with private_node(store, settings=f"[registries]\ninsecure = ['127.0.0.1:{gate_port}']\n") as running:
        yield running


def tools(node: RunningNode) -> list[str]:
    """What runs, or has run and is not forgotten."""
    with RuntimeCalls(node.paths.runtime_socket) as runtime:
        return [one["tool_id"].partition("-")[0] for one in runtime.call("tool.list", {})["tools"]]


def traces(node: RunningNode) -> list[str]:
    """What is left of imports on disk."""
    return [each.name for place in ("scratch", "pulls", "tools") for each in node.paths.data.glob(f"{place}/*")]


@pytest.mark.parametrize(("image", "parts"), [("1", ("edge",)), ("2", ("runtime",)), ("3", ("edge", "runtime"))])
async def test_a_pull_outlives(
    node: RunningNode, registry: str, gate_port: int, image: str, parts: tuple[str, ...]
) -> None:
    """Killed in the middle of a pull, its parts go on with it: the create that waits succeeds, fetched once."""
    async with gated(registry, gate_port) as gate, node.client() as client:
        making = asyncio.create_task(_make(client, f"{gate.address}/team/{image}:1"))
        await gate.reached.wait()
        for part in parts:
            await asyncio.to_thread(node.kill, part)
        gate.open.set()
        await making
        assert len(gate.fetched) == len(set(gate.fetched)) == 2  # configuration and layer
    wait_until(lambda: (tools(node), traces(node)) == ([], []), "nothing is kept of the pull")


async def _make(client: dsec.DSecClient, image: str) -> None:
    async with client.sandbox(image) as sandbox:
        assert (await sandbox.info()).state == "running"


async def test_a_pull_that_nobody_waits_for(node: RunningNode, registry: str, gate_port: int) -> None:
    """The caller's deadline ends the call and not the pull; a restarted edge finishes it unasked."""
    async with gated(registry, gate_port) as gate, node.client() as client:
        reference = f"{gate.address}/team/4:1"
        with pytest.raises(DeadlineExceeded) as caught:
            await client.sandbox(reference, deadline_s=3)
        assert caught.value.phase == "image"
        await asyncio.to_thread(node.restart, "edge")
        assert tools(node) == ["pull"]
        gate.open.set()
        async with asyncio.timeout(30):
            while reference not in [each.reference for each in await client.images.list()]:
                await asyncio.to_thread(wait_until, lambda: tools(node) != ["pull"], "the pull goes on")
    wait_until(lambda: (tools(node), traces(node)) == ([], []), "nothing is kept of the pull")


def test_only_the_tools_themselves(node: RunningNode) -> None:
    """Whoever speaks to the runtime cannot have it run another program, or write elsewhere than in its data."""
    for argv in (
        ["sh", "-c", "id"],
        ["apt-config", "dump", "-o", "x"],
        ["python3", "-P", "-m", "dsec.layering", "/etc"],
        [sys.executable, "-P", "-m", "dsec.layering", "/etc"],
        [sys.executable, "-c", "pass"],
    ):
        with RuntimeCalls(node.paths.runtime_socket) as runtime, pytest.raises(InvalidArgument):
            runtime.call("tool.run", {"tool_id": "mine", "argv": [each.encode() for each in argv]})
    assert tools(node) == []
