"""Fixtures of the image tests that need neither root nor external programs."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """The platform runs on asyncio."""
    return "asyncio"
