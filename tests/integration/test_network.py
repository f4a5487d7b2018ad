"""Networks over a real node: what a sandbox reaches, and what not, with every server in a namespace of the test's
own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import dsec
from dsec.testing.node import RunningNode, private_node

from .far_side import GET, FarSide, certificate_in, far_side

pytestmark = [pytest.mark.node, pytest.mark.anyio]

IMAGE = "dsec/debian:12"
NAMES = {
    "pkg.pypi.test": ["@1"],
    "cdn.pypi.test": ["=edge.cdn.test"],
    "edge.cdn.test": ["@1"],
    "npm.test": ["@2"],
    "other.test": ["@1"],
    "rebind.pypi.test": ["127.0.0.1", "10.255.0.1"],
    "meta.pypi.test": ["169.254.169.254"],
}
GROUPS = """
[network.groups.pypi]
domains = ["*.pypi.test"]
[network.groups.npm]
domains = ["npm.test"]
"""
LOOK = """
import socket, sys
try:
    print(sorted({each[4][0] for each in socket.getaddrinfo(sys.argv[1], 80)}))
except socket.gaierror as error:
    print("none", error.errno)
"""
TLS = """
import socket, ssl, sys
address, name = sys.argv[1:3]
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
try:
    with socket.create_connection((address, 443), 20) as conn:
        with context.wrap_socket(conn, server_hostname=name or None) as tls:
            tls.sendall(b"GET / HTTP/1.1\\r\\nHost: inside\\r\\n\\r\\n")
            print(tls.recv(1000).split(b"\\r\\n\\r\\n")[-1].decode())
except OSError as error:
    print("failed", type(error).__name__)
"""
RAW = """
import socket, sys
address, port, said = sys.argv[1:4]
try:
    with socket.create_connection((address, int(port)), 20) as conn:
        conn.sendall(said.encode().decode("unicode_escape").encode("latin-1"))
        print(conn.recv(1000))
except OSError as error:
    print("failed", type(error).__name__)
"""


async def run(sandbox: dsec.Sandbox, script: str, *arguments: str) -> str:
    """What a script prints inside."""
    done = await sandbox.exec("python3", "-c", script, *arguments, check=True)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarSide]:
    """The world."""
    with far_side(NAMES, certificate_in(tmp_path_factory.mktemp("far"))) as made:
        yield made


@pytest.fixture(scope="module")
def node(store: Path, far: FarSide) -> Iterator[RunningNode]:
    """A node whose operator knows the groups and lets sandboxes reach the far side."""
    with private_node(store, settings=far.settings(GROUPS)) as running:
        yield running


@pytest.fixture
async def client(node: RunningNode) -> AsyncIterator[dsec.DSecClient]:
    """Of that node."""
    async with node.client() as made:
        yield made


async def test_groups_of_the_paper(client: dsec.DSecClient, far: FarSide) -> None:
    """With ``network_rules={"npm": False, "pypi": True}`` the names of one group are answered and reached, a chain
    of names among them; those of the other and of nobody's are not, and each refusal is on record.
    """
    rules: Any = {"npm": False, "pypi": True}
    async with client.sandbox(IMAGE, network_rules=rules) as sandbox:
        assert await run(sandbox, LOOK, "pkg.pypi.test") == f"['{far.addresses[1]}']"
        assert (
            await run(sandbox, GET, "pkg.pypi.test", "pkg.pypi.test", "/") == f"200 pkg.pypi.test {far.addresses[1]}"
        )
        assert (
            await run(sandbox, GET, "cdn.pypi.test", "cdn.pypi.test", "/") == f"200 cdn.pypi.test {far.addresses[1]}"
        )
        for name in ("npm.test", "other.test", "edge.cdn.test", "missing.test"):
            assert (await run(sandbox, LOOK, name)).startswith("none"), name
        found = await sandbox.events()
        refused = {(each.kind, each.name, each.reason) for each in found.events}
        assert ("name", "npm.test", "policy") in refused
        info = await sandbox.network()
        assert (info.connections, info.names_refused) == (2, len(found.events))


async def test_phases(client: dsec.DSecClient) -> None:
    """As docs/network.md has it: packages are installed while a sandbox is set up, after which it has no network and
    works with what it got.
    """
    get = ("pip", "download", "--no-deps", "--dest", "/tmp", "--index-url", "http://pkg.pypi.test/simple", "tiny")
    install = ("pip", "install", "--no-deps", "--target", "/tmp/packages", *get[5:])
    trust = ("--trusted-host", "pkg.pypi.test", "--retries", "0", "--disable-pip-version-check")
    async with client.sandbox(IMAGE, network={"pypi": True}) as sandbox:
        await sandbox.exec(*install, *trust, check=True)
        await sandbox.set_network("none")
        assert (await sandbox.exec(*get, *trust)).exit_code != 0
        done = await sandbox.exec(
            "python3", "-c", "import tiny; print(tiny.answer)", env={"PYTHONPATH": "/tmp/packages"}
        )
        assert done.stdout.strip() == "42"
        assert {each.reason for each in (await sandbox.events()).events} == {"policy"}


async def test_programs_that_ask_for_what_the_machine_has(client: dsec.DSecClient, far: FarSide) -> None:
    """Names are found too by programs that want addresses only of families of which this machine has one."""
    script = """
import socket
found = socket.getaddrinfo("pkg.pypi.test", 80, socket.AF_INET, socket.SOCK_STREAM, 0, socket.AI_ADDRCONFIG)
print(found[0][4][0])
"""
    async with client.sandbox(IMAGE, network={"pypi": True}) as sandbox:
        assert await run(sandbox, script) == far.addresses[1]
    async with client.sandbox(IMAGE) as sandbox:
        await sandbox.set_network({"pypi": True})
        assert await run(sandbox, script) == far.addresses[1]


async def test_no_network_is_none(client: dsec.DSecClient, far: FarSide) -> None:
    """Without a policy there is no route at all."""
    async with client.sandbox(IMAGE) as sandbox:
        assert await run(sandbox, GET, far.addresses[1], "x", "/") == "failed OSError"
        assert (await sandbox.network()).network is None
        assert (await sandbox.info()).network is None


async def test_names_must_agree(client: dsec.DSecClient, far: FarSide) -> None:
    """An address that no allowed name has, a host or TLS name that is another than the address's, none at all, and
    HTTP/2 or something unreadable without TLS do not pass where names decide.
    """
    async with client.sandbox(IMAGE, network={"pypi": True}) as sandbox:
        one, two = far.addresses[1:3]
        await run(sandbox, LOOK, "pkg.pypi.test")
        assert (await run(sandbox, GET, one, "other.test", "/")).startswith("403")
        assert (await run(sandbox, GET, one, one, "/")).startswith("403")
        assert (await run(sandbox, GET, two, "pkg.pypi.test", "/")).startswith("403")
        assert (await run(sandbox, TLS, one, "pkg.pypi.test")).startswith("inside")
        for address, name in ((one, "other.test"), (one, ""), (two, "pkg.pypi.test")):
            assert (await run(sandbox, TLS, address, name)).startswith("failed"), (address, name)
        for said in ("PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n", "\\x00\\x01\\x02", "\\x16\\x03\\x01\\x00\\x00"):
            assert await run(sandbox, RAW, one, "80", said) in ("failed ConnectionResetError", "b''"), said
        reasons = {each.reason for each in (await sandbox.events()).events}
        assert reasons >= {
            "policy", "names_disagree", "no_name", "http2_cleartext", "unknown_protocol", "malformed",
        }  # fmt: skip


async def test_rebinding_and_metadata(client: dsec.DSecClient) -> None:
    """A name that leads to the node, a private network or the metadata address has no addresses, and these are not
    reached by number either.
    """
    async with client.sandbox(IMAGE, network="open") as sandbox:
        for name in ("rebind.pypi.test", "meta.pypi.test"):
            assert (await run(sandbox, LOOK, name)).startswith("none")
        for address in ("169.254.169.254", "10.255.255.1", "192.168.0.1", "::ffff:10.0.0.1"):
            assert (await run(sandbox, GET, address, "x", "/")).startswith("failed"), address
        found = (await sandbox.events()).events
        assert {each.reason for each in found} == {"protected_address"}


async def test_the_node_is_out_of_reach(client: dsec.DSecClient, far: FarSide) -> None:
    """Services of the node's host, on whatever address of it, are not reached, with every rule that a caller can
    write.
    """
    listener = await asyncio.start_server(lambda _, writer: writer.close(), "0.0.0.0", 0)
    port = listener.sockets[0].getsockname()[1]
    wide = dsec.Network(rules=(dsec.NetworkRule(action="allow", addresses=far.range),), default="allow")
    async with client.sandbox(IMAGE, network=wide) as sandbox:
        assert await run(sandbox, RAW, far.near, str(port), "x") in ("failed ConnectionResetError", "b''")
        assert [each.reason for each in (await sandbox.events()).events] == ["protected_address"]
    listener.close()


async def test_other_resolvers_and_questions(client: dsec.DSecClient, far: FarSide) -> None:
    """Whichever name server a program asks, by UDP or TCP, the node's answers; no other type is; no other UDP
    passes.
    """
    script = """
import socket, struct
def ask(kind, tcp):
    labels = b"".join(bytes([len(each)]) + each for each in b"pkg.pypi.test".split(b"."))
    packet = struct.pack("!6H", 7, 256, 1, 0, 0, 0) + labels + b"\\0" + struct.pack("!2H", kind, 1)
    if tcp:
        with socket.create_connection(("8.8.8.8", 53), 10) as conn:
            conn.sendall(struct.pack("!H", len(packet)) + packet)
            answer = conn.recv(1000)[2:]
    else:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as conn:
            conn.settimeout(10)
            conn.connect(("8.8.8.8", 53))
            conn.send(packet)
            answer = conn.recv(1000)
    _, flags, _, count, _, _ = struct.unpack("!6H", answer[:12])
    return flags & 15, count
print([ask(kind, tcp) for kind, tcp in ((1, False), (1, True), (16, False), (65, False))])
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
    other.settimeout(10)
    other.connect(("8.8.8.8", 443))
    try:
        print(other.send(b"x"))
    except OSError as error:
        print(type(error).__name__)
"""
    async with client.sandbox(IMAGE, network={"pypi": True}) as sandbox:
        assert await run(sandbox, script) == "[(0, 1), (0, 1), (5, 0), (0, 0)]\nPermissionError"


async def test_a_sandbox_cannot_change_it(client: dsec.DSecClient) -> None:
    """Root inside can neither add a route nor open a raw socket, and its own ports are its own."""
    script = """
import socket
for family, kind, protocol in ((socket.AF_INET, socket.SOCK_RAW, 1), (socket.AF_PACKET, socket.SOCK_RAW, 0)):
    try:
        socket.socket(family, kind, protocol)
        print("made")
    except OSError:
        print("refused")
own = socket.create_server(("", 443))
near = socket.create_connection(("127.0.0.1", 443))
own.accept()
print("own")
"""
    async with client.sandbox(IMAGE, network="open") as sandbox:
        assert await run(sandbox, script) == "refused\nrefused\nown"
        done = await sandbox.run_shell("ip route del local default dev lo || nft flush ruleset")
        assert done.exit_code != 0


async def test_servers_that_speak_first(client: dsec.DSecClient, far: FarSide) -> None:
    """A connection on which the server speaks first passes by the name that was looked up, each side may end alone,
    and of much that is sent at once every byte is counted, once.
    """
    script = """
import socket
with socket.create_connection(("pkg.pypi.test", 2525), 30) as conn:
    assert conn.recv(6) == b"hello\\n"
    conn.sendall(b"x" * 3_000_000)
    conn.shutdown(socket.SHUT_WR)
    got = b"".join(iter(lambda: conn.recv(1 << 16), b""))
    print(len(got), got[-4:])
"""
    rule = dsec.NetworkRule(action="allow", domain="pkg.pypi.test", ports=(2525,))
    async with client.sandbox(IMAGE, network=dsec.Network(rules=(rule,))) as sandbox:
        assert await run(sandbox, script) == r"3000004 b'bye\n'"
        info = await sandbox.network()
        assert (info.sent_bytes, info.received_bytes) == (3_000_000, 3_000_010)


async def test_change_while_connected(client: dsec.DSecClient, node: RunningNode, far: FarSide) -> None:
    """A policy can be changed at any time, also of a sandbox without one: open connections that fit stay, others are
    cut, and it holds after the death of every part.
    """
    hold = f"""
import socket, sys
conn = socket.create_connection(("{far.addresses[1]}", 2525), 30)
print(conn.recv(6), flush=True)
try:
    print("ended", conn.recv(1), flush=True)
except OSError as error:
    print("cut", flush=True)
"""
    async with client.sandbox(IMAGE) as sandbox:
        await sandbox.set_network("open")
        running = await sandbox.spawn("python3", "-c", hold)
        lines = running.lines()
        assert (await anext(lines)).startswith("b'hello")
        await sandbox.set_network(dsec.Network(default="allow", max_connections=7))
        info = await sandbox.set_network("none")
        assert info.network == (await sandbox.info()).network == dsec.Network()
        assert (await anext(lines)).strip() == "cut"
        for part in ("proxy", "runtime", "edge"):
            node.kill(part)
            assert (await run(sandbox, GET, far.addresses[1], "x", "/")).startswith("failed"), part
        await sandbox.set_network({"pypi": True})
        for part in ("proxy", "runtime", "edge"):
            node.kill(part)
            got = await run(sandbox, GET, "pkg.pypi.test", "pkg.pypi.test", "/")
            assert got.startswith("200"), part
        reasons = [each.reason for each in (await sandbox.events()).events]
        assert reasons.count("changed") == 1


async def test_each_request_of_a_connection_is_checked(client: dsec.DSecClient, far: FarSide) -> None:
    """On one connection the allowed host is answered and another one is refused, however often they change."""
    script = """
import http.client
for hosts in (["pkg.pypi.test", "cdn.pypi.test", "pkg.pypi.test"], ["pkg.pypi.test", "other.test"]):
    conn = http.client.HTTPConnection("pkg.pypi.test", 80, timeout=20)
    for host in hosts:
        conn.request("GET", "/", headers={"Host": host})
        answer = conn.getresponse()
        answer.read()
        print(answer.status)
"""
    async with client.sandbox(IMAGE, network={"pypi": True}) as sandbox:
        assert (await run(sandbox, script)).split() == ["200", "200", "200", "200", "403"]


async def test_limits(client: dsec.DSecClient, far: FarSide) -> None:
    """Beyond its connections and its bytes a sandbox gets no further, and it is on record."""
    few = dsec.Network(default="allow", max_connections=1)
    script = f"""
import socket
first = socket.create_connection(("{far.addresses[1]}", 2525), 20)
print(first.recv(6))
try:  # the refusal may come before the connection is known to be one
    second = socket.create_connection(("{far.addresses[1]}", 2525), 20)
    print(second.recv(6))
except OSError as error:
    print(type(error).__name__)
"""
    async with client.sandbox(IMAGE, network=few) as sandbox:
        assert (await run(sandbox, script)).split()[-1] in ("ConnectionResetError", "b''")
        await sandbox.set_network(dsec.Network(default="allow", max_bytes=100_000))
        assert (await run(sandbox, GET, far.addresses[1], "x", "/bytes/1000000")) != "200"
        assert (await run(sandbox, GET, far.addresses[1], "x", "/")).startswith("failed")
        reasons = {each.reason for each in (await sandbox.events()).events}
        assert reasons == {"connections", "bytes"}


async def test_events_stay_after_the_end(client: dsec.DSecClient) -> None:
    """What was refused and counted can be read of a sandbox that has ended, a flood only in its latest part."""
    async with client.sandbox(IMAGE, network={}) as sandbox:
        await run(
            sandbox,
            "import socket\nfor n in range(400):\n s = socket.socket()\n s.connect_ex(('1.1.1.1', 80))\n s.close()",
        )
        await run(sandbox, GET, "1.1.1.1", "x", "/")
        found = await sandbox.events()
        assert len(found.events) <= 256
        total = int(found.next.split("-")[0])
        assert found.dropped == total - len(found.events)
    found = await sandbox.events()
    total = int(found.next.split("-")[0])
    assert total >= 300 and 0 < len(found.events) <= 64
    assert (await sandbox.network()).refused == total
