"""Fixtures of the tests over a real node: a sandbox of a test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import dsec

IMAGE = "dsec/debian:12"


@pytest.fixture
async def sandbox(client: dsec.DSecClient) -> AsyncIterator[dsec.Sandbox]:
    """A sandbox for one test, stopped at its end."""
    async with client.sandbox(IMAGE) as made:
        yield made
