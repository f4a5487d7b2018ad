"""A hostile client, with a token and without: every route, the WebSocket, the node's sockets and files."""

from __future__ import annotations

import asyncio
import io
import json
import re
import socket
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest
from yarl import URL

import dsec
from dsec.apiserver.routes import ROUTES
from dsec.iam.tokens import Tokens
from dsec.testing.node import RunningNode

from .inside import IMAGE

pytestmark = [pytest.mark.node, pytest.mark.anyio]

JSON = {"content-type": "application/json"}
pack = msgspec.msgpack.encode


class Raw:
    """HTTP without our client: paths are sent as they are."""

    def __init__(self, node: RunningNode, session: aiohttp.ClientSession, token: str) -> None:
        self._node = node
        self._session = session
        self.headers = {"authorization": f"Bearer {token}"}

    async def ask(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Status and body."""
        url = URL(self._node.url + path, encoded=True)
        sent = self.headers | (headers or {})
        async with self._session.request(
            method, url, data=None if body is None else io.BytesIO(body), headers=sent
        ) as answer:
            return answer.status, await answer.read()

    async def json(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        """The same, with a JSON body."""
        return await self.ask(method, path, json.dumps(body).encode(), JSON)

    async def say(self, *messages: bytes | str) -> aiohttp.WSMessage:
        """The first answer of a new WebSocket to these messages."""
        url = f"{self._node.url}/v1/ws"
        async with self._session.ws_connect(url, headers=self.headers, max_msg_size=0) as ws:
            for message in messages:
                await (ws.send_bytes(message) if isinstance(message, bytes) else ws.send_str(message))
            return await asyncio.wait_for(ws.receive(), 10)


@pytest.fixture
async def raw(node: RunningNode) -> AsyncIterator[Raw]:
    """A client with the node's token."""
    async with aiohttp.ClientSession() as session:
        yield Raw(node, session, node.token)


def some_path(route: str, node: RunningNode) -> str:
    """A path of the route."""
    path = route.replace("{id}", f"sb-{node.paths.name}-{'a' * 26}").replace("{exec_id}", "a" * 26)
    return re.sub(r"\{[a-z_.]+\}", "x", path)


async def test_no_route_without_a_token(node: RunningNode, raw: Raw) -> None:
    """Every route but the version answers 401 to no, an empty, unknown, cut, longer, recased or misplaced token."""
    token = node.token
    bad = [
        "",
        "Bearer",
        "Bearer ",
        f"Basic {token}",
        token,
        f"Bearer {token}x",
        f"Bearer {token[:-1]}",
        f"Bearer {token.upper()}",
        f"Bearer dsec_{'a' * 13}_{'a' * 43}",
        "Bearer \u00ff" + token,
    ]
    for route in ROUTES:
        if route.public:
            continue
        path = some_path(route.path, node)
        for value in bad:
            status, _ = await raw.ask(route.method, path, None, {"authorization": value})
            assert status == 401, (route.method, path, value)
        forged = {"authorization": "", "dsec-principal": "admin", "cookie": f"token={token}"}
        status, _ = await raw.ask(route.method, f"{path}?token={token}", None, forged)
        assert status == 401


async def test_no_websocket_without_a_token(node: RunningNode, raw: Raw) -> None:
    """The upgrade is refused with 401, whatever it says of a principal."""
    for value in ("", "Bearer x", f"Basic {node.token}"):
        raw.headers = {"authorization": value, "dsec-principal": "admin"}
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await raw.say()
        assert refused.value.status == 401


async def test_expired_and_revoked_tokens(node: RunningNode, raw: Raw, client: dsec.DSecClient) -> None:
    """A token is refused from its expiry and from its revocation on; an open WebSocket of it is cut."""
    brief = await client.tokens.create("brief", ttl_s=0.2)
    revoked = await client.tokens.create("revoked")
    raw.headers = {"authorization": f"Bearer {revoked.token}"}
    async with raw._session.ws_connect(f"{node.url}/v1/ws", headers=raw.headers) as ws:
        await client.tokens.revoke(revoked.id)
        assert (await asyncio.wait_for(ws.receive(), 5)).type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.CLOSE)
    assert (await raw.ask("GET", "/v1/status"))[0] == 401
    raw.headers = {"authorization": f"Bearer {brief.token}"}
    async with asyncio.timeout(5):
        while (await raw.ask("GET", "/v1/status"))[0] != 401:
            pass


async def test_no_token_makes_tokens_but_an_admins(node: RunningNode, raw: Raw, client: dsec.DSecClient) -> None:
    """A token of scope exec, of all projects even, cannot make, list or revoke tokens, whatever it says it is."""
    theirs = await client.tokens.create("theirs")
    made = await client.tokens.create("mine", project="*")
    raw.headers = {"authorization": f"Bearer {made.token}", "dsec-scope": "admin", "dsec-principal": "admin"}
    for scope in ("read", "exec", "admin"):
        status, _ = await raw.json("POST", "/v1/tokens", {"name": "x", "scope": scope})
        assert status == 403
    status, listed = await raw.ask("GET", "/v1/tokens")
    assert status == 403 and b"theirs" not in listed
    assert (await raw.ask("DELETE", f"/v1/tokens/{theirs.id}"))[0] == 403
    assert theirs.id in [one.id for one in await client.tokens.list()]
    await client.tokens.revoke(theirs.id)
    await client.tokens.revoke(made.id)


async def test_a_project_is_no_way_into_another(node: RunningNode, raw: Raw, client: dsec.DSecClient) -> None:
    """With a token of another project a running sandbox is not there: by HTTP, WebSocket, transfer, by ID and name;
    the headers that the edge believes are dropped when a client sends them."""
    made = await client.tokens.create("theirs", project="theirs", principal="mallory")
    forged = {"dsec-project": "*", "dsec-scope": "admin", "dsec-principal": "admin"}
    async with client.sandbox(IMAGE, name="private") as sandbox, dsec.DSecClient(node.url, made.token) as stranger:
        raw.headers = {"authorization": f"Bearer {made.token}"} | forged
        for name in (sandbox.id, "private"):
            assert (await raw.ask("GET", f"/v1/sandboxes/{name}"))[0] == 404
            assert (await raw.ask("GET", f"/v1/sandboxes/{name}/files?path=/etc/passwd"))[0] == 404
            assert (await raw.json("POST", f"/v1/sandboxes/{name}/stop", {}))[0] == 404
        assert json.loads((await raw.ask("GET", "/v1/sandboxes"))[1])["sandboxes"] == []
        answer = msgspec.msgpack.decode(
            (await raw.say(pack([1, 0, "exec", {"sandbox_id": sandbox.id, "key": "k", "argv": [b"id"]}]))).data
        )
        assert answer[1] == 4 and answer[2]["code"] == "not_found"
        upgrade = {"connection": "Upgrade", "upgrade": "dsec-transfer"}
        target = f"/v1/sandboxes/{sandbox.id}/transfer?direction=download&transfer_id={'a' * 26}&path=/etc"
        assert (await raw.ask("GET", target, None, upgrade))[0] == 404
        assert (await stranger.stop_all(mine=True)).stopped == []
        async with stranger.sandbox(IMAGE, name="private") as own:
            assert (await own.exec("id", "-u")).stdout.strip() == "0"
            assert (await own.info()).project == "theirs"
            assert (await stranger.stop_all(mine=True)).stopped == [own.id]
        assert (await sandbox.info()).state == "running"
    await client.tokens.revoke(made.id)


async def test_stop_all_takes_only_the_callers(node: RunningNode, client: dsec.DSecClient) -> None:
    """Neither stop_all by labels nor mine=True, nor a forged principal header, ends another principal's sandbox."""
    tokens = Tokens(node.paths.iam_db)
    other = tokens.create("other")
    try:
        async with (
            dsec.DSecClient(node.url, other.token) as stranger,
            client.sandbox(IMAGE, labels={"team": "a"}) as mine,
            stranger.sandbox(IMAGE, labels={"team": "a"}) as theirs,
        ):
            assert (await stranger.stop_all(labels={"team": "a"})).stopped == [theirs.id]
            assert (await stranger.stop_all(mine=True)).stopped == []
            assert (await mine.info()).state == "running"
    finally:
        tokens.revoke(other.id)
        tokens.close()


async def test_nothing_is_smuggled_behind_an_upgrade(node: RunningNode, client: dsec.DSecClient) -> None:
    """What follows an upgrade on its connection is never read as a request by the edge, which would believe its
    headers: after upgrades to nothing, to another's, without their keys, or refused, there is one answer at most."""
    made = await client.tokens.create("small", scope="read", project="theirs")
    host, _, port = node.url.removeprefix("http://").partition(":")
    admin = "dsec-principal: admin\r\ndsec-project: *\r\ndsec-scope: admin\r\n"
    smuggled = f"GET /v1/sandboxes HTTP/1.1\r\nhost: edge\r\n{admin}\r\n".encode()
    one = f"sb-{node.paths.name}-{'a' * 26}"
    async with client.sandbox(IMAGE) as sandbox:
        for target, upgrade in (
            (f"/v1/sandboxes/{one}/transfer?direction=download&transfer_id={'a' * 26}&path=/", "dsec-transfer"),
            (f"/v1/sandboxes/{sandbox.id}/transfer?direction=download&transfer_id=x&path=/", "dsec-transfer"),
            (f"/v1/sandboxes/{one}/execs/{'a' * 26}/output", "dsec-transfer"),
            ("/v1/ws", "websocket"),
            ("/v1/ws", "dsec-transfer"),
            ("/v1/status", "websocket"),
        ):
            reader, writer = await asyncio.open_connection(host, int(port))
            head = f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: {upgrade}\r\n{admin}"
            head += f"Authorization: Bearer {made.token}\r\n\r\n"
            writer.write(head.encode() + smuggled + smuggled)
            answer = await asyncio.wait_for(reader.read(), 20)
            writer.close()
            assert answer.count(b"HTTP/1.1 ") <= 1 and b'"sandboxes"' not in answer, (target, upgrade, answer)
    await client.tokens.revoke(made.id)


async def test_paths_are_no_way_round(node: RunningNode, raw: Raw) -> None:
    """Dots, encoded slashes, control bytes and giants in the places of IDs, names, keys and references."""
    odd = [
        "..",
        "%2e%2e",
        "..%2F..%2Fmetrics",
        "a%00b",
        "%0d%0aX:y",
        "%ff%fe",
        "a" * 5000,
        "%25",
        "'%20OR%201=1",
        "-x",
        "sb-other-" + "a" * 26,
        "sb-..-" + "a" * 26,
        f"sb-{node.paths.name}-{'A' * 26}",
        "x%2Fstop",
        "$(id)",
    ]
    for text in odd:
        for path in (
            f"/v1/sandboxes/{text}",
            f"/v1/sandboxes/{text}/story",
            f"/v1/images/{text}",
            f"/v1/tokens/{text}",
        ):
            for method in ("GET", "DELETE"):
                status, body = await raw.ask(method, path)
                assert 400 <= status < 500 and b"root:" not in body, (method, path, status)
        status, _ = await raw.json("POST", f"/v1/sandboxes/{text}/stop", {})
        assert 400 <= status < 500
    for path in (
        "/v1/../metrics",
        "//v1/status",
        "/v1/sandboxes/../status",
        "/V1/status",
        "/v1/ws/x",
        "/edge.sock",
        "/",
    ):
        assert (await raw.ask("GET", path))[0] == 404
    assert (await raw.ask("TRACE", "/v1/status"))[0] == 404


async def test_creates_are_checked(node: RunningNode, raw: Raw, client: dsec.DSecClient) -> None:
    """Malformed names, keys, references, labels, users, directories, environments, limits and unknown fields."""
    bad: dict[str, list[Any]] = {
        "name": ["../x", "a\nb", "a" * 300, "", ".", "-x", "a b", "\u00e9", "\0", f"sb-{node.paths.name}-{'a' * 26}"],
        "key": ["", "a\0", "a" * 1000, "a\nb", "main process", "\u00e9"],
        "image": [
            "",
            "../x",
            "-v",
            "--help",
            "docker-archive:/etc/passwd",
            "oci:/etc",
            "dir:/",
            "x\ny",
            "a" * 5000,
            "containers-storage:x",
            "docker-daemon:x",
            "ostree:x@/",
            "/etc/passwd",
            "x:$(id)",
        ],
        "labels": [{"": "x"}, {"a" * 300: "b"}, {"a": "b" * 300}, {str(n): "x" for n in range(100)}, {"a": 1}],
        "user": ["../x", "root\n", "\0", "a" * 300, "0:0:0", "a/b"],
        "workdir": ["x", "", "/\0", "/" + "a" * 5000],
        "env": [{"A=B": "c"}, {"": "x"}, {"A": "\0"}, {"A": "x" * 2_000_000}, ["A=B"]],
        "command": [[""], ["\0"], [], "other", [1]],
        "workspace": ["../x", "workspace/../..:1", "toolkit/x:1", "/etc"],
        "toolkits": [["../../x"], ["workspace/x:1"], "x"],
        "memory_mib": [1e300, -1, 0, [2, 1], "1", None],
        "cpu": [0, -1, 1e9, [1]],
        "pids": [0, 1.5, 1e9],
        "disk_mib": [0, -5, 1e300],
        "shm_mib": [-1, 1e12],
        "lifetime_s": [0, -1, 1e300],
        "deadline_s": [1e300],
        "network": ["host", "bridge", {"domain": 1}, {"no-such-group": True}],
        "profile": ["unconfined", "", "Default", "strict\n"],
        "backend": ["host"],
        "mounts": [["/:/host"]],
        "privileged": [True],
        "layers": [["a" * 64]],
        "hostname": ["x"],
        "principal": ["other"],
        "cap_add": [["ALL"]],
    }
    number = 0
    for field, values in bad.items():
        for value in values:
            number += 1
            body = {"image": IMAGE, "key": f"bad-{number}", "deadline_s": 2} | {field: value}
            status, answer = await raw.json("POST", "/v1/sandboxes", body)
            # `containers-storage:x` is a name on Docker Hub like any other; nothing is there to answer.
            wanted = (400, 404, 422, 502) if field == "image" else (400, 404, 422)
            assert status in wanted, (field, str(value)[:80], status, answer)
    assert [each async for each in client.find(state="running")] == []


async def test_bodies_are_bounded(raw: Raw) -> None:
    """Deep, huge, broken and wrongly typed bodies: 400, and the server goes on."""
    for body in (
        b"[" * 100_000,
        b'{"image":' * 50_000,
        b"{" + b" " * 9_000_000 + b"}",
        b"\xff\xfe",
        b"NaN",
        b'"x"',
        b"{}" * 2,
        b'{"image":"x","key":"k","memory_mib":NaN}',
    ):
        for path in ("/v1/sandboxes", "/v1/stop", "/v1/tokens", "/v1/images/import"):
            status, answer = await raw.ask("POST", path, body, JSON)
            assert status in (400, 422) or b'"error"' in answer, (path, status, body[:20])
    assert (await raw.ask("GET", "/v1/status"))[0] == 200


async def test_requests_that_are_no_http(node: RunningNode, raw: Raw) -> None:
    """Smuggled lengths, split headers, endless header lines: refused before they reach the edge."""
    host, port = node.url.removeprefix("http://").split(":")
    bearer = f"Authorization: Bearer {node.token}\r\n"
    for text in (
        f"GET /v1/status HTTP/1.1\r\nHost: x\r\n{bearer}X: y\r\n continued\r\nContent-Length: -1\r\n\r\n",
        f"POST /v1/stop HTTP/1.1\r\nHost: x\r\n{bearer}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
        "0\r\n\r\nGET",
        f"GET /v1/status\r\n{bearer}\r\n",
        "GET /v1/status HTTP/1.1\r\nHost: x\r\nX: " + "a" * 200_000 + "\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ):
        with socket.create_connection((host, int(port)), 5) as connection:
            connection.sendall(text.encode("latin-1") + b"\r\n\r\n")
            connection.shutdown(socket.SHUT_WR)
            try:
                answer = await asyncio.to_thread(connection.recv, 100)
            except ConnectionResetError:
                answer = b""
        assert not answer.startswith(b"HTTP/1.1 200"), text[:80]
    assert (await raw.ask("GET", "/v1/status"))[0] == 200


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xff\xff",
        b"\x80",
        b"\x93\x01",
        b"\xc1",
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * 100_000,
        b"\x94\x01\x00\xa4exec" + b"\x81\xa1a" * 60_000 + b"\xc0",
        b"\x94\x01\x00\xa4exec\x81\xa1a\xc6\xff\xff\xff\xff",
        pack([-1, 0, "exec", {}]),
        pack(["x", 0, "exec", {}]),
        pack([1, 9, "x"]),
        pack([1, "x"]),
        pack([1, 3, {}]),
        pack([1, 4, {}]),
        pack([1, 6, {}]),
        pack([1, 0, "logs", {}]) + b"junk",
        pack([1, 0, "exec"]),
        pack([1, 0, 5, {}]),
        "text",
    ],
    ids=lambda frame: repr(frame[:16]),
)
async def test_malformed_frames_end_the_connection(raw: Raw, frame: bytes | str) -> None:
    """The WebSocket is closed with a code that says why; nothing of it reaches the runtime."""
    answer = await raw.say(frame)
    assert answer.type is aiohttp.WSMsgType.CLOSE and answer.data in (1002, 1003), answer


async def test_runtime_methods_are_out_of_reach(raw: Raw, node: RunningNode) -> None:
    """Methods of runtime.sock, and fields that only the edge may set, are not passed on."""
    one = f"sb-{node.paths.name}-{'a' * 26}"
    for method in (
        "shutdown",
        "sandbox.create",
        "sandbox.stop",
        "tool.run",
        "layer.evict",
        "layer.loading",
        "exec.start",
        "file.read",
        "stats",
        "output.remove",
        "hello",
        "probe",
        "",
        "__init__",
    ):
        answer = msgspec.msgpack.decode((await raw.say(pack([1, 0, method, {"sandbox_id": one}]))).data)
        assert answer[1] == 4 and answer[2]["code"] == "unsupported", (method, answer)
    exec_ = {"sandbox_id": one, "key": "k", "argv": [b"id"]}
    more: dict[str, Any]
    for more in ({"is_main": True}, {"programs": [b"/bin/sh"]}, {"exec_id": "a" * 26}, {"layers": []}):
        answer = msgspec.msgpack.decode((await raw.say(pack([1, 0, "exec", exec_ | more]))).data)
        assert answer[2]["code"] == "unsupported"
    for wrong in (
        {"timeout_s": float("nan")},
        {"argv": [b"a\0"]},
        {"cwd": "x"},
        {"max_output_bytes": 1 << 40},
        {"mode": "x"},
        {"sandbox_id": "../x"},
        {"key": "a b"},
        {"env": {"A": "\0"}},
        {"grace_s": -1},
        {"credit": {"x": 1}},
    ):
        answer = msgspec.msgpack.decode((await raw.say(pack([1, 0, "exec", exec_ | wrong]))).data)
        assert answer[1] == 4 and answer[2]["fault"] == "caller", (wrong, answer)


async def test_giant_messages(raw: Raw) -> None:
    """A message of 20 MB ends its connection and nothing else."""
    try:
        answer = await raw.say(bytes(20 << 20))
    except (aiohttp.ClientError, ConnectionError):
        pass
    else:
        assert answer.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)
    assert (await raw.ask("GET", "/v1/status"))[0] == 200
