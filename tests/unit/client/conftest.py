"""A real apiserver over a fake edge, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from dsec.client.client import DSecClient
from dsec.testing.fake_node import FakeNode


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeNode]:
    """The node; its loop runs in a thread."""
    with FakeNode(tmp_path) as node:
        yield node


@pytest.fixture
async def client(fake: FakeNode) -> AsyncIterator[DSecClient]:
    """A client that is closed afterwards."""
    async with DSecClient(fake.url, fake.token) as client:
        yield client
