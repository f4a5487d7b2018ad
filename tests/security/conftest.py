"""Fixtures of the attacks: a sandbox of a test's own, over the module's real node."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import dsec

from .inside import IMAGE


@pytest.fixture
async def sandbox(client: dsec.DSecClient) -> AsyncIterator[dsec.Sandbox]:
    """A sandbox for one test, stopped at its end."""
    async with client.sandbox(IMAGE, memory_mib=256, disk_mib=256) as made:
        yield made
