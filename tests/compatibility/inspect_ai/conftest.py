"""Fixtures of Inspect's suite."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """The provider runs on asyncio, which is Inspect's own default."""
    return "asyncio"
