"""The apiserver: who gets in, where requests go, how bodies and errors pass through."""

from __future__ import annotations

import asyncio
import io
import re
import socket
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest

import dsec
from dsec.apiserver.openapi import document
from dsec.apiserver.routes import ROUTES, match
from dsec.client.client import DSecClient
from dsec.testing.fake_node import FakeNode

pytestmark = pytest.mark.anyio


@pytest.fixture
async def http(fake: FakeNode) -> AsyncIterator[aiohttp.ClientSession]:
    """A plain HTTP client without a token."""
    async with aiohttp.ClientSession(base_url=fake.url) as session:
        yield session


def _bearer(fake: FakeNode) -> dict[str, str]:
    return {"Authorization": f"Bearer {fake.token}"}


async def test_the_document_describes_every_route(fake: FakeNode, http: aiohttp.ClientSession) -> None:
    """openapi.json has each route of the table with the answer's schema, and every reference in it resolves."""
    async with http.get("/v1/openapi.json", headers=_bearer(fake)) as answer:
        served = await answer.json()
    assert served == msgspec.json.decode(msgspec.json.encode(document("test")))
    for route in ROUTES:
        operation = served["paths"][route.path.replace("...}", "}")][route.method.lower()]
        assert operation["summary"] and "200" in operation["responses"]
    references = re.findall(r'"\$ref":\s*"#/components/schemas/([^"]+)"', msgspec.json.encode(served).decode())
    assert references and set(references) <= set(served["components"]["schemas"])


@pytest.mark.parametrize("token", [None, "Bearer wrong", "Basic x", "Bearer "])
async def test_every_route_needs_a_token(fake: FakeNode, http: aiohttp.ClientSession, token: str | None) -> None:
    """Without a valid token each route of the document but /v1/version answers 401; the edge sees nothing."""
    headers = {} if token is None else {"Authorization": token}
    walked = 0
    for path, operations in document("test")["paths"].items():
        for method, operation in operations.items():
            if operation.get("security") == []:
                assert (method, path) == ("get", "/v1/version")
                continue
            concrete = re.sub(r"\{[a-z_]+\}", "x", path)
            async with http.request(method.upper(), concrete, headers=headers) as answer:
                assert answer.status == 401, (method, path)
                assert (await answer.json())["error"]["code"] == "denied"
            walked += 1
    assert walked == len(ROUTES) - 1
    assert fake.edge.requests == []


async def test_the_version_is_public(http: aiohttp.ClientSession) -> None:
    """/v1/version answers anybody, also while the edge is down."""
    async with http.get("/v1/version") as answer:
        body = await answer.json()
    assert answer.status == 200 and body["api"] == "v1" and body["capabilities"]


async def test_the_principal_is_the_tokens(fake: FakeNode, http: aiohttp.ClientSession) -> None:
    """The edge is told the token's principal, and a principal that the client claims is not passed on."""
    async with http.get("/v1/status", headers=_bearer(fake) | {"dsec-principal": "mallory"}) as answer:
        assert answer.status == 200
    assert fake.edge.requests == [("GET", "/v1/status", "admin")]


async def test_unknown_routes_and_nodes(fake: FakeNode, http: aiohttp.ClientSession) -> None:
    """What is no route is 404 without asking the edge; so is a sandbox of a node that is not here."""
    other = "sb-other-" + "a" * 26
    for method, path in (("GET", "/v1/nothing"), ("PATCH", "/v1/sandboxes"), ("GET", f"/v1/sandboxes/{other}")):
        async with http.request(method, path, headers=_bearer(fake)) as answer:
            assert answer.status == 404
            assert (await answer.json())["error"]["code"] == "not_found"
    assert fake.edge.requests == []


async def test_errors_keep_status_and_form(fake: FakeNode, http: aiohttp.ClientSession) -> None:
    """An edge's error passes unchanged, Retry-After included; a dead edge is 502, retryable, the node's fault."""
    fake.edge.fail_next("GET /v1/status", dsec.CapacityError("full", retry_after_s=3.0))
    async with http.get("/v1/status", headers=_bearer(fake)) as answer:
        assert answer.status == 503 and answer.headers["Retry-After"] == "3"
        assert (await answer.json())["error"]["code"] == "capacity"
    fake.do(fake.edge.stop())
    async with http.get("/v1/status", headers=_bearer(fake)) as answer:
        error = (await answer.json())["error"]
    assert answer.status == 502 and error["code"] == "node_error" and error["retryable"] and error["fault"] == "node"


async def test_a_body_that_is_too_long_is_refused(fake: FakeNode, http: aiohttp.ClientSession) -> None:
    """JSON bodies have a bound, with a length announced or chunked, and the edge does not see what is beyond."""

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(9):
            yield b" " * (1 << 20)

    for body in (io.BytesIO(b" " * (9 << 20)), chunks()):
        async with http.post("/v1/sandboxes", data=body, headers=_bearer(fake)) as answer:
            assert answer.status == 400
            assert "bytes" in (await answer.json())["error"]["message"]
    assert fake.edge.requests == []


async def test_endless_headers_are_cut(fake: FakeNode) -> None:
    """Headers beyond 64 KiB are refused before their end is seen; shorter ones are read."""
    for count, status in ((70, b"400"), (60, b"200")):
        reader, writer = await asyncio.open_connection(*_address(fake))
        lines = [b"x-%03d: " % number + b"y" * 1000 for number in range(count)]
        end = [b"", b""] if status == b"200" else []
        writer.write(b"\r\n".join([b"GET /v1/version HTTP/1.1", b"host: x", *lines, *end]))
        assert (await reader.read(100)).startswith(b"HTTP/1.1 " + status)
        writer.close()


def _address(fake: FakeNode) -> tuple[str, int]:
    host, _, port = fake.url.removeprefix("http://").partition(":")
    return host, int(port)


async def test_a_request_of_a_gone_client_is_given_up(fake: FakeNode) -> None:
    """When the client hangs up during a create, the edge's connection for it closes, so that it leaves the queue."""
    fake.edge.hold("POST /v1/sandboxes")
    _, writer = await asyncio.open_connection(*_address(fake))
    body = b'{"image": "i", "key": "k"}'
    head = f"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {fake.token}\r\n"
    writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    await asyncio.to_thread(fake.do, fake.edge.until_held("POST /v1/sandboxes"))
    writer.close()
    await asyncio.to_thread(fake.do, fake.edge.until_gone())
    assert fake.edge.gone == ["POST /v1/sandboxes"]


async def test_metrics_are_both_parts(fake: FakeNode, http: aiohttp.ClientSession) -> None:
    """/metrics has the apiserver's own counts, by route and not by ID, and the edge's."""
    sandbox = "sb-fake-" + "a" * 26
    async with http.get(f"/v1/sandboxes/{sandbox}", headers=_bearer(fake)) as answer:
        assert answer.status == 404
    async with http.get("/metrics", headers=_bearer(fake)) as answer:
        text = await answer.text()
    assert 'route="/v1/sandboxes/{id}",status="404"' in text
    assert "dsec_edge_sandboxes 0" in text and sandbox not in text


async def test_a_websocket_needs_a_token(fake: FakeNode, http: aiohttp.ClientSession) -> None:
    """An upgrade without a token is 401, at another path 404, both in wire form; with one it opens."""
    for headers, path, status in (({}, "/v1/ws", 401), (_bearer(fake), "/v1/other", 404)):
        with pytest.raises(aiohttp.WSServerHandshakeError) as raised:
            await http.ws_connect(path, headers=headers)
        assert raised.value.status == status
    socket_ = await http.ws_connect("/v1/ws", headers=_bearer(fake))
    await socket_.close()


async def test_a_websocket_ends_with_its_token(fake: FakeNode, http: aiohttp.ClientSession) -> None:
    """What was opened with a token that runs out, or is revoked, is closed then; another token's stays open."""
    async with DSecClient(fake.url, fake.token) as client:
        short, other = await client.tokens.create(ttl_s=0.5), await client.tokens.create()
        lasting = await http.ws_connect("/v1/ws", headers=_bearer(fake))
        ending = [
            await http.ws_connect("/v1/ws", headers={"Authorization": f"Bearer {made.token}"})
            for made in (short, other)
        ]
        await client.tokens.revoke(other.id)
        for socket_ in ending:
            assert (await socket_.receive(timeout=10)).type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)
        await lasting.ping()
        with pytest.raises(TimeoutError):
            await lasting.receive(timeout=0.05)
        await lasting.close()


async def test_a_websocket_without_an_edge_is_a_502(fake: FakeNode, http: aiohttp.ClientSession) -> None:
    """While the edge is down the upgrade is refused with its status, not left hanging."""
    fake.do(fake.edge.stop())
    with pytest.raises(aiohttp.WSServerHandshakeError) as raised:
        await http.ws_connect("/v1/ws", headers=_bearer(fake))
    assert raised.value.status == 502


async def test_a_reader_that_stops_holds_the_edge_back(fake: FakeNode) -> None:
    """A client that reads nothing of 64 MiB makes the apiserver buffer little: the edge's sending waits."""
    client = DSecClient(fake.url, fake.token)
    sandbox = await client.sandbox("image")
    made = await sandbox.spawn("spew", str(64 << 20))
    await client.close()
    raw = await _raw_websocket(fake)
    raw.write(_open_stream(sandbox.id, made.id))
    await raw.drain()
    transport = raw.transport
    transport.pause_reading()  # type: ignore[attr-defined]
    sent = await asyncio.to_thread(fake.do, fake.edge.until_quiet())
    assert 0 < sent < 48 << 20
    transport.abort()


async def _raw_websocket(fake: FakeNode) -> asyncio.StreamWriter:
    reader, writer = await asyncio.open_connection(*_address(fake), limit=1 << 16)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    head = (
        "GET /v1/ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    )
    head += f"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nAuthorization: Bearer {fake.token}\r\n\r\n"
    writer.write(head.encode())
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
    return writer


def _open_stream(sandbox_id: str, exec_id: str) -> bytes:
    from dsec.api import frames

    params: dict[str, Any] = {
        "sandbox_id": sandbox_id, "exec_id": exec_id, "mode": "stream", "offsets": {},
        "credit": {1: 1 << 40, 2: 0}, "max_output_bytes": 1 << 20,
    }  # fmt: skip
    payload = frames.open_frame(1, "attach", params)
    return b"\x82\xfe" + len(payload).to_bytes(2, "big") + bytes(4) + payload


def test_paths_match_their_routes_only() -> None:
    """Every route's own path matches it; a reference may hold slashes, an ID may not."""
    for route in ROUTES:
        found = match(route.method, re.sub(r"\{[a-z_.]+\}", "x", route.path))
        assert found is not None and found.route is route
    image = match("GET", "/v1/images/docker.io/library/python:3.12")
    assert image is not None and image.route.path == "/v1/images/{reference...}"
    assert match("GET", "/v1/sandboxes/a/b") is None and match("GET", "/v1/sandboxes/") is None
    execs = match("GET", "/v1/sandboxes/me/execs")
    assert execs is not None and execs.sandbox == "me"
