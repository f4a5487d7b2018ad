"""What a page that a sandbox serves can do in a browser which knows other sandboxes' ports, and the API.

A browser's part is played by requests as it would send them: where a page came from is said in headers that no page
can change.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import aiohttp
import pytest

import dsec
from dsec.testing.node import RunningNode, private_node

from .inside import IMAGE

pytestmark = [pytest.mark.node, pytest.mark.anyio]

SERVER = """
import json, sys, urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Hostile(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self):
        body = json.dumps({"method": self.command, "headers": self.headers.items()}).encode()
        self.send_response(200)
        for name, value in json.loads(urllib.parse.unquote(self.path.partition("?")[2]) or "[]"):
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_GET = do_POST = answer
    def log_message(self, *_): pass
servers = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Hostile)
print("listening", flush=True)
servers.serve_forever()
"""
COOKIE = "dsec_port_token"
VISIT = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


async def served(sandbox: dsec.Sandbox, port: int) -> dsec.Url:
    """A port whose answers have whatever headers the query asks for."""
    await sandbox.write("/srv/hostile.py", SERVER, parents=True)
    server = await sandbox.spawn("python3", "/srv/hostile.py", str(port))
    async for line in server.lines():
        assert line == "listening", line
        return await sandbox.expose(port)
    raise AssertionError("the server did not begin")


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """A client that keeps no cookies."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        yield session


@pytest.fixture
async def url(sandbox: dsec.Sandbox) -> dsec.Url:
    """A hostile port."""
    return await served(sandbox, 3000)


def browser(url: dsec.Url, **more: str) -> dict[str, str]:
    """What a browser with the port's cookie sends, and more (``_`` for ``-``)."""
    said = {name.replace("_", "-"): value for name, value in more.items()}
    return {"host": url.host, "cookie": f"{COOKIE}={url.token}"} | said


async def status(http: aiohttp.ClientSession, url: dsec.Url, method: str, headers: dict[str, str]) -> int:
    """Of an answer; a refusal must be the one about origins."""
    async with http.request(method, f"http://{url.connect}/", headers=headers) as answer:
        if answer.status == 403:
            assert (await answer.json())["error"]["phase"] == "origin"
        return answer.status


async def test_answers_reach_no_further_than_their_origin(http: aiohttp.ClientSession, url: dsec.Url) -> None:
    """No cookie for other hosts or in place of the port's own, no clearing of others' storage, no other server in
    this one's name; what an application says about itself passes."""
    asked = [
        ("Set-Cookie", "a=b; Path=/; Domain=localhost; HttpOnly"),
        ("Set-Cookie", f"{COOKIE}=mine; Path=/"),
        ("Set-Cookie", f"={COOKIE}=mine"),
        ("Clear-Site-Data", "*"),
        ("Alt-Svc", 'h3=":1"'),
        ("Strict-Transport-Security", "max-age=9; includeSubDomains"),
        ("Service-Worker-Allowed", "/"),
        ("Origin-Agent-Cluster", "?0"),
        ("Access-Control-Allow-Origin", "*"),
        ("Content-Security-Policy", "default-src 'self'"),
    ]
    at = f"http://{url.connect}/?{quote(json.dumps(asked))}"
    async with http.get(at, headers=url.headers) as answer:
        assert answer.status == 200
        got = answer.headers
    assert got.getall("set-cookie") == ["a=b; Path=/; HttpOnly"]
    assert not {"clear-site-data", "alt-svc", "strict-transport-security", "service-worker-allowed"} & {
        name.lower() for name in got
    }
    assert got.getall("origin-agent-cluster") == ["?1"]
    assert got["access-control-allow-origin"] == "*"
    assert got["content-security-policy"] == "default-src 'self'"


async def test_pages_of_other_origins_cannot_use_the_cookie(http: aiohttp.ClientSession, url: dsec.Url) -> None:
    """Neither to ask, nor to change, nor to frame, nor by WebSocket; the sandbox's other ports no more than any."""
    other = f"http://{url.host.replace('3000-', '3001-')}"
    for method, headers in (
        ("GET", browser(url, sec_fetch_site="cross-site", sec_fetch_mode="no-cors", sec_fetch_dest="image")),
        ("GET", browser(url, sec_fetch_site="same-site", sec_fetch_mode="cors", origin=other)),
        ("GET", browser(url, origin="https://evil.example")),
        ("GET", browser(url, origin="null")),
        ("GET", browser(url, sec_fetch_site="cross-site", sec_fetch_mode="navigate", sec_fetch_dest="iframe")),
        ("POST", browser(url, sec_fetch_site="cross-site", **VISIT, origin=other)),
        ("POST", browser(url, sec_fetch_site="cross-site", **VISIT)),
        (
            "GET",
            browser(
                url, connection="Upgrade", upgrade="websocket", sec_websocket_version="13",
                sec_websocket_key="AAAAAAAAAAAAAAAAAAAAAA==", origin=other,
            ),
        ),
    ):  # fmt: skip
        assert await status(http, url, method, headers) == 403, headers


async def test_its_own_pages_and_visits_can(http: aiohttp.ClientSession, url: dsec.Url) -> None:
    """The port's own pages, its user, a link from elsewhere as a whole page; whoever has the token itself, always."""
    for method, headers in (
        ("GET", browser(url, sec_fetch_site="none", **VISIT)),
        ("GET", browser(url, sec_fetch_site="cross-site", **VISIT)),
        ("POST", browser(url, sec_fetch_site="same-origin", origin=f"http://{url.host}")),
        ("POST", url.headers | {"origin": "https://evil.example", "sec-fetch-site": "cross-site"}),
        ("GET", browser(url)),
    ):
        assert await status(http, url, method, headers) == 200, headers


async def test_one_ports_cookie_is_nothing_to_another(
    http: aiohttp.ClientSession, sandbox: dsec.Sandbox, url: dsec.Url
) -> None:
    """Each port has a host and a token of its own: 401, also for the API, which takes no cookie at all."""
    second = await served(sandbox, 3001)
    assert second.host != url.host and second.token != url.token
    stolen = {"host": second.host, "cookie": f"{COOKIE}={url.token}"}
    assert await status(http, second, "GET", stolen) == 401
    assert await status(http, second, "GET", browser(second)) == 200


async def test_the_api_takes_no_cookie_and_answers_no_page(
    http: aiohttp.ClientSession, node: RunningNode, url: dsec.Url
) -> None:
    """A browser's cookies open nothing, and no page of a port may read an answer of the API, asked for or not."""
    origin = {"origin": f"http://{url.host}", "sec-fetch-site": "cross-site"}
    for cookie in (f"authorization=Bearer {node.token}", f"token={node.token}", f"dsec_token={node.token}"):
        async with http.get(f"{node.url}/v1/sandboxes", headers=origin | {"cookie": cookie}) as answer:
            assert answer.status == 401
    bearer = {"authorization": f"Bearer {node.token}"}
    for method, path in (("GET", "/v1/version"), ("GET", "/v1/sandboxes"), ("OPTIONS", "/v1/sandboxes")):
        asks = origin | bearer | {"access-control-request-method": "POST"}
        async with http.request(method, node.url + path, headers=asks) as answer:
            assert not any(name.lower().startswith("access-control-") for name in answer.headers)
            assert "set-cookie" not in answer.headers


async def test_the_link_leaves_its_token_nowhere(http: aiohttp.ClientSession, url: dsec.Url) -> None:
    """It becomes a cookie of this host alone that no script reads; no referrer or cache has it, nor the program."""
    at = f"http://{url.connect}/x?a=1&{COOKIE}={url.token}"
    async with http.get(at, headers={"host": url.host}, allow_redirects=False) as answer:
        assert answer.status == 303
        assert answer.headers["location"] == "/x?a=1"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["set-cookie"] == f"{COOKIE}={url.token}; Path=/; HttpOnly; SameSite=Lax"
    async with http.get(f"http://{url.connect}/", headers=browser(url)) as answer:
        assert url.token not in await answer.text()


async def test_a_domain_of_the_operators(http: aiohttp.ClientSession, store: Path) -> None:
    """``ports_domain``: origins are below it, and nothing below localhost is one any more."""
    with private_node(store, settings='ports_domain = "ports.example"\n') as node:
        async with node.client() as client, client.sandbox(IMAGE, memory_mib=256, disk_mib=256) as sandbox:
            url = await served(sandbox, 3000)
            assert url.host.startswith(f"3000-{sandbox.id}.ports.example:")
            assert await status(http, url, "GET", url.headers | {"connection": "close"}) == 200
            local = url.headers | {"host": url.host.replace("ports.example", "localhost")}
            assert await status(http, url, "GET", local) == 401
