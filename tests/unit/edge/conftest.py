"""Fixtures of the edge's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dsec.testing.edge_world import World, opened_world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A node's files, a fake runtime, and edges over them."""
    async with opened_world(tmp_path) as opened:
        yield opened
