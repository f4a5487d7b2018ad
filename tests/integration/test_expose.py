"""Exposed ports over a real node: HTTP and WebSocket into a sandbox without a network, streamed both ways."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import dsec
from dsec.testing.node import RunningNode

from .test_cli import dsec as cli

pytestmark = [pytest.mark.node, pytest.mark.anyio]

SERVER = (Path(__file__).parent / "port_server.py").read_text()
PORT = 3000


async def serve(sandbox: dsec.Sandbox, port: int = PORT, *address: str) -> dsec.Exec:
    """The server, once it listens."""
    await sandbox.write("/srv/port_server.py", SERVER, parents=True)
    server = await sandbox.spawn("python3", "/srv/port_server.py", str(port), *address)
    async for line in server.lines():
        assert line == "listening", line
        return server
    raise AssertionError("the server did not begin")


@pytest.fixture
async def url(sandbox: dsec.Sandbox) -> dsec.Url:
    """A port with the server behind it."""
    await serve(sandbox)
    return await sandbox.expose(PORT)


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """A client that keeps no cookies."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        yield session


def at(url: dsec.Url, path: str = "/") -> str:
    """Where the connection goes."""
    return f"http://{url.connect}{path}"


async def error_of(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    """The error of an answer of the node's own."""
    error: dict[str, Any] = (await answer.json())["error"]
    return error


async def test_a_request_arrives_as_it_was_sent(url: dsec.Url, http: aiohttp.ClientSession) -> None:
    """Path, query, Host and the caller's headers arrive; the token and what belongs to one connection do not."""
    sent = url.headers | {"cookie": f"a=b; dsec_port_token={url.token}; c=d", "x-mine": "1", "te": "trailers"}
    async with http.get(at(url, "/a%20b//c?x=1&y"), headers=sent) as answer:
        assert answer.status == 200
        assert "keep-alive" not in answer.headers
        got = await answer.json()
    headers = {name.lower(): value for name, value in got["headers"]}
    assert got["path"] == "/a%20b//c?x=1&y"
    assert (headers["host"], headers["cookie"], headers["x-mine"]) == (url.host, "a=b; c=d", "1")
    assert "te" not in headers and url.token not in json.dumps(got)


async def test_bodies_stream_in_lockstep(url: dsec.Url, http: aiohttp.ClientSession) -> None:
    """Each chunk comes back before the next one is sent: neither way is anything held until more has come."""
    more: asyncio.Queue[bytes] = asyncio.Queue()

    async def body() -> AsyncIterator[bytes]:
        while part := await more.get():
            yield part

    more.put_nowait(b"first")
    async with http.post(at(url), headers=url.headers, data=body()) as answer:
        assert await answer.content.readany() == b"first"
        for number in range(20):
            more.put_nowait(b"part %d" % number)
            assert await answer.content.readany() == b"part %d" % number
        more.put_nowait(b"")
        assert await answer.content.read() == b""


async def test_large_bodies_are_exact(url: dsec.Url, http: aiohttp.ClientSession) -> None:
    """32 MiB there and back by length, byte for byte; several at once do not mix."""

    async def one(seed: int) -> None:
        data = bytes([seed]) + hashlib.shake_128(bytes([seed])).digest(8 << 20)
        async with http.post(at(url), headers=url.headers, data=io.BytesIO(data)) as answer:
            assert await answer.read() == data

    await asyncio.gather(*(one(seed) for seed in range(4)))


async def test_websocket_both_ways(url: dsec.Url, http: aiohttp.ClientSession) -> None:
    """Text and binary messages come back as they were; closing ends both sides."""
    async with http.ws_connect(at(url, "/ws"), headers=url.headers) as socket:
        for number in range(10):
            await socket.send_str(f"text {number}")
            assert await socket.receive_str(timeout=10) == f"text {number}"
        await socket.send_bytes(bytes(range(256)) * 100)
        assert await socket.receive_bytes(timeout=10) == bytes(range(256)) * 100


async def test_a_link_becomes_a_cookie(url: dsec.Url, http: aiohttp.ClientSession) -> None:
    """A browser's first visit leaves the token in a cookie of this origin and not in the address."""
    host = {"host": url.host}
    link = at(url, url.link.partition(url.host)[2] + "&x=1")
    async with http.get(link, headers=host, allow_redirects=False) as answer:
        assert (answer.status, answer.headers["location"]) == (303, "/?x=1")
        assert "HttpOnly" in answer.headers["set-cookie"] and "SameSite=Lax" in answer.headers["set-cookie"]
        cookie = answer.headers["set-cookie"].partition(";")[0]
    async with http.get(at(url, "/?x=1"), headers=host | {"cookie": cookie}) as answer:
        assert (answer.status, (await answer.json())["path"]) == (200, "/?x=1")


async def test_head_and_reuse(url: dsec.Url, http: aiohttp.ClientSession) -> None:
    """HEAD has the length and no body, and the same connection carries the next request."""
    for _ in range(3):
        async with http.head(at(url), headers=url.headers) as answer:
            assert answer.status == 200 and int(answer.headers["content-length"]) > 0
        async with http.get(at(url), headers=url.headers) as answer:
            assert (await answer.json())["path"] == "/"


async def test_many_at_once(url: dsec.Url, http: aiohttp.ClientSession) -> None:
    """A hundred requests at once are all answered, each with its own."""

    async def one(number: int) -> None:
        async with http.get(at(url, f"/{number}"), headers=url.headers) as answer:
            assert (await answer.json())["path"] == f"/{number}"

    await asyncio.gather(*(one(number) for number in range(100)))


async def test_nobody_there_is_a_typed_502(sandbox: dsec.Sandbox, http: aiohttp.ClientSession) -> None:
    """A port on which nothing listens is 502 with an error in wire form; once the service is there, it answers."""
    url = await sandbox.expose(PORT)
    async with http.get(at(url), headers=url.headers) as answer:
        error = await error_of(answer)
        assert answer.status == 502
    assert (error["code"], error["fault"], error["retryable"]) == ("port_unreachable", "sandbox", True)
    assert error["sandbox_id"] == sandbox.id and error["details"] == {"port": PORT}
    server = await serve(sandbox)
    async with http.get(at(url), headers=url.headers) as answer:
        assert answer.status == 200
    await server.kill(grace_s=0)
    async with http.get(at(url), headers=url.headers) as answer:
        assert (answer.status, (await error_of(answer))["code"]) == (502, "port_unreachable")


async def test_what_is_no_http_is_a_typed_502(url: dsec.Url, http: aiohttp.ClientSession) -> None:
    """An answer that two readers could take apart differently is not passed on."""
    async with http.get(at(url, "/odd"), headers=url.headers) as answer:
        assert (answer.status, (await error_of(answer))["code"]) == (502, "port_unreachable")


async def test_ipv6_services(sandbox: dsec.Sandbox, http: aiohttp.ClientSession) -> None:
    """A service that listens on ::1 only is reached as well."""
    await serve(sandbox, 3001, "::1")
    url = await sandbox.expose(3001)
    async with http.get(at(url), headers=url.headers) as answer:
        assert answer.status == 200


async def test_the_right_token_only(client: dsec.DSecClient, url: dsec.Url, http: aiohttp.ClientSession) -> None:
    """No token, another port's, another sandbox's, the API's own: 401. A port that is not exposed: 404."""
    async with client.sandbox("dsec/debian:12") as other:
        others = [(await other.expose(PORT)).token, (await other.expose(PORT + 1)).token]
        for token in ("", "x", url.token[:-1], url.token + "x", *others, client._link().address.token or ""):
            headers = {"host": url.host, url.token_header: token, "authorization": f"Bearer {token}"}
            async with http.get(at(url), headers=headers) as answer:
                assert answer.status == 401, token
                assert (await error_of(answer))["phase"] == "token"
        elsewhere = url.headers | {"host": url.host.replace(f"{PORT}-", f"{PORT + 7}-")}
        async with http.get(at(url), headers=elsewhere) as answer:
            assert (answer.status, (await error_of(answer))["code"]) == (404, "not_found")


async def test_taking_a_port_back_cuts_what_is_open(
    sandbox: dsec.Sandbox, url: dsec.Url, http: aiohttp.ClientSession
) -> None:
    """An open WebSocket ends with ``unexpose``, new requests are 404, and a new exposure has a new token."""
    async with http.ws_connect(at(url, "/ws"), headers=url.headers) as socket:
        await socket.send_str("open")
        assert await socket.receive_str(timeout=10) == "open"
        await sandbox.unexpose(PORT)
        assert (await socket.receive(timeout=10)).type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)
    async with http.get(at(url), headers=url.headers) as answer:
        assert answer.status == 404
    assert await sandbox.ports() == []
    again = await sandbox.expose(PORT)
    assert again.token != url.token
    async with http.get(at(again), headers=again.headers) as answer:
        assert answer.status == 200


async def test_ports_end_with_the_sandbox(client: dsec.DSecClient, http: aiohttp.ClientSession) -> None:
    """When the sandbox stops, its connections are cut and its origin is gone."""
    sandbox = await client.sandbox("dsec/debian:12")
    await serve(sandbox)
    url = await sandbox.expose(PORT)
    async with http.ws_connect(at(url), headers=url.headers) as socket:
        await socket.send_str("x")
        assert await socket.receive_str(timeout=10) == "x"
        await sandbox.stop()
        assert (await socket.receive(timeout=10)).type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)
    async with http.get(at(url), headers=url.headers) as answer:
        assert answer.status == 404
    with pytest.raises(dsec.SandboxGone):
        await sandbox.expose(PORT)


async def test_an_open_connection_is_activity(client: dsec.DSecClient, http: aiohttp.ClientSession) -> None:
    """A sandbox whose only activity is a connection from outside outlives its idle time, and not the connection."""
    async with client.sandbox("dsec/debian:12", idle_timeout_s=1.5) as sandbox:
        await sandbox.write("/srv/port_server.py", SERVER, parents=True)
        url = await sandbox.expose(PORT)
        # In the background: an exec that runs would be activity itself.
        script = f"setsid python3 /srv/port_server.py {PORT} >/tmp/out 2>&1 & until grep -q list /tmp/out; do :; done"
        await sandbox.run_shell(script, check=True)
        async with http.ws_connect(at(url), headers=url.headers) as socket:
            began = asyncio.get_running_loop().time()
            while asyncio.get_running_loop().time() < began + 4:
                await socket.send_str("x")
                assert await socket.receive_str(timeout=10) == "x"
                await asyncio.sleep(0.1)
            assert (await sandbox.info()).state == "running"
        while (await sandbox.info()).state == "running":  # noqa: ASYNC110  (its end is waited for)
            await asyncio.sleep(0.05)
        assert (await sandbox.info()).cause == "idle"


async def test_endpoint_on_the_command_line(node: RunningNode) -> None:
    """``--endpoint`` gives the name inside; what is no URL is refused before anything is made."""
    words = ("run", "--rm", "--endpoint", "llm=http://127.0.0.1:1/v1")
    done = await asyncio.to_thread(cli, node, *words, "dsec/debian:12", "getent", "hosts", "llm.dsec.internal")
    assert done.stdout.split() == ["127.77.0.1", "llm.dsec.internal"], done.stderr
    done = await asyncio.to_thread(cli, node, "run", "--endpoint", "llm=nowhere", "dsec/debian:12", "true")
    assert done.returncode == 125 and "llm" in done.stderr


async def test_command_line(node: RunningNode, sandbox: dsec.Sandbox) -> None:
    """``expose`` prints how to get there, ``port`` lists, ``unexpose`` takes back."""
    done = await asyncio.to_thread(cli, node, "expose", sandbox.id, "8080", "--json")
    told = json.loads(done.stdout)
    assert told["url"].startswith(f"http://8080-{sandbox.id}.localhost:")
    assert told["token_header"] == "dsec-port-token" and told["connect"] in node.url
    text = (await asyncio.to_thread(cli, node, "expose", sandbox.id, "8080")).stdout
    assert told["url"] in text and told["token"] in text
    listed = json.loads((await asyncio.to_thread(cli, node, "port", sandbox.id, "--json")).stdout)
    assert listed == [told]
    assert (await asyncio.to_thread(cli, node, "unexpose", sandbox.id, "8080")).returncode == 0
    assert (await asyncio.to_thread(cli, node, "port", sandbox.id)).stdout.split() == ["PORT", "URL"]
