"""The fake backend keeps the contract that it stands in for."""

from __future__ import annotations

import pytest

from dsec.testing.conformance import CONTRACT, Check
from dsec.testing.fake_backend import FakeBackend
from dsec.testing.subject import Subject

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
async def test_conforms(check: Check) -> None:
    """Each check of the contract group."""
    async with FakeBackend() as backend:
        await check(Subject(backend=backend, layers=["a" * 64]))
