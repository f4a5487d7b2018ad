"""Fixtures of the edge's tests."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.unit.edge.shelf import Shelf

from dsec.node.config import StoreSettings
from dsec.testing.edge_world import World, opened_world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A node's files, a fake runtime, and edges over them."""
    async with opened_world(tmp_path) as opened:
        yield opened


@pytest.fixture(params=["filled"])
async def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Shelf]:
    """A node with a store, which reads layers as the parameter says."""
    (tmp_path / "shelf").mkdir()
    settings = {"shelf": StoreSettings(url=f"file://{tmp_path}/shelf")}
    async with (
        opened_world(tmp_path / "node", reading=request.param, stores=settings) as world,
        contextlib.AsyncExitStack() as edges,
    ):
        shelf = Shelf(world, tmp_path, edges)
        await shelf.start()
        yield shelf
