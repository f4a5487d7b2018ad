"""What endpoints refuse is on record: closed ones, their limits, what is no HTTP; each once, whichever part dies."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.integration.upstream import Upstream, upstream

import dsec
from dsec.testing.node import private_node, wait_until

from .inside import IMAGE

pytestmark = [pytest.mark.node, pytest.mark.anyio]

ASK = """
import sys, urllib.error, urllib.request
name, times = sys.argv[1], int(sys.argv[2])
for _ in range(times):
    try:
        answer = urllib.request.urlopen(f"http://{name}.dsec.internal/x", timeout=30)
    except urllib.error.HTTPError as error:
        answer = error
    answer.read()
    print(answer.status)
"""
RAW = """
import socket, sys
with socket.create_connection(("llm.dsec.internal", 80), 30) as connection:
    connection.sendall(sys.argv[1].encode().decode("unicode_escape").encode("latin-1"))
    print(connection.recv(65536).split(b"\\r\\n")[0].decode())
"""
CROWD = """
import http.client, socket
held = http.client.HTTPConnection("few.dsec.internal", timeout=30)
held.request("GET", "/x")
held.getresponse().read()
beyond = http.client.HTTPConnection("few.dsec.internal", timeout=30)
beyond.request("GET", "/x")
print(beyond.getresponse().status)
"""


@pytest.fixture
async def model() -> AsyncIterator[Upstream]:
    """The trusted side."""
    async with upstream() as served:
        yield served


async def ask(sandbox: dsec.Sandbox, name: str, times: int) -> list[str]:
    """The answers' statuses."""
    return (await sandbox.exec("python3", "-c", ASK, name, str(times), check=True)).stdout.split()


async def refusals(sandbox: dsec.Sandbox) -> Counter[str]:
    """How often each endpoint refused something, as events say; nothing else is an event."""
    found = (await sandbox.events()).events
    assert {(each.kind, each.reason, each.exec_id) for each in found} <= {("endpoint", "refused", None)}
    counts: Counter[str] = Counter()
    for each in found:
        counts[each.name or ""] += each.count
    return counts


async def counted(sandbox: dsec.Sandbox) -> Counter[str]:
    """How often each endpoint refused something, as it counts itself."""
    return +Counter({each.name: each.refused for each in await sandbox.endpoints()})


async def test_a_closed_endpoint(client: dsec.DSecClient, model: Upstream) -> None:
    """Each request to it is refused and told, the first at once; what passes another one is no event."""
    endpoints = {"llm": model.url, "shut": model.url}
    async with client.sandbox(IMAGE, memory_mib=256, endpoints=endpoints) as sandbox:
        assert await ask(sandbox, "llm", 1) == ["200"]
        await sandbox.close_endpoint("shut")
        assert await refusals(sandbox) == {}
        assert await ask(sandbox, "shut", 1) == ["403"]
        (first,) = (await sandbox.events()).events
        assert (first.kind, first.reason, first.name, first.count) == ("endpoint", "refused", "shut", 1)
        assert await ask(sandbox, "shut", 5) == ["403"] * 5
        assert await ask(sandbox, "llm", 1) == ["200"]
    assert await refusals(sandbox) == await counted(sandbox) == {"shut": 6}


async def test_limits(client: dsec.DSecClient, model: Upstream) -> None:
    """More requests, bytes or connections than an endpoint may have are told as refused, by its name."""
    endpoints: dict[str, str | dsec.Endpoint] = {
        "rare": dsec.Endpoint(model.url, max_requests_per_minute=1),
        "small": dsec.Endpoint(model.url, max_bytes=1),
        "few": dsec.Endpoint(model.url, max_connections=1),
    }
    async with client.sandbox(IMAGE, memory_mib=256, endpoints=endpoints) as sandbox:
        assert await ask(sandbox, "rare", 3) == ["200", "429", "429"]
        assert (await sandbox.exec("python3", "-c", CROWD, check=True)).stdout == "429\n"
        await sandbox.exec("python3", "-c", ASK, "small", "1")
        assert await ask(sandbox, "small", 2) == ["429", "429"]
        found = await refusals(sandbox)
        assert set(found) == {"rare", "small", "few"}
    assert await refusals(sandbox) == await counted(sandbox) == {"rare": 2, "small": 2, "few": 1}


async def test_what_is_no_http(client: dsec.DSecClient, model: Upstream) -> None:
    """Requests that the rules of HTTP refuse are told, those too that are no requests at all; none gets out."""
    sent = ("GET /../x HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n", "no HTTP\\r\\n\\r\\n", "\\x16\\x03\\x01\\x02\\r\\n\\r\\n")
    async with client.sandbox(IMAGE, memory_mib=256, endpoints={"llm": model.url}) as sandbox:
        for each in sent:
            answer = (await sandbox.exec("python3", "-c", RAW, each, check=True)).stdout
            assert answer.startswith("HTTP/1.1 400"), answer
    assert model.seen == []
    assert await refusals(sandbox) == await counted(sandbox) == {"llm": len(sent)}


@pytest.mark.timeout(180)
async def test_none_is_lost_or_told_twice(store: Path, model: Upstream) -> None:
    """Around the death of the runtime, the proxy and the edge every refusal is told once."""
    with private_node(store) as own:
        async with own.client() as client:
            async with client.sandbox(IMAGE, memory_mib=256, endpoints={"shut": model.url}) as sandbox:
                await sandbox.close_endpoint("shut")
                times = 0
                for part in ("runtime", "proxy", "edge", "runtime", "proxy"):
                    assert await ask(sandbox, "shut", 2) == ["403"] * 2
                    times += 2
                    if part == "proxy":
                        # What is told and what is still gathered, when the next one dies.
                        await sandbox.events()
                    before = own.services()[part].pid
                    await asyncio.to_thread(own.kill, part)
                    again = lambda part=part, before=before: own.services()[part].pid not in (0, before)  # noqa: E731
                    await asyncio.to_thread(wait_until, again, f"{part} runs again")
                    assert sum((await refusals(sandbox)).values()) <= times
            assert await refusals(sandbox) == await counted(sandbox) == {"shut": times}
