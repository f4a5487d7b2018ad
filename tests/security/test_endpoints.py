"""Attacks through the ways in and out of a sandbox: smuggled requests, paths, hosts, heads; services that lie."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import dsec
from dsec.testing.node import RunningNode

from .inside import IMAGE, attempts, python

pytestmark = [pytest.mark.node, pytest.mark.anyio]

REQUEST = re.compile(rb"^([A-Z]+) (\S+) HTTP/1\.1\r\n(.*?)\r\n\r\n", re.DOTALL)
RAW = """
import concurrent.futures, json, socket, sys
def one(sent):
    got = b""
    try:
        with socket.create_connection(("llm.dsec.internal", 80), 20) as connection:
            connection.settimeout(3)  # for what is kept open after its answer
            connection.sendall(sent.encode("latin-1"))
            while part := connection.recv(65536):
                got += part
    except OSError:
        pass
    return got.decode("latin-1")
with concurrent.futures.ThreadPoolExecutor(8) as threads:
    print(json.dumps(list(threads.map(one, json.load(sys.stdin)))))
"""


class Recorder:
    """A server that takes down every byte, and answers what looks like a request to it."""

    def __init__(self) -> None:
        self.port = 0
        self.heard = bytearray()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        rest = b""
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                self.heard += data
                rest += data
                while b"\r\n\r\n" in rest:
                    _, _, rest = rest.partition(b"\r\n\r\n")
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        writer.close()

    def heads(self) -> list[tuple[str, bytes]]:
        """(target, headers) of everything that began like a request, wherever in the bytes it stood."""
        found = re.finditer(rb"([A-Z]+) (\S+) HTTP/1\.[01]\r\n(.*?)\r\n\r\n", bytes(self.heard), re.DOTALL)
        return [(each[2].decode("latin-1"), each[3]) for each in found]


@pytest.fixture
async def recorder() -> AsyncIterator[Recorder]:
    """On loopback."""
    made = Recorder()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    yield made
    server.close()


@pytest.fixture
async def box(client: dsec.DSecClient, recorder: Recorder) -> AsyncIterator[dsec.Sandbox]:
    """A sandbox whose one way out ends at the recorder, below /v1."""
    endpoints = {"llm": f"http://127.0.0.1:{recorder.port}/v1"}
    async with client.sandbox(IMAGE, memory_mib=256, disk_mib=256, endpoints=endpoints) as made:
        yield made


async def send(sandbox: dsec.Sandbox, *requests: str) -> list[str]:
    """The answers to raw bytes, each on a connection of its own."""
    done = await sandbox.exec("python3", "-c", RAW, stdin=json.dumps(requests), check=True)
    answers: list[str] = json.loads(done.stdout)
    return answers


def status(answer: str) -> str:
    """The status of an answer; empty without one."""
    return answer.split(" ")[1] if answer.startswith("HTTP/1.1 ") else ""


SMUGGLED = "GET /v1/admin HTTP/1.1\r\nHost: inner\r\nX-Smuggled: yes\r\n\r\n"
N = len(SMUGGLED)
_HEADS = [
    (f"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: {N}\r\nTransfer-Encoding: chunked", "0\r\n\r\n"),
    ("POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5", "0\r\n\r\n"),
    (f"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: {N}", ""),
    (f"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 0, {N}", ""),
    ("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: +0", ""),
    ("POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked", "0\r\n\r\n"),
    ("POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\nContent-Length: 5", "0\r\n\r\n"),
    ("POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity", "0\r\n\r\n"),
    ("POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\x0bchunked\r\nContent-Length: 5", "0\r\n\r\n"),
    ("POST /x HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked", "0\r\n\r\n"),
    ("POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked", "-1\r\n\r\n"),
    ("POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked", "ffffffffffffffffff\r\n"),
    ("GET /x HTTP/1.1\r\nHost: a\r\nX: a\n\rContent-Length: 1", ""),
    ("GET /x HTTP/1.1\r\n Host: a", ""),
    ("GET /x HTTP/1.1\r\nHost: a\r\nX: a\r\n b: c", ""),
    ("GET /x HTTP/2.0\r\nHost: a", ""),
    ("PRI * HTTP/2.0", "SM\r\n\r\n"),
]
AMBIGUOUS = [f"{head}\r\n\r\n{body}{SMUGGLED}" for head, body in _HEADS]


async def test_no_request_hides_in_another(box: dsec.Sandbox, recorder: Recorder) -> None:
    """A request that could end in two places is refused, or ends its connection; what follows never gets out."""
    for sent, answer in zip(AMBIGUOUS, await send(box, *AMBIGUOUS), strict=True):
        assert answer.count("HTTP/1.1 ") <= 1, (sent, answer[:300])
        assert status(answer) in ("400", "501", "505", "") or "connection: close" in answer, (sent, answer[:300])
    assert b"smuggled" not in bytes(recorder.heard).lower()
    assert {target for target, _ in recorder.heads()} <= {"/v1/x"}


async def test_a_second_request_is_checked_as_the_first(box: dsec.Sandbox, recorder: Recorder) -> None:
    """Pipelined requests go one by one through the same checks: an honest one does not open the door to the next."""
    honest = "GET /one HTTP/1.1\r\nHost: a\r\n\r\n"
    (answer,) = await send(
        box, honest + honest.replace("one", "two") + "GET /../admin HTTP/1.1\r\nHost: a\r\n\r\n" + honest
    )
    assert answer.count("HTTP/1.1 200") == 2 and answer.count("HTTP/1.1 400") == 1
    assert [target for target, _ in recorder.heads()] == ["/v1/one", "/v1/two"]


TARGETS = [
    "http://127.0.0.1:22/", "http://llm.dsec.internal/x", "https://other/", "other:80", "*", "//other/x", "x",
    "/../admin", "/a/../../admin", "/./../admin", "/%2e%2e/admin", "/%2E%2e%2Fadmin", "/a%2f..%2f..%2fadmin",
    "/..%5cadmin", "/..\\admin", "/%252e%252e/admin", "/..;/admin", "/..;x=y/admin", "/%00/../admin", "/..%00/admin",
    "/%c0%ae%c0%ae/admin", "/%25c0%25ae./admin", "/%u002e%u002e/admin", "/%ef%bc%8e%ef%bc%8e/admin",
    "/..%ef%bc%8fadmin",
    "/%0d%0aHost:%20other", "/" + "a" * 20_000,
]  # fmt: skip


async def test_no_target_leads_elsewhere(box: dsec.Sandbox, recorder: Recorder) -> None:
    """Neither a URL, another host, nor any spelling of `..` gets out; all that gets out lies below the prefix."""
    answers = await send(box, *(f"GET {target} HTTP/1.1\r\nHost: a\r\n\r\n" for target in TARGETS))
    for target, answer in zip(TARGETS, answers, strict=True):
        assert status(answer) in ("400", "414", "431"), (target, answer[:200])
    connects = [f"CONNECT {target} HTTP/1.1\r\nHost: a\r\n\r\n" for target in ("127.0.0.1:22", "/x", "other:443")]
    for answer in await send(box, *connects):
        assert status(answer) in ("400", "405"), answer[:200]
    assert recorder.heads() == []


HOSTS = [
    "Host: other", "Host: 127.0.0.1:22\r\nHost: third", "Host: a\r\nX-Forwarded-Host: other",
    "Host: a\r\nX-Original-URL: /admin", "Host: a\r\nForwarded: host=other", "Host: a\r\nX-Rewrite-URL: /admin",
    "Host: a\r\nX-Host: other", "Host: a/b@c:d", "Host: a\r\nConnection: host, x-key\r\nX-Key: other",
    "Host: a\r\nX-Real-IP: other",
]  # fmt: skip


async def test_no_header_makes_another_host(box: dsec.Sandbox, recorder: Recorder) -> None:
    """Whatever a request says of hosts, what gets out names the URL's and no other."""
    await send(box, *(f"GET /x HTTP/1.1\r\n{lines}\r\n\r\n" for lines in HOSTS))
    heads = recorder.heads()
    assert len(heads) >= len(HOSTS) - 2
    for target, headers in heads:
        assert target == "/v1/x"
        assert headers.lower().count(b"host: ") == 1 and b"host: 127.0.0.1:%d" % recorder.port in headers.lower()
    assert not re.search(rb"other|admin|third|@c", bytes(recorder.heard))


async def test_only_websockets_upgrade(box: dsec.Sandbox, recorder: Recorder) -> None:
    """Other protocols, h2c above all, would carry requests past every check: their upgrades do not pass."""
    upgrades = [
        "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA",
        "Connection: Upgrade\r\nUpgrade: websocket, h2c", "Connection: Upgrade\r\nUpgrade: websocket\r\nUpgrade: h2c",
        "Connection: Upgrade\r\nUpgrade: TLS/1.2", "Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 3",
    ]  # fmt: skip
    await send(box, *(f"GET /x HTTP/1.1\r\nHost: a\r\n{lines}\r\n\r\nabc" for lines in upgrades))
    assert b"upgrade" not in bytes(recorder.heard).lower() and b"http2-settings" not in bytes(recorder.heard).lower()


async def test_heads_have_bounds(box: dsec.Sandbox, recorder: Recorder) -> None:
    """Heads that are too long, too many or no HTTP end with an error, and the endpoint works on."""
    heads = [
        "GET /x HTTP/1.1\r\nHost: a\r\nX: " + "a" * 200_000 + "\r\n\r\n",
        "GET /x HTTP/1.1\r\nHost: a\r\n" + "".join(f"X-{number}: a\r\n" for number in range(1000)) + "\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "\x00" * 1000, "GET /x\r\n\r\n", "\r\n" * 10_000,
        "A" * 300_000,
    ]  # fmt: skip
    for answer in await send(box, *heads):
        assert status(answer) in ("400", "414", "431", ""), answer[:200]
    assert recorder.heads() == []
    (answer,) = await send(box, "GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert status(answer) == "200"


@pytest.mark.timeout(300)
async def test_slow_heads_end(client: dsec.DSecClient, recorder: Recorder) -> None:
    """Connections that say nothing, or a byte now and then, take their own endpoint's room, and not for ever."""
    slow = """
import socket, sys, threading, time
def one(first):
    connection = socket.create_connection(("slow.dsec.internal", 80), 120)
    connection.sendall(first)
    def drip():
        try:
            while True:
                connection.sendall(b"a")
                time.sleep(0.5)
        except OSError:
            pass
    if first:
        threading.Thread(target=drip, daemon=True).start()
    return connection
held = [one(first) for first in (b"", b"GET /x HT", b"GET /x HTTP/1.1\\r\\nX: ", b"")]
print("held", flush=True)
for connection in held:
    try:
        while connection.recv(1000):
            pass
    except OSError:
        pass
print("ended", flush=True)
"""
    url = f"http://127.0.0.1:{recorder.port}/v1"
    endpoints: dict[str, str | dsec.Endpoint] = {"slow": dsec.Endpoint(url, max_connections=4), "llm": url}
    async with client.sandbox(IMAGE, memory_mib=256, endpoints=endpoints) as box:
        program = await box.spawn("python3", "-c", slow)
        lines = program.lines()
        assert await anext(lines) == "held"
        (answer,) = await send(box, "GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert status(answer) == "200"
        async with asyncio.timeout(200):
            assert await anext(lines) == "ended"


async def test_nothing_else_can_be_reached(box: dsec.Sandbox, node: RunningNode, recorder: Recorder) -> None:
    """Not the server's own address, not the node, not the next endpoint's place, not the world; by no protocol."""
    api = int(node.url.rpartition(":")[2])
    found = await attempts(
        box,
        f"""
def reach(family, kind, address):
    with socket.socket(family, kind) as s:
        s.settimeout(3)
        s.connect(address)
        s.send(b"x")
        s.recv(1)
places = [
    ("upstream", "127.0.0.1", {recorder.port}), ("api", "127.0.0.1", {api}), ("next", "127.77.0.2", 80),
    ("zero", "127.77.0.0", 80), ("other port", "127.77.0.1", {recorder.port}), ("world", "8.8.8.8", 53),
    ("metadata", "169.254.169.254", 80), ("private", "10.0.0.1", 80),
]
for name, host, port in places:
    attempt(name, reach, socket.AF_INET, socket.SOCK_STREAM, (host, port))
attempt("udp", reach, socket.AF_INET, socket.SOCK_DGRAM, ("127.77.0.1", 80))
attempt("world by udp", reach, socket.AF_INET, socket.SOCK_DGRAM, ("8.8.8.8", 53))
attempt("world by ipv6", reach, socket.AF_INET6, socket.SOCK_STREAM, ("2001:4860:4860::8888", 53))
attempt("abstract", reach, socket.AF_UNIX, socket.SOCK_STREAM, "\\0dsec")
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).close())
""",
    )
    refused = {"ECONNREFUSED", "ENETUNREACH", "EHOSTUNREACH", "EADDRNOTAVAIL", "EPERM", "EACCES", "EAFNOSUPPORT"}
    assert set(found.values()) <= refused | {"EPROTONOSUPPORT"}, found
    assert recorder.heard == b""


async def test_the_listener_is_nobodys_inside(box: dsec.Sandbox) -> None:
    """Root inside finds no process with the listener, and cannot take its place."""
    said = await python(
        box,
        """
import socket
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
try:
    s.bind(("127.77.0.1", 80)); s.listen(); print("taken")
except OSError as error:
    print(error.errno)
""",
    )
    assert said == "98"


async def test_two_sandboxes_have_two_ways(client: dsec.DSecClient, box: dsec.Sandbox) -> None:
    """A neighbour without endpoints finds nobody at the same address."""
    async with client.sandbox(IMAGE, memory_mib=256) as neighbour:
        found = await attempts(
            neighbour, "attempt('neighbour', lambda: socket.create_connection(('127.77.0.1', 80), 3).close())"
        )
    assert found == {"neighbour": "ECONNREFUSED"}


LIARS = {
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 90\r\n\r\nok",
    "no http": b"SSH-2.0-OpenSSH\r\n\r\n",
    "unasked": b"HTTP/1.1 101 Yes\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
    "endless": b"HTTP/1.1 200 OK\r\nx: ENDLESS",
}


@pytest.mark.parametrize("name", LIARS)
async def test_a_service_that_lies_is_not_believed(client: dsec.DSecClient, name: str) -> None:
    """What a sandbox's own service answers is hostile too: the client outside gets one clean answer, or a 502."""
    import aiohttp

    server = f"""
import socket
s = socket.create_server(("127.0.0.1", 8000)); print("listening", flush=True)
while True:
    c, _ = s.accept()
    try:
        c.recv(65536); c.sendall({LIARS[name]!r}.replace(b"ENDLESS", b"a" * 500_000)); c.close()
    except OSError:
        pass
"""
    async with client.sandbox(IMAGE, memory_mib=256) as sandbox, aiohttp.ClientSession() as http:
        program = await sandbox.spawn("python3", "-c", server)
        assert await anext(program.lines()) == "listening"
        url = await sandbox.expose(8000)
        async with http.get(f"http://{url.connect}/", headers=url.headers) as answer:
            assert answer.status == 502
            assert (await answer.json())["error"]["code"] == "port_unreachable"


async def test_a_length_beside_chunks_is_written_anew(client: dsec.DSecClient) -> None:
    """An answer with both says its length by chunks alone when it comes out."""
    said = b"HTTP/1.1 200 OK\r\ncontent-length: 900\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    server = f"""
import socket
s = socket.create_server(("127.0.0.1", 8000)); print("listening", flush=True)
while True:
    c, _ = s.accept(); c.recv(65536); c.sendall({said!r})
"""
    async with client.sandbox(IMAGE, memory_mib=256) as sandbox:
        program = await sandbox.spawn("python3", "-c", server)
        assert await anext(program.lines()) == "listening"
        url = await sandbox.expose(8000)
        host, _, port = url.connect.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        lines = "".join(f"{key}: {value}\r\n" for key, value in url.headers.items())
        writer.write(f"GET / HTTP/1.1\r\n{lines}connection: close\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
    assert answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 502"))
    assert b"900" not in answer


def test_the_proxy_is_nobody(node: RunningNode) -> None:
    """It runs as a user of its own without groups, capabilities, or means to get any; no file of root's is open."""
    process = Path(f"/proc/{node.services()['proxy'].pid}")
    lines = [line.partition(":\t") for line in (process / "status").read_text().splitlines()]
    facts = {name: value for name, _, value in lines}
    assert all(len(set(facts[name].split())) == 1 for name in ("Uid", "Gid"))
    assert 0x3FFFFF00 <= int(facts["Uid"].split()[0]) < 0x40000000 and facts["Groups"].strip() == ""
    assert {int(facts[name], 16) for name in ("CapPrm", "CapEff", "CapInh", "CapAmb")} == {0}
    assert (facts["NoNewPrivs"], facts["Seccomp"]) == ("1", "2")
    names = {str(each.readlink()) for each in (process / "fd").iterdir()}
    assert {name for name in names if name.startswith("/")} == {"/dev/null", str(node.paths.logs / "proxy.log")}
