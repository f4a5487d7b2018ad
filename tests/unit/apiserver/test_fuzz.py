"""The HTTP surface under random requests: apiserver and edge as they are, over a fake runtime.

Bounded here; ``make fuzz`` goes on for longer (FUZZ_EXAMPLES). What must hold of every answer: it is one and whole,
never the platform's own fault, with no header that the request smuggled in; and what belongs to another project is
untouched at the end, although its ID and name were among the values.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from dsec.api import ids
from dsec.apiserver.edge_link import Edges, LocalEdge
from dsec.apiserver.gate import Gate
from dsec.apiserver.limits import Limits
from dsec.apiserver.openapi import document
from dsec.apiserver.routes import ROUTES, Route
from dsec.apiserver.server import listen, make_server
from dsec.iam.tokens import Tokens
from dsec.testing.edge_world import IMAGE, World, opened_world, until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(0)]

LONG = "FUZZ_EXAMPLES" in os.environ
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "100"))
FUZZ = settings(
    max_examples=EXAMPLES, deadline=None, database=None, derandomize=not LONG,
    suppress_health_check=list(HealthCheck), phases=(Phase.explicit, Phase.generate),
)  # fmt: skip
AT_ONCE = 8
"""Heads that wait for their answers together: half of them are answered when the server's patience is over."""
OWN, THEIRS = "sb-test-" + "a" * 26, "crate"
NASTY = [
    "", "..", ".", "%2e%2e", "a/../../v1/tokens", "..%2f..%2fmetrics", "a\x00b",
    "a\r\nx-injected: 1\r\n\r\nGET / HTTP/1.1",
    "\r\n", "\n", "\t", " ", "-x", "--help", "$(id)", "`id`", "'", '"',
    "' OR 1=1 --", "{}", "{id}", "*", "?", "#", "a?b=c", "a;b",
    "a" * 300, "\u00e9", "\u202e", "\ud7ff", "\U0001f4a5", "sb-other-" + "a" * 26, "sb-test-" + "A" * 26, OWN,
    THEIRS, IMAGE,
    "0", "-1", "1e999", "nan", "99999999999999999999", "0x10", "true", "null", "[]", "__class__", "main process",
]  # fmt: skip
TEXT = st.sampled_from(NASTY) | st.text(max_size=40)
JSON: SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
HEADERS = st.sampled_from(
    [
        "dsec-principal: admin", "dsec-project: *", "dsec-scope: admin", "dsec-job: x;1", "dsec-job: x;y",
        "dsec-job: ;", "Expect: x",
        "X-Forwarded-Host: other", "Cookie: dsec_port_token=x", "Content-Type: text/html", "Range: bytes=0-",
        "Connection: x",
        "Transfer-Encoding: identity", "Accept-Encoding: gzip", "Upgrade: h2c", "x: " + "y" * 2000,
    ]
)  # fmt: skip
UPGRADES = st.sampled_from(
    [
        "Connection: Upgrade\r\nUpgrade: dsec-transfer", "Connection: Upgrade\r\nUpgrade: websocket",
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + "A" * 24,
        "Connection: Upgrade", "Upgrade: dsec-transfer",
    ]
)  # fmt: skip
TIMELY = {"deadline_s": 2.0, "on_full": "raise"}
"""Of every create: a walk waits for nobody."""


def seed_unless_long(number: int) -> Callable[[Any], Any]:
    """Different values for each route, the same in each run but the long ones."""
    return (lambda test: test) if LONG else seed(number)


def _field_names(kind: Any) -> list[str]:
    try:
        return [field.encode_name for field in msgspec.structs.fields(kind)]
    except TypeError:
        return ["reference", "source"]


@st.composite
def requests_of(draw: Any, route: Route) -> tuple[bytes, list[str], bytes]:
    """(target, headers, body) for a route, with values of any kind."""
    target = ""
    for part in re.split(r"(\{[a-z_.]+\})", route.path):
        if part.startswith("{"):
            text = draw(TEXT)
            part = quote(text, safe=draw(st.sampled_from(["", "/", "/:@"])), errors="replace")
        target += part
    query = draw(st.lists(st.tuples(st.sampled_from([*route.query, "x"]) | TEXT, TEXT), max_size=3))
    if query:
        target += "?" + "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in query)
    body = b""
    if route.method in ("POST", "PUT"):
        if route.request is None or draw(st.integers(0, 9)) == 0:
            body = draw(st.binary(max_size=200))
        else:
            names = st.sampled_from(_field_names(route.request)) | TEXT
            content = draw(st.dictionaries(names, JSON, max_size=4))
            if route.path == "/v1/sandboxes":
                content = {"image": IMAGE, "key": ids.new_key()} | content | TIMELY
            body = json.dumps(content).encode()
    headers = draw(st.lists(HEADERS, max_size=3))
    if route.upgrades:
        headers.append(draw(UPGRADES))
    return target.encode("ascii"), headers, body


def heads() -> SearchStrategy[bytes]:
    """What is nearly a request, or none at all."""
    line = st.sampled_from(
        [
            b"GET /v1/status HTTP/1.1", b"GET /v1/status HTTP/1.0", b"GET /v1/status HTTP/2.0", b"GET /v1/status",
            b"PRI * HTTP/2.0",
            b"get /v1/status HTTP/1.1", b"GET http://other/v1/status HTTP/1.1", b"CONNECT other:443 HTTP/1.1",
            b"OPTIONS * HTTP/1.1",
            b"GET //v1/status HTTP/1.1", b"GET /v1/status\tHTTP/1.1", b"GET  /v1/status HTTP/1.1",
            b"HEAD /v1/status HTTP/1.1",
            b"POST /v1/stop HTTP/1.1", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"", b"GET /\xff\x00 HTTP/1.1",
            b"GET ? HTTP/1.1",
        ]
    )  # fmt: skip
    field = st.sampled_from(
        [
            b"Host: x", b"Host: 80-sb-test-x.localhost", b"Host: a\r\nHost: b", b"Content-Length: 5",
            b"Content-Length: -1", b"x : y",
            b"Content-Length: 5, 5", b"Content-Length: 0x5", b"Transfer-Encoding: chunked",
            b"Transfer-Encoding: xchunked", b": y",
            b"Transfer-Encoding: chunked, identity", b" folded: x", b"x", b"x: \x00", b"x: \x7f",
            b"Connection: close",
            b"Connection: Upgrade\r\nUpgrade: websocket", b"Connection: Upgrade\r\nUpgrade: dsec-transfer",
            b"Upgrade: websocket",
        ]
    )  # fmt: skip
    rest = st.sampled_from([b"", b"{}", b"5\r\n", b"zz\r\n", b"0\r\n\r\n", b"ffffffffffffffff\r\nx"]) | st.binary(
        max_size=80
    )
    end = st.sampled_from([b"\r\n", b"\n"])
    return st.builds(
        lambda first, fields, eol, tail: eol.join([first, *fields, b"", b""]) + tail, line,
        st.lists(field, max_size=4), end, rest,
    ) | st.binary(max_size=200)  # fmt: skip


@contextlib.asynccontextmanager
async def served(world: World) -> AsyncIterator[tuple[str, int]]:
    """An apiserver over the world's edge."""
    paths = world.config.paths
    gate = Gate("test", Edges(LocalEdge("test", paths.edge_socket, paths.ports_socket)), Tokens(paths.iam_db))
    server = make_server(gate, Limits(head_s=0.3, body_s=0.3, linger_s=0.1))
    listener = listen("127.0.0.1", 0)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await until(lambda: server.started)
        yield listener.getsockname()[:2]
    finally:
        server.should_exit = True
        await serving


def _is_whole(said: bytes, request: bytes) -> bool:
    """Whether an answer is all there."""
    head, end, body = said.partition(b"\r\n\r\n")
    length = re.search(rb"\r\ncontent-length: ([0-9]+)", head)
    if length is not None:
        return request.startswith(b"HEAD") or len(body) >= int(length[1])
    return bool(end) and (b"chunked" not in head or body.endswith(b"0\r\n\r\n"))


def asked(address: tuple[str, int], request: bytes, *, alive: bool = False) -> bytes:
    """All that a request is answered, until the server hangs up: at once, or when its patience is over.

    ``alive``: only what comes first, since the connection may be kept.
    """
    with socket.create_connection(address, timeout=30) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(request)
        said = bytearray()
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(1 << 16):
                said += part
                if alive and _is_whole(bytes(said), request):
                    break
    return bytes(said)


class _Replay:
    """Bytes as the socket that http.client reads from."""

    def __init__(self, said: bytes) -> None:
        self._said = said

    def makefile(self, _: str) -> Any:
        import io

        return io.BytesIO(self._said)


def check_answer(said: bytes, method: str = "GET") -> tuple[int, bytes]:
    """Status and body of one whole answer, which has an error in wire form unless it is no error."""
    answer = HTTPResponse(_Replay(said), method=method)  # type: ignore[arg-type]
    try:
        answer.begin()
        body = answer.read()
    except HTTPException as error:
        raise AssertionError(f"not an answer: {said[:200]!r} ({error!r})") from None
    assert answer.getheader("x-injected") is None
    status = answer.status
    assert status < 500 or status in (502, 503, 504), said[:2000]
    if status >= 400 and method != "HEAD" and answer.getheader("content-type") == "application/json":
        told = json.loads(body)["error"]
        assert told["code"] not in ("platform_error", "protocol_error") and told["message"], said[:2000]
    return status, body


async def walked(tmp_path: Any, walk: Any) -> None:
    """Run the walk in a thread beside the node; then see that another project's sandbox is as it was."""
    async with opened_world(tmp_path) as world, world.edge() as (_, api), served(world) as address:
        theirs = await api.create(project="theirs", name=THEIRS)
        tokens = Tokens(world.config.paths.iam_db)
        token = tokens.create("mallory", project="own", scope="exec").token
        admins = len(tokens.list())
        await asyncio.to_thread(walk, address, token, theirs["id"])
        now = await api.call("GET", f"/v1/sandboxes/{theirs['id']}", project="theirs")
        assert now["state"] == "running" and now["labels"] == theirs["labels"]
        assert len((await api.call("GET", f"/v1/sandboxes/{theirs['id']}/story", project="theirs"))["story"]) == 2
        assert (await api.call("GET", "/v1/jobs", project="theirs"))["jobs"] == []
        assert len(tokens.list()) == admins
        tokens.close()


def walk_operation(address: tuple[str, int], token: str, theirs: str, number: int) -> None:
    """Ask one operation with a token of another project: no answer tells of ``theirs``, or does what an admin may."""
    route = ROUTES[number]

    @seed_unless_long(number)
    @settings(FUZZ, max_examples=max(3, EXAMPLES // len(ROUTES)))
    @given(requests_of(route))
    def one(request: tuple[bytes, list[str], bytes]) -> None:
        target, headers, body = request
        target = target.replace(OWN.encode(), theirs.encode())
        last = [] if route.upgrades else ["Connection: close"]
        lines = [f"Authorization: Bearer {token}", *last, f"Content-Length: {len(body)}", *headers]
        first = route.method.encode() + b" " + target + b" HTTP/1.1\r\nHost: x\r\n"
        said = asked(address, first + "\r\n".join(lines).encode() + b"\r\n\r\n" + body, alive=route.upgrades)
        status, answer = check_answer(said)
        if route.scope == "admin":
            assert status in (400, 403, 404), (route, status)
        if status < 300 and theirs.encode() in answer:
            raise AssertionError(f"{route.path} told of another project's sandbox: {answer[:500]!r}")

    one()


async def test_operations_with_values_of_any_kind(tmp_path: Any) -> None:
    """Each operation of the document answers in its own words, whatever its path, query, headers and body say."""

    def walk(address: tuple[str, int], token: str, theirs: str) -> None:
        for number, route in enumerate(ROUTES):
            walk_operation(address, token, theirs, number)
            walked_routes.add((route.path.replace("...}", "}"), route.method.lower()))

    walked_routes: set[tuple[str, str]] = set()
    await walked(tmp_path, walk)
    paths = document("0")["paths"]
    assert walked_routes == {(path, method) for path, methods in paths.items() for method in methods}


async def test_what_is_hardly_a_request(tmp_path: Any) -> None:
    """Heads that can be read in two ways, are cut short or are no HTTP: an answer or a hang-up, and no 500."""

    def walk(address: tuple[str, int], token: str, _: str) -> None:
        bearer = f"\r\nAuthorization: Bearer {token}\r\n".encode()

        def ask(head: bytes) -> None:
            said = asked(address, head.replace(b"\r\n", bearer, 1), alive=True)
            if said:
                check_answer(said, "HEAD" if head.startswith(b"HEAD") else "GET")

        @settings(FUZZ, max_examples=max(1, EXAMPLES // AT_ONCE))
        @given(st.lists(heads(), min_size=AT_ONCE, max_size=AT_ONCE))
        def one(some: list[bytes]) -> None:
            list(asking.map(ask, some))

        with ThreadPoolExecutor(AT_ONCE) as asking:
            one()
        assert b" 200 " in asked(address, b"GET /v1/version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")[:20]

    await walked(tmp_path, walk)
