"""Every way into the apiserver, walked: the document's routes, the upgrades, the origins of ports.

Each refuses without a token, with one that was revoked or has expired, and with one whose scope is too small.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest

from dsec.api.access import includes
from dsec.apiserver.openapi import document
from dsec.apiserver.routes import ROUTES
from dsec.client.client import DSecClient
from dsec.errors import Denied, InvalidArgument
from dsec.iam.tokens import Tokens
from dsec.testing.fake_node import FakeNode

pytestmark = pytest.mark.anyio

TRANSFER = {"Connection": "Upgrade", "Upgrade": "dsec-transfer"}
SOCKET = {
    "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}  # fmt: skip


@pytest.fixture
async def http(fake: FakeNode) -> AsyncIterator[aiohttp.ClientSession]:
    """A plain HTTP client without a token."""
    # One connection for each request: the fake edge keeps those whose upgrade it refuses.
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(base_url=fake.url, connector=connector) as session:
        yield session


def ways(fake: FakeNode) -> Iterator[tuple[str, str, str, dict[str, str]]]:
    """(method, path, scope that it needs, headers) of every operation of the document, and of every upgrade."""
    for path, operations in document("test")["paths"].items():
        concrete = path.replace("{id}", f"sb-{fake.edge.node}-{'a' * 26}")
        concrete = re.sub(r"\{[a-z_]+\}", "a" * 26, concrete)
        for method, operation in operations.items():
            if operation.get("security") == []:
                continue
            (needed,) = operation["security"]
            headers: dict[str, str] = {}
            if operation.get("x-dsec-upgrade"):
                headers = SOCKET if path == "/v1/ws" else TRANSFER
            yield method.upper(), concrete, needed["token"][0], headers


async def status_of(http: aiohttp.ClientSession, way: tuple[str, str, str, dict[str, str]], token: str) -> int:
    """What a way answers to a token."""
    method, path, _, headers = way
    bearer = {"Authorization": f"Bearer {token}"} if token else {}
    async with http.request(method, path, headers=headers | bearer) as answer:
        if answer.status in (401, 403):
            assert (await answer.json())["error"]["code"], (method, path)
        return answer.status


async def test_the_walk_is_whole(fake: FakeNode) -> None:
    """The walk has every route of the table but the version's, all three scopes and every upgrade among them."""
    walked = list(ways(fake))
    assert len(walked) == len(ROUTES) - 1
    assert {needed for _, _, needed, _ in walked} == {"read", "exec", "admin"}
    assert sum(bool(headers) for _, _, _, headers in walked) == sum(route.upgrades for route in ROUTES) == 3
    assert [route.path for route in ROUTES if route.public] == ["/v1/version"]


@pytest.mark.parametrize("kind", ["none", "made up", "revoked", "expired"])
async def test_no_way_in_with_a_token_that_is_none(fake: FakeNode, http: aiohttp.ClientSession, kind: str) -> None:
    """401 on every route and upgrade, in wire form, and the edge is not asked. The revoked token had been in use."""
    clock = [1000.0]
    tokens = Tokens(fake.iam_db, clock=lambda: clock[0])
    made = tokens.create("alice", ttl_s=5.0 if kind == "expired" else None)
    token = {"none": "", "made up": f"dsec_{'a' * 13}_{'b' * 43}"}.get(kind, made.token)
    if kind == "revoked":
        async with DSecClient(fake.url, fake.token) as admin:
            assert await status_of(http, ("GET", "/v1/status", "read", {}), token) == 200
            await admin.tokens.revoke(made.id)
    tokens.close()
    fake.edge.requests.clear()
    for way in ways(fake):
        assert await status_of(http, way, token) == 401, way
    assert fake.edge.requests == []


@pytest.mark.parametrize("scope", ["read", "exec", "admin"])
async def test_a_small_scope_opens_no_more(fake: FakeNode, http: aiohttp.ClientSession, scope: str) -> None:
    """A way that needs more than the token's scope answers 403 and the edge is not asked; every other is let through
    to whoever answers it, which is never a 401 or 403."""
    tokens = Tokens(fake.iam_db)
    token = tokens.create("alice", scope=scope, project="*").token
    tokens.close()
    refused = 0
    for way in ways(fake):
        fake.edge.requests.clear()
        status = await status_of(http, way, token)
        if includes(scope, way[2]):
            assert status not in (401, 403), way
        else:
            assert status == 403 and fake.edge.requests == [], way
            refused += 1
    assert (refused == 0) == (scope == "admin")


async def test_what_is_about_all_projects_needs_all(fake: FakeNode, http: aiohttp.ClientSession) -> None:
    """/metrics counts everybody's: a token of one project, its scope however large, is refused."""
    tokens = Tokens(fake.iam_db)
    for project, status in (("vision", 403), ("*", 200)):
        token = tokens.create("alice", scope="exec", project=project).token
        assert await status_of(http, ("GET", "/metrics", "read", {}), token) == status
    tokens.close()


async def test_the_edge_is_told_what_the_token_says(fake: FakeNode, http: aiohttp.ClientSession) -> None:
    """Principal, project and scope come from the token, by HTTP and by WebSocket; what a client claims is dropped."""
    async with DSecClient(fake.url, fake.token) as admin:
        made = await admin.tokens.create("ci", scope="read", project="vision", principal="robot@ci")
        assert (made.principal, made.project, made.scope) == ("robot@ci", "vision", "read")
    forged = {"dsec-principal": "admin", "dsec-project": "*", "dsec-scope": "admin", "Dsec-Scope": "exec"}
    bearer = {"Authorization": f"Bearer {made.token}"}
    async with http.get("/v1/status", headers=bearer | forged) as answer:
        assert answer.status == 200
    socket = await http.ws_connect("/v1/ws", headers=bearer | forged)
    await socket.close()
    assert fake.edge.callers[-2:] == [("robot@ci", "vision", "read")] * 2


async def test_an_admins_word_is_checked(fake: FakeNode) -> None:
    """A token is made as asked or not at all: unknown scopes and names that could break a header are refused."""
    async with DSecClient(fake.url, fake.token) as admin:
        wrong: list[dict[str, Any]] = [
            {"scope": "root"}, {"project": "a b"}, {"project": "a\r\nx: y"}, {"principal": "a\r\nx: y"},
            {"scope": "admin", "project": "vision"}, {"principal": ""}, {"project": ""},
        ]  # fmt: skip
        before = len(await admin.tokens.list())
        for each in wrong:
            with pytest.raises(InvalidArgument):
                await admin.tokens.create("x", **each)
        assert len(await admin.tokens.list()) == before
        made = await admin.tokens.create("small")
        assert (made.scope, made.project, made.principal) == ("exec", "default", "admin")
        async with DSecClient(fake.url, made.token) as small:
            with pytest.raises(Denied) as refused:
                await small.tokens.create("larger", scope="admin")
            assert refused.value.phase == "scope" and refused.value.details["needs"] == "admin"


async def test_the_apis_token_opens_no_port(fake: FakeNode, http: aiohttp.ClientSession) -> None:
    """A port's origin is the proxy's: no token of the API gets a route by it, nor is the edge asked."""
    origin = f"8000-sb-{fake.edge.node}-{'a' * 26}.localhost"
    headers = {"Host": origin, "Authorization": f"Bearer {fake.token}"}
    for path in ("/v1/status", "/v1/tokens", "/metrics"):
        async with http.get(path, headers=headers) as answer:
            assert answer.status == 502 and (await answer.json())["error"]["phase"] == "ports"
    assert fake.edge.requests == []


@pytest.mark.parametrize(
    "path",
    [
        "/v1/sandboxes/ID%2Fports", "/v1/sandboxes/ID%2fports", "/v1/sandboxes/ID%2Fstop", "/v1/%74okens",
        "/v1/sandboxes/ID/..%2Fports", "/v1/sandboxes/x%2F..%2FID%2Fports", "/v1/jobs/train%2Fstop", "/v1//tokens",
        "/v1/./tokens", "/v1/status/../tokens",
    ],
)  # fmt: skip
async def test_no_route_is_asked_for_as_another(fake: FakeNode, path: str) -> None:
    """What a reader may not ask it may not ask in other spelling: the path is read once, as it was sent."""
    tokens = Tokens(fake.iam_db)
    token = tokens.create("alice", scope="read", project="*").token
    tokens.close()
    path = path.replace("ID", f"sb-{fake.edge.node}-{'a' * 26}")
    for method in ("GET", "POST"):
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
        status = await _raw_status(fake, head.encode())
        assert status in (403, 404), (method, path, status)


async def _raw_status(fake: FakeNode, head: bytes) -> int:
    import asyncio

    host, _, port = fake.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(head)
    line = await reader.readline()
    writer.close()
    return int(line.split()[1])
