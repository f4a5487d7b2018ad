"""The proxy dies at each of its steps: connections drop, sandboxes live, all works again by itself, counts hold."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import dsec
from dsec.testing.faults import SETTINGS, Faults, fault_names
from dsec.testing.node import RunningNode, private_node, wait_until

from .fault_roads import IMAGE, asked, read_port, served
from .upstream import Upstream, upstream

pytestmark = [pytest.mark.node, pytest.mark.anyio, pytest.mark.timeout(120)]

OWN = [name for name in fault_names(Path(__file__).parents[2]) if name.startswith("proxy.")]
STREAM = """
import urllib.request
for line in urllib.request.urlopen("http://llm.dsec.internal/stream"):
    print(line.decode().strip(), flush=True)
"""


@pytest.fixture(scope="module")
def own_node(store: Path) -> Iterator[RunningNode]:
    """One node for this module, whose proxy dies."""
    with private_node(store, settings=SETTINGS) as running:
        yield running


@asynccontextmanager
async def reachable(
    client: dsec.DSecClient, model: Upstream, **fields: float
) -> AsyncIterator[tuple[dsec.Sandbox, dsec.Url]]:
    """A sandbox with an endpoint and an exposed port."""
    async with (
        client.sandbox(IMAGE, endpoints={"llm": model.url}, idle_timeout_s=fields.get("idle_s", 900.0)) as sandbox,
        served(sandbox) as port,
    ):
        yield sandbox, await sandbox.expose(port)


async def _port(client: dsec.DSecClient, sandbox: dsec.Sandbox, url: dsec.Url, key: str) -> tuple[int, int]:
    assert await read_port(url) == 200
    return 0, 0


async def _endpoint(client: dsec.DSecClient, sandbox: dsec.Sandbox, url: dsec.Url, key: str) -> tuple[int, int]:
    """(answered, dropped)."""
    answered = [await asked(sandbox, f"{key}-{attempt}") for attempt in range(2)]
    return answered.count(True), answered.count(False)


async def _link(client: dsec.DSecClient, sandbox: dsec.Sandbox, url: dsec.Url, key: str) -> tuple[int, int]:
    """What the runtime tells: all about a sandbox, something of it, its end."""
    async with client.sandbox(IMAGE) as other:
        first = await other.expose(8000)
        assert (await other.expose(8000)).token == first.token
        # Whose connection is told of; nothing else here has one.
        assert await read_port(url) == 200
    return 0, 0


OPERATIONS = {"endpoint": _endpoint, "link": _link, "port": _port}


def test_every_step_has_an_operation() -> None:
    """A new step of the proxy's is walked without being listed, or this fails."""
    assert len(OWN) > 12
    assert {name.split(".")[1] for name in OWN} == set(OPERATIONS)


@pytest.mark.parametrize("kind", sorted(OPERATIONS))
async def test_the_proxy_dies_at_each_step_of(own_node: RunningNode, kind: str) -> None:
    """One sandbox, whose server and endpoint answer after each death, with the token, the limits and the counts of
    before: every answered request is counted, one that was interrupted once at most, and nobody is connected.
    """
    faults, answered, dropped = Faults(own_node), 0, 0
    async with upstream() as model, own_node.client() as client, reachable(client, model) as (sandbox, url):
        for name in [each for each in OWN if each.split(".")[1] == kind]:
            before = own_node.services()["proxy"].pid
            with faults.armed(name, "kill"):
                if name == "proxy.link.greeted":
                    own_node.kill("runtime")
                done = await OPERATIONS[kind](client, sandbox, url, name)
                await asyncio.to_thread(faults.wait_passed, name)
            runs = lambda old=before: own_node.services()["proxy"].pid not in (0, old)  # noqa: E731
            await asyncio.to_thread(wait_until, runs, "the proxy runs again")
            answered, dropped = answered + done[0], dropped + done[1]
            assert await asked(sandbox, f"{name}-after"), f"the endpoint after {name}"
            assert await read_port(url) == 200
            answered += 1
            (counts,) = await sandbox.endpoints()
            assert answered <= counts.requests <= answered + dropped, name
            assert (counts.refused, counts.connections) == (0, 0), name
            assert [each.token for each in await sandbox.ports()] == [url.token]
        assert len([path for _, path, _ in model.seen if path == "/v1/x"]) in range(answered, answered + dropped + 1)
        assert (await sandbox.info()).state == "running"
    own_node.restart("proxy")  # the keeper forgets how often it died, and does not wait longer each time
    wait_until(lambda: own_node.leftovers() == [], "nothing is left")


async def test_open_connections_drop(own_node: RunningNode) -> None:
    """A connection to a port and a stream of an endpoint end with the proxy; nobody counts as connected after it, so
    that the sandbox, idle from then on, ends in its time.
    """
    async with upstream() as model, own_node.client() as client:
        sandbox = await client.sandbox(IMAGE, endpoints={"llm": model.url}, idle_timeout_s=3)
        await sandbox.write("/srv/stream.py", STREAM, parents=True)
        # In the background: an exec that runs would be activity itself.
        await sandbox.run_shell(
            "setsid python3 /srv/stream.py > /tmp/out 2>&1 & setsid python3 -m http.server 8000 &"
        )
        url = await sandbox.expose(8000)
        assert await read_port(url) == 200
        async with asyncio.timeout(20):
            await model.streaming.wait()
        host, _, port = url.connect.rpartition(":")
        with contextlib.closing(await asyncio.to_thread(socket.create_connection, (host, int(port)), 20)) as open_one:
            request = "GET / HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in url.headers.items())
            open_one.sendall(f"{request}\r\n".encode())
            assert (await asyncio.to_thread(open_one.recv, 12)) == b"HTTP/1.1 200"
            assert [each.connections for each in await sandbox.endpoints()] == [1]
            own_node.kill("proxy")
            open_one.settimeout(20)
            with contextlib.suppress(ConnectionError):
                while await asyncio.to_thread(open_one.recv, 65536):
                    pass
        async with asyncio.timeout(20):
            await model.gone.wait()
        assert [each.connections for each in await sandbox.endpoints()] == [0]
        async with asyncio.timeout(30):
            while (info := await sandbox.info()).state == "running":  # noqa: ASYNC110  (its end is waited for)
                await asyncio.sleep(0.02)
        assert info.cause == "idle"
