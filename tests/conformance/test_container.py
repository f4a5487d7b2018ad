"""Containers keep the contract, and what only a kernel can show."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from dsec.backends.container import ContainerBackend
from dsec.backends.link import RuntimeLink
from dsec.node.binaries import find_binaries
from dsec.node.config import load_config
from dsec.node.keeper_client import KeeperControl
from dsec.node.services import service_table
from dsec.testing.conformance import CONTRACT, KERNEL, Check
from dsec.testing.node import RunningNode, private_node
from dsec.testing.subject import Subject

pytestmark = [pytest.mark.node, pytest.mark.anyio, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def lone_runtime(store: Path) -> Iterator[tuple[RunningNode, list[str]]]:
    """A node whose edge is away, so that the suite takes its place; and the layers of its image."""
    with private_node(store) as node:

        async def layers() -> list[str]:
            async with node.client() as client:
                return (await client.images.get("dsec/debian:12")).layers

        found = asyncio.run(layers())
        config = load_config(node.paths.config_json)
        edge = next(each for each in service_table(config, find_binaries()) if each.name == "edge")
        idle = msgspec.structs.replace(edge, argv=["/bin/sleep", "infinity"])
        with KeeperControl(node.paths.keeper_socket) as keeper:
            keeper.restart("edge", idle)
        yield node, found
        node.restart("edge")


@pytest.fixture
async def subject(lone_runtime: tuple[RunningNode, list[str]]) -> AsyncIterator[Subject]:
    """The container backend over the node's runtime."""
    node, layers = lone_runtime

    async def nothing() -> None:
        pass

    link = RuntimeLink(node.paths.runtime_socket, nothing)
    running = asyncio.create_task(link.run())
    await link.wait_up(10)
    yield Subject(backend=ContainerBackend(link), layers=layers, node=node.paths.name)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert node.leftovers() == []


@pytest.mark.parametrize("check", [*CONTRACT, *KERNEL], ids=lambda check: check.__name__)
async def test_conforms(subject: Subject, check: Check) -> None:
    """Each check of both groups."""
    await check(subject)
