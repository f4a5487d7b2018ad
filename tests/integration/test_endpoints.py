"""Endpoints over a real node: from a sandbox without a network to one URL on the trusted side, and back."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import dsec
from dsec.testing.node import RunningNode, private_node, wait_until

from .upstream import Upstream, upstream

pytestmark = [pytest.mark.node, pytest.mark.anyio]

IMAGE = "dsec/debian:12"
ASK = """
import json, sys, urllib.error, urllib.request
method, url, body = sys.argv[1:4]
request = urllib.request.Request(url, body.encode() or None, json.loads(sys.argv[4]), method=method)
try:
    answer = urllib.request.urlopen(request, timeout=50)
except urllib.error.HTTPError as error:
    answer = error
print(json.dumps([answer.status, answer.read().decode()]))
"""
STREAM = """
import urllib.request
for line in urllib.request.urlopen("http://llm.dsec.internal/stream"):
    if line.strip():
        print(line.decode().strip(), flush=True)
print("end", flush=True)
"""
LOCKSTEP = """
import http.client
connection = http.client.HTTPConnection("llm.dsec.internal", timeout=50)
connection.putrequest("POST", "/echo")
connection.putheader("transfer-encoding", "chunked")
connection.endheaders()
def send(data):
    connection.send(b"%x\\r\\n%b\\r\\n" % (len(data), data))
send(b"first")
answer = connection.getresponse()
assert answer.read1(100) == b"first"
for number in range(20):
    send(b"part %d" % number)
    assert answer.read1(100) == b"part %d" % number
connection.send(b"0\\r\\n\\r\\n")
assert answer.read() == b""
print("in step")
"""
WEBSOCKET = """
import os, socket, sys
conn = socket.create_connection(("llm.dsec.internal", 80), 50)
conn.sendall(b"GET /ws HTTP/1.1\\r\\nHost: x\\r\\nConnection: Upgrade\\r\\nUpgrade: websocket\\r\\n"
             b"Sec-WebSocket-Version: 13\\r\\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\\r\\n\\r\\n")
file = conn.makefile("rb")
assert b" 101 " in file.readline()
while file.readline() != b"\\r\\n":
    pass
for word in (b"one", b"two"):
    conn.sendall(bytes([0x81, 0x80 | len(word)]) + bytes(4) + word)
    assert file.read(2 + len(word)) == bytes([0x81, len(word)]) + word
print("echoed", flush=True)
print("cut" if not file.read(1) else "more", flush=True)
"""


async def ask(
    sandbox: dsec.Sandbox, path: str, *, method: str = "GET", body: str = "", name: str = "llm", **headers: str
) -> tuple[int, Any]:
    """(status, answer) of a request from inside; JSON where it is."""
    url = f"http://{name}.dsec.internal{path}"
    done = await sandbox.exec("python3", "-c", ASK, method, url, body, json.dumps(headers), check=True)
    status, text = json.loads(done.stdout)
    try:
        return status, json.loads(text)
    except ValueError:
        return status, text


@pytest.fixture
async def model() -> AsyncIterator[Upstream]:
    """The trusted side."""
    async with upstream() as made:
        yield made


@pytest.fixture
async def box(client: dsec.DSecClient, model: Upstream) -> AsyncIterator[dsec.Sandbox]:
    """A sandbox with one endpoint."""
    async with client.sandbox(IMAGE, endpoints={"llm": model.url}) as made:
        yield made


async def test_a_request_gets_to_the_url_and_nowhere_else(box: dsec.Sandbox, model: Upstream) -> None:
    """The path is appended to the URL's, Host is the URL's own; disguises and hop-by-hop headers do not pass."""
    headers = {"Authorization": "Bearer key", "X-Forwarded-Host": "other", "Keep-Alive": "1", "X-Original-URL": "/x"}
    status, got = await ask(box, "/chat?a=1", method="POST", body='{"q": 1}', **headers)
    assert status == 200
    assert (got["method"], got["path"], got["body"]) == ("POST", "/v1/chat?a=1", '{"q": 1}')
    assert got["headers"]["host"] == f"127.0.0.1:{model.port}"
    assert got["headers"]["authorization"] == "Bearer key"
    assert not {"x-forwarded-host", "keep-alive", "x-original-url"} & set(got["headers"])


async def test_any_user_finds_the_name(box: dsec.Sandbox) -> None:
    """The name stands in /etc/hosts, so every resolver has it, and nobody needs privileges."""
    done = await box.exec("getent", "hosts", "llm.dsec.internal", user="1000:1000", check=True)
    assert done.stdout.split() == ["127.77.0.1", "llm.dsec.internal"]


async def test_answers_stream(box: dsec.Sandbox, model: Upstream) -> None:
    """Each event is seen inside before the next one is sent."""
    reader = await box.spawn("python3", "-c", STREAM)
    lines = reader.lines()
    for number in range(10):
        model.more.put_nowait(b"event %d" % number)
        assert await anext(lines) == f"data: event {number}"
    model.more.put_nowait(b"")
    assert await anext(lines) == "end"
    assert (await reader.wait()).exit_code == 0


async def test_bodies_stream_in_lockstep(box: dsec.Sandbox) -> None:
    """Each chunk of a request is answered before the next one is sent: neither way is anything held."""
    done = await box.exec("python3", "-c", LOCKSTEP, timeout_s=50)
    assert done.stdout == "in step\n", done.stderr


async def test_websocket_and_closing(box: dsec.Sandbox, model: Upstream) -> None:
    """A WebSocket passes; closing the endpoint cuts it on both sides and refuses what comes after, for good."""
    program = await box.spawn("python3", "-c", WEBSOCKET)
    lines = program.lines()
    assert await anext(lines) == "echoed"
    await box.close_endpoint("llm")
    assert await anext(lines) == "cut"
    async with asyncio.timeout(10):
        await model.gone.wait()
    status, error = await ask(box, "/chat")
    assert (status, error["error"]["code"], error["error"]["phase"]) == (403, "denied", "endpoint")
    (info,) = await box.endpoints()
    assert (info.closed, info.connections) == (True, 0)
    assert info.refused == 1
    with pytest.raises(dsec.NotFound):
        await box.close_endpoint("other")


async def test_a_reader_that_goes_ends_the_stream(box: dsec.Sandbox, model: Upstream) -> None:
    """When the program inside dies, the server behind the endpoint sees its connection end."""
    reader = await box.spawn("python3", "-c", STREAM)
    async with asyncio.timeout(20):
        await model.streaming.wait()
    await reader.kill(grace_s=0)
    async with asyncio.timeout(10):
        await model.gone.wait()


async def test_counts(box: dsec.Sandbox) -> None:
    """Requests and the bytes of bodies are counted, each way."""
    assert (await ask(box, "/v1/x", method="POST", body="12345"))[0] == 200
    assert (await ask(box, "/blob?n=100000"))[0] == 200
    (info,) = await box.endpoints()
    assert (info.name, info.address, info.requests, info.sent_bytes) == ("llm", "http://llm.dsec.internal", 2, 5)
    assert 100_000 < info.received_bytes < 102_000


async def test_limits(client: dsec.DSecClient, model: Upstream) -> None:
    """Beyond its bytes or its requests an endpoint answers 429 with the reason; another one is not affected."""
    endpoints: dict[str, str | dsec.Endpoint] = {
        "llm": dsec.Endpoint(model.url, max_bytes=150_000),
        "rare": dsec.Endpoint(model.url, max_requests_per_minute=2),
        "free": model.url,
    }
    async with client.sandbox(IMAGE, endpoints=endpoints) as box:
        assert (await ask(box, "/blob?n=100000"))[0] == 200
        big = await box.run_shell(
            "python3 -c 'import urllib.request as u; u.urlopen(\"http://llm.dsec.internal/blob?n=100000\").read()'"
        )
        assert big.exit_code == 1 and "IncompleteRead" in big.stderr
        status, error = await ask(box, "/blob?n=1")
        assert (status, error["error"]["code"]) == (429, "quota_exceeded")
        assert [(await ask(box, "/x", name="rare"))[0] for _ in range(3)] == [200, 200, 429]
        assert (await ask(box, "/x", name="free"))[0] == 200
        first, second, third = await box.endpoints()
        assert (first.max_bytes, second.max_requests_per_minute, third.max_bytes) == (150_000, 2, None)
        assert (first.refused, second.refused, third.refused) == (1, 1, 0)
        assert 150_000 < first.received_bytes < 250_000


async def test_connections_are_limited(client: dsec.DSecClient, model: Upstream) -> None:
    """A connection beyond the limit is told so; when another one ends there is room again."""
    endpoints = {"llm": dsec.Endpoint(model.url, max_connections=1)}
    async with client.sandbox(IMAGE, endpoints=endpoints) as box:
        reader = await box.spawn("python3", "-c", STREAM)
        async with asyncio.timeout(20):
            await model.streaming.wait()
        status, error = await ask(box, "/x")
        assert (status, error["error"]["code"]) == (429, "quota_exceeded")
        await reader.kill(grace_s=0)
        async with asyncio.timeout(20):
            while (await box.endpoints())[0].connections:  # noqa: ASYNC110  (the node tells nobody)
                await asyncio.sleep(0.02)
        assert (await ask(box, "/x"))[0] == 200


async def test_a_server_that_is_down_is_a_typed_502(client: dsec.DSecClient) -> None:
    """Nobody there: 502 with an error in wire form, that names the endpoint and not its URL's path."""
    async with upstream() as gone:
        port = gone.port
    async with client.sandbox(IMAGE, endpoints={"llm": f"http://127.0.0.1:{port}/s3cret"}) as box:
        status, error = await ask(box, "/x")
        assert status == 502
        assert (error["error"]["code"], error["error"]["sandbox_id"]) == ("endpoint_unreachable", box.id)
        assert "llm" in error["error"]["message"] and "s3cret" not in json.dumps(error)
        async with upstream(port=port):
            assert (await ask(box, "/x"))[0] == 200


async def test_the_main_process_has_it_from_its_first_moment(client: dsec.DSecClient, model: Upstream) -> None:
    """The listener is there before the main process is."""
    program = ["python3", "-c", "import urllib.request as u; u.urlopen('http://llm.dsec.internal/first')"]
    sandbox = await client.sandbox(IMAGE, command=program, endpoints={"llm": model.url})
    async with asyncio.timeout(20):
        while (info := await sandbox.info()).state == "running":  # noqa: ASYNC110  (its end is waited for)
            await asyncio.sleep(0.02)
    assert (info.exit_code, info.cause) == (0, "main-exited")
    assert [path for _, path, _ in model.seen] == ["/v1/first"]


async def test_what_cannot_be_is_refused_before_anything_is_made(client: dsec.DSecClient) -> None:
    """A URL that is none is InvalidArgument, and its text is not repeated."""
    with pytest.raises(dsec.InvalidArgument) as caught:
        await client.sandbox(IMAGE, endpoints={"llm": "http://user:s3cret@127.0.0.1/"})
    assert "s3cret" not in str(caught.value.to_wire())


@pytest.fixture(scope="module")
def own_node(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningNode, Path]]:
    """A node whose parts may die, and which trusts the certificate beside it."""
    place = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "2", "-keyout", place / "key.pem", "-out", place / "cert.pem", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-addext", "basicConstraints=critical,CA:FALSE"],
        check=True, capture_output=True,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(place / "cert.pem"))
        place.chmod(0o755)
        with private_node(store) as running:
            yield running, place


async def test_tls_is_the_nodes(own_node: tuple[RunningNode, Path]) -> None:
    """The node speaks TLS to an https URL and checks its name; the sandbox speaks plain HTTP and has no say in it."""
    import ssl

    node, place = own_node
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(place / "cert.pem", place / "key.pem")
    async with upstream(tls) as secure, node.client() as client:
        good, bad = f"https://localhost:{secure.port}/v1", f"https://127.0.0.1:{secure.port}/v1"
        async with client.sandbox(IMAGE, endpoints={"llm": good, "wrong": bad}) as box:
            status, got = await ask(box, "/x")
            assert (status, got["path"], got["headers"]["host"]) == (200, "/v1/x", f"localhost:{secure.port}")
            status, error = await ask(box, "/x", name="wrong")
            assert (status, error["error"]["code"]) == (502, "endpoint_unreachable")
            assert "certificate" in error["error"]["message"]


@pytest.mark.parametrize("part", ["proxy", "runtime", "edge", "apiserver", "keeper"])
async def test_every_part_may_end(own_node: tuple[RunningNode, Path], part: str) -> None:
    """Killed (the keeper: re-executed), a part costs at most connections: all answer again, counts go on."""
    node, _ = own_node
    before = node.services()
    async with (
        upstream() as model,
        node.client() as client,
        client.sandbox(IMAGE, endpoints={"llm": model.url, "shut": model.url}) as box,
    ):
        await box.close_endpoint("shut")
        url = await box.expose(8000)
        running = await box.spawn("python3", "-m", "http.server", "8000")
        assert (await ask(box, "/x"))[0] == 200
        await asyncio.to_thread(wait_until, lambda: _get(url) == 200, "the port answers")
        assert (await box.endpoints())[0].requests == 1
        await asyncio.to_thread(node.restart if part == "keeper" else node.kill, part)
        if part != "keeper":
            restarted = lambda: node.services()[part].pid not in (0, before[part].pid)  # noqa: E731
            await asyncio.to_thread(wait_until, restarted, f"{part} runs again")
        assert (await ask(box, "/x"))[0] == 200
        assert (await ask(box, "/x", name="shut"))[0] == 403
        await asyncio.to_thread(wait_until, lambda: _get(url) == 200, "the port answers again")
        assert [each.token for each in await box.ports()] == [url.token]
        assert (await box.endpoints())[0].requests == 2
        assert await running.poll() is None
        await box.unexpose(8000)
        assert await asyncio.to_thread(_get, url) == 404


def _get(url: dsec.Url) -> int:
    import http.client

    connection = http.client.HTTPConnection(url.connect, timeout=10)
    try:
        connection.request("GET", "/", headers=url.headers)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()
