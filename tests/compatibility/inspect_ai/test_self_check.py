"""Inspect's own sandbox self-check, imported whole and unchanged."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from inspect_ai.util import SandboxEnvironment
from inspect_ai.util._sandbox.registry import registry_find_sandboxenv
from inspect_ai.util._sandbox.self_check import *  # noqa: F403 - its __all__ is its tests

pytestmark = pytest.mark.anyio

_ROOT_MAY = {
    "test_read_file_not_allowed",
    "test_write_text_file_without_permissions",
    "test_write_binary_file_without_permissions",
}
"""Root opens a file whatever its mode; Inspect's own runner and other providers leave these out for root too."""
_SLOW = {"test_exec_timeout", "test_exec_timeout_kills_process", "test_exec_timeout_kills_child_processes"}


@pytest.fixture(params=["user", "root"])
async def sandbox_env(request: pytest.FixtureRequest) -> AsyncIterator[SandboxEnvironment]:
    """A sandbox whose default user is an ordinary one (all of the suite), or root (what concerns root)."""
    name = request.node.originalname
    if request.param == "root" and name in _ROOT_MAY:
        pytest.skip("root opens a file whatever its mode")
    if request.param == "root" and name in _SLOW:
        pytest.skip("same as for an ordinary user, and slow")
    provider = registry_find_sandboxenv("dsec")
    config = provider.config_deserialize({"user": "nobody", "workdir": "/tmp"} if request.param == "user" else {})
    made = await provider.sample_init("self_check", config, {})
    try:
        yield made["default"]
    finally:
        await provider.sample_cleanup("self_check", config, made, False)
