"""Attacks on a node's networks from inside: against the proxy, the resolver and what they trust. Every server that is
reached is in a namespace of the test's own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.integration.far_side import FarSide, far_side

import dsec
from dsec.testing.node import RunningNode, private_node

from .inside import IMAGE

pytestmark = [pytest.mark.node, pytest.mark.anyio]

NAMES = {
    "one.good.test": ["@1"],
}
GROUPS = """
[network.groups.good]
domains = ["*.good.test"]
"""
GET = """
import http.client, sys
address, host, path = sys.argv[1:4]
try:
    conn = http.client.HTTPConnection(address, 80, timeout=20)
    conn.request("GET", path, headers={"Host": host})
    answer = conn.getresponse()
    print(answer.status, answer.read().decode())
except OSError as error:
    print("failed", type(error).__name__)
"""
HOLD = """
import socket, sys, time
family, kind, address = {"4": (2, 1, "127.0.0.1"), "6": (10, 1, "::"), "u": (2, 2, "0.0.0.0")}[sys.argv[1]]
held = socket.socket(family, kind)
held.bind((address, 61953))
print("holds", flush=True)
time.sleep(1000)
"""


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarSide]:
    """The world."""
    with far_side(NAMES) as made:
        yield made


@pytest.fixture(scope="module")
def node(store: Path, far: FarSide) -> Iterator[RunningNode]:
    """A node whose operator lets sandboxes reach the far side."""
    with private_node(store, settings=far.settings(GROUPS)) as running:
        yield running


@pytest.fixture
async def client(node: RunningNode) -> AsyncIterator[dsec.DSecClient]:
    """Of that node."""
    async with node.client() as made:
        yield made


async def run(sandbox: dsec.Sandbox, script: str, *arguments: str) -> str:
    """What a script prints inside."""
    done = await sandbox.exec("python3", "-c", script, *arguments, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("how", ["4", "6", "u"])
async def test_a_held_port_harms_its_sandbox_alone(
    client: dsec.DSecClient, node: RunningNode, far: FarSide, how: str
) -> None:
    """A program that holds the port in which networks end keeps its own sandbox without one, which is said and
    changes nothing; whatever dies, the others have theirs. Once it is gone its sandbox gets one.
    """
    async with client.sandbox(IMAGE) as hostile, client.sandbox(IMAGE, network={"good": True}) as other:
        holds = await hostile.spawn("python3", "-c", HOLD, how)
        assert (await anext(holds.lines())).strip() == "holds"
        with pytest.raises(dsec.Conflict, match="61953"):
            await hostile.set_network("open")
        assert (await hostile.network()).network is None
        for part in ("edge", "runtime", "proxy"):
            node.kill(part)
            got = await run(other, GET, "one.good.test", "one.good.test", "/")
            assert got == f"200 one.good.test {far.addresses[1]}", part
            assert (await run(hostile, GET, far.addresses[1], "x", "/")).startswith("failed"), part
        assert (await hostile.network()).network is None
        await holds.kill(grace_s=0)
        await hostile.set_network("open")
        assert await run(hostile, GET, far.addresses[1], "x", "/") == f"200 x {far.addresses[1]}"
