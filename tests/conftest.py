"""Fixtures of all tests: an image store built once, a node per module, a client, and the leak checks."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from dsec.client.client import DSecClient
    from dsec.testing.node import RunningNode

collect_ignore = ["compatibility"]
"""The peers' suites run in environments of their own (``make test-compat``)."""
CHECKOUT = Path(__file__).parents[1]
TOOLS = CHECKOUT / "build" / "tools" / "usr" / "bin"
"""Programs that only tests need (``scripts/setup-tests.sh``)."""
os.environ["PATH"] = f"{os.environ['PATH']}:/usr/sbin:/sbin:{TOOLS}"
for _number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(_number, signal.default_int_handler)
"""A run that is ended from outside takes its nodes down as after Ctrl-C. A shell's background job begins with SIGINT
ignored, and would pass that on to the commands under test."""
for _name in [name for name in os.environ if name.startswith("DSEC_")]:
    del os.environ[_name]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests over a real node have longer than pure ones: the first of a module brings the node up."""
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if "node" in fixtures or "store" in fixtures or item.get_closest_marker("node"):
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(180))
            if item.get_closest_marker("node") is None:
                item.add_marker(pytest.mark.node)


@pytest.fixture
def anyio_backend() -> str:
    """The platform runs on asyncio."""
    return "asyncio"


@pytest.fixture(scope="session")
def store() -> Path:
    """An image store with ``dsec/debian:12``, built once and kept in ``build/``; nodes share it read-only."""
    from dsec.testing.store import ensure_store

    return ensure_store(CHECKOUT / "build" / "test-store")


@pytest.fixture(scope="module")
def node(store: Path) -> Iterator[RunningNode]:
    """A node for this module's tests, with the store's images. Tests that kill or restart parts make their own."""
    from dsec.testing.node import private_node

    with private_node(store) as running:
        yield running


@pytest.fixture
async def client(node: RunningNode) -> AsyncIterator[DSecClient]:
    """An open client of the module's node."""
    async with node.client() as opened:
        yield opened


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test over the module's node: no sandbox, exec or process is left of it."""
    yield
    if "node" in request.fixturenames:
        check_nothing_left(request.getfixturevalue("node"))


def check_nothing_left(node: RunningNode) -> None:
    """Fail with what a test left, and clear it away so that the next test is judged by its own."""
    from dsec.testing.node import wait_until

    try:
        wait_until(lambda: node.leftovers() == [], "the test's sandboxes are gone", timeout_s=5)
    except AssertionError:
        left = node.leftovers()
        node.stop_all()
        pytest.fail(f"the test left {'; '.join(left)}")
