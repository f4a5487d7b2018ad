"""Attacks on a node's networks from inside: against the proxy, the resolver and what they trust. Every server that is
reached is in a namespace of the test's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.integration.far_side import GET, FarSide, certificate_in, far_side

import dsec
from dsec.testing.node import RunningNode, private_node

from .inside import IMAGE
from .reaching import GOOD, HELLO, HOLD, HTTP2, RAW, REFUSED, WEBSOCKET, held, policy, reasons, refusals, run

pytestmark = [pytest.mark.node, pytest.mark.anyio]

NAMES = {
    "one.good.test": ["@1"],
    "two.good.test": ["@1", "@2"],
    "last.good.test": ["@2"],
    "cdn.good.test": ["=edge.cdn.test"],
    "edge.cdn.test": ["@1"],
    "six.good.test": ["@6"],
    "other.test": ["@1"],
}
GROUPS = """
[network.groups.good]
domains = ["*.good.test"]
"""


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarSide]:
    """The world."""
    with far_side(NAMES, certificate_in(tmp_path_factory.mktemp("far"))) as made:
        yield made


@pytest.fixture(scope="module")
def node(store: Path, far: FarSide) -> Iterator[RunningNode]:
    """A node whose operator lets sandboxes reach the far side."""
    with private_node(store, settings=far.settings(GROUPS)) as running:
        yield running


@pytest.fixture
async def client(node: RunningNode) -> AsyncIterator[dsec.DSecClient]:
    """Of that node."""
    async with node.client() as made:
        yield made


@pytest.mark.parametrize("how", ["4", "6", "u"])
async def test_a_held_port_harms_its_sandbox_alone(
    client: dsec.DSecClient, node: RunningNode, far: FarSide, how: str
) -> None:
    """A program that holds the port in which networks end keeps its own sandbox without one, which is said and
    changes nothing; whatever dies, the others have theirs. Once it is gone its sandbox gets one.
    """
    async with client.sandbox(IMAGE) as hostile, client.sandbox(IMAGE, network={"good": True}) as other:
        holds = await hostile.spawn("python3", "-c", HOLD, how)
        assert (await anext(holds.lines())).strip() == "holds"
        with pytest.raises(dsec.Conflict, match="61953"):
            await hostile.set_network("open")
        assert (await hostile.network()).network is None
        for part in ("edge", "runtime", "proxy"):
            node.kill(part)
            got = await run(other, GET, "one.good.test", "one.good.test", "/")
            assert got == f"200 one.good.test {far.addresses[1]}", part
            assert (await run(hostile, GET, far.addresses[1], "x", "/")).startswith("failed"), part
        assert (await hostile.network()).network is None
        await holds.kill(grace_s=0)
        await hostile.set_network("open")
        assert await run(hostile, GET, far.addresses[1], "x", "/") == f"200 x {far.addresses[1]}"


async def test_requests_in_disguise(client: dsec.DSecClient, far: FarSide) -> None:
    """A request to another host does not pass as a shell's first line, behind empty lines or spaces, or with a method
    that is none, neither on a shared port nor on one that a rule names.
    """
    request = " / HTTP/1.1\\r\\nHost: other.test\\r\\n\\r\\n"
    disguises = [
        "SSH-2.0-x" + request, "\\r\\n" * 9 + "GET" + request, " GET" + request, "G" * 40 + request,
        "GET\\x0b/ HTTP/1.1\\r\\nHost: other.test\\r\\n\\r\\n",
    ]  # fmt: skip
    ports = policy(("allow", "*.good.test", None, (80, 8081)))
    async with client.sandbox(IMAGE, network=ports) as sandbox:
        for name in ("one.good.test", "last.good.test"):
            await run(sandbox, GET, name, name, "/")
        for said in disguises:
            for address, port in ((far.addresses[1], "80"), (far.addresses[2], "8081")):
                whole = await run(sandbox, RAW, address, port, said)
                assert whole in REFUSED or b"403 Forbidden" in whole.encode(), (said, port, whole)
                split = await run(sandbox, RAW, address, port, said[:12], said[12:])
                assert split in REFUSED or b"403 Forbidden" in split.encode(), (said, port, split)
        assert await run(sandbox, RAW, far.addresses[1], "80", "SSH-2.0-true\\r\\n") in REFUSED
        refused = await reasons(sandbox)
        assert len(refused) == 4 * len(disguises) + 1
        assert set(refused) == {"malformed", "names_disagree", "unknown_protocol", "policy"} - (
            {"names_disagree", "policy"} - set(refused)
        )


async def test_a_websocket_is_held_to_its_policy(client: dsec.DSecClient, far: FarSide) -> None:
    """A connection that became a WebSocket counts as one, passes while it fits, and is cut when it does not."""
    said = WEBSOCKET.format("one.good.test")
    async with client.sandbox(IMAGE, network=policy(GOOD, max_connections=1)) as sandbox:
        async with held(sandbox, far.addresses[1], 80, said) as ask:
            assert await ask() == "answered"
            assert await run(sandbox, GET, far.addresses[1], "one.good.test", "/") in (
                "failed ConnectionResetError", "failed RemoteDisconnected",
            )  # fmt: skip
            assert await reasons(sandbox) == ["connections"]
            await sandbox.set_network(policy(GOOD, max_connections=2))
            assert await ask() == "answered"
            await sandbox.set_network(policy(("deny", "one.good.test", None, ()), GOOD))
            assert await ask() == "cut"
        assert await reasons(sandbox) == ["connections", "changed"]


async def test_a_denial_reaches_what_was_answered_before(client: dsec.DSecClient, far: FarSide) -> None:
    """When the name to which an allowed name leads is denied, open connections are cut, and neither the address that
    was answered nor another question leads there any more.
    """
    async with client.sandbox(IMAGE, network=policy(GOOD)) as sandbox:
        assert (
            await run(sandbox, GET, "cdn.good.test", "cdn.good.test", "/") == f"200 cdn.good.test {far.addresses[1]}"
        )
        async with held(sandbox, "cdn.good.test", 80, WEBSOCKET.format("cdn.good.test")) as ask:
            assert await ask() == "answered"
            await sandbox.set_network(policy(("deny", "edge.cdn.test", None, ()), GOOD))
            assert await ask() == "cut"
        assert (await run(sandbox, GET, far.addresses[1], "cdn.good.test", "/")).startswith("403")
        assert await run(sandbox, GET, "cdn.good.test", "cdn.good.test", "/") == "failed gaierror"
        assert await run(sandbox, HELLO, far.addresses[1], "cdn.good.test", "whole") in REFUSED
        assert await refusals(sandbox) == ["changed", "policy", "policy"]


async def test_another_address_is_judged_too(client: dsec.DSecClient, far: FarSide) -> None:
    """Where an allowed name's other address is taken because the dialled one does not answer, requests to other names
    do not go there, and a policy that denies it cuts the connection.
    """
    script = """
import http.client, sys
conn = http.client.HTTPConnection(sys.argv[1], 8081, timeout=40)
for host in sys.argv[2:]:
    conn.request("GET", "/", headers={"Host": host + ":8081"})
    answer = conn.getresponse()
    print(answer.status, answer.read().decode() if answer.status == 200 else "")
"""
    one, last = far.addresses[1:3]
    both = f"200 two.good.test:8081 {last}"
    async with client.sandbox(IMAGE, network=policy(GOOD)) as sandbox:
        got = await run(sandbox, script, one, "two.good.test", "one.good.test", "two.good.test")
        assert [line.strip() for line in got.splitlines()] == [both, "502", both]
        said = WEBSOCKET.format("two.good.test:8081")
        async with held(sandbox, one, 8081, said) as ask:
            assert await ask() == "answered"
            await sandbox.set_network(policy(("deny", None, f"{last}/32", ()), GOOD))
            assert await ask() == "cut"
        got = await run(sandbox, script, one, "two.good.test")
        assert got.strip() == "502"
        assert await reasons(sandbox) == ["unreachable", "changed", "unreachable"]


async def test_hellos(client: dsec.DSecClient, far: FarSide) -> None:
    """However a hello is cut, the name in it decides; one that hides its true name passes by rule only."""
    one = far.addresses[1]
    async with client.sandbox(IMAGE, network=policy(GOOD)) as sandbox:
        for how in ("whole", "bytes", "records"):
            assert await run(sandbox, HELLO, one, "one.good.test", how) == r"b'\x16'", how
            assert await run(sandbox, HELLO, one, "other.test", how) in REFUSED, how
        assert await run(sandbox, HELLO, one, "one.good.test", "encrypted") in REFUSED
        assert await reasons(sandbox) == ["policy"] * 3 + ["encrypted_hello"]
        await sandbox.set_network(policy(GOOD, ech="allow"))
        assert await run(sandbox, HELLO, one, "one.good.test", "encrypted") == r"b'\x16'"
        assert await run(sandbox, HELLO, one, "other.test", "encrypted") in REFUSED


async def test_http2_inside_tls(client: dsec.DSecClient, far: FarSide) -> None:
    """TLS passes as it is: client and server agree on HTTP/2 inside it and have several exchanges at once. Its name
    is held to the policy all the same.
    """
    async with client.sandbox(IMAGE, network=policy(GOOD)) as sandbox:
        asked = ("one.good.test", "two.good.test", "one.good.test")
        assert (await run(sandbox, HTTP2, "one.good.test", "one.good.test", *asked)).split() == ["h2", *["True"] * 3]
        done = await sandbox.exec("python3", "-c", HTTP2, far.addresses[1], "other.test", "one.good.test")
        assert done.exit_code != 0
        assert await reasons(sandbox) == ["policy"]


async def test_slow_and_idle(client: dsec.DSecClient, far: FarSide) -> None:
    """A beginning that does not go on is given up; a connection that passes may be silent for longer than that."""
    silent = policy(("allow", "*.good.test", None, (80, 2525)))
    async with client.sandbox(IMAGE, network=silent) as sandbox, held(sandbox, "one.good.test", 2525) as ask:
        assert await ask() == "answered"
        for said in ("GE", "\\x16\\x03\\x01\\x02\\x00\\x01", "SSH-2.0"):
            assert await run(sandbox, RAW, far.addresses[1], "80", said) in REFUSED
        assert await reasons(sandbox) == ["slow"] * 3
        assert await ask() == "answered"


async def test_the_other_family(client: dsec.DSecClient, far: FarSide) -> None:
    """IPv6 passes by the same rules, and no form in which it stands for IPv4 leads to what is protected."""
    async with client.sandbox(IMAGE, network=policy(GOOD)) as sandbox:
        assert await run(sandbox, GET, "six.good.test", "six.good.test", "/") == f"200 six.good.test {far.six}"
        assert (await run(sandbox, GET, far.six, "one.good.test", "/")).startswith("403")
        await sandbox.set_network("open")
        assert await run(sandbox, GET, far.six, "x", "/") == f"200 x {far.six}"
        ten = "".join(f"{int(each):02x}" for each in far.near.split("."))
        for address in (
            f"::ffff:{far.near}", f"64:ff9b::{far.near}", f"2002:{ten[:4]}:{ten[4:]}::1", far.six[:-1] + "1",
            "fe80::1", "fc00::1", "2001:db8::1", "::",
        ):  # fmt: skip
            assert not (await run(sandbox, RAW, address, "80", "x")).startswith("b'H"), address
        assert set((await reasons(sandbox))[1:]) == {"protected_address"}


async def test_addresses_written_as_names(client: dsec.DSecClient, far: FarSide) -> None:
    """What some reader takes for an address is no name: it is neither looked up nor passes as a host."""
    whole = int.from_bytes(bytes(int(each) for each in far.addresses[1].split(".")), "big")
    async with client.sandbox(IMAGE, network=policy(GOOD, default="allow")) as sandbox:
        await run(sandbox, GET, "one.good.test", "one.good.test", "/")
        for host in (str(whole), hex(whole), f"one.good.test@{far.addresses[1]}", "one.good.test,other.test", ""):
            answer = await run(sandbox, GET, far.addresses[1], host, "/")
            assert not answer.startswith("200"), (host, answer)
        assert set(await reasons(sandbox)) <= {"malformed", "names_disagree"}


async def test_an_allowance_that_was_taken_back(client: dsec.DSecClient, far: FarSide) -> None:
    """An address that was answered while its name was allowed is of no use once it is not."""
    async with client.sandbox(IMAGE, network=policy(GOOD)) as sandbox:
        assert (await run(sandbox, GET, "one.good.test", "one.good.test", "/")).startswith("200")
        await sandbox.set_network(policy(("allow", "last.good.test", None, ())))
        assert (await run(sandbox, GET, far.addresses[1], "one.good.test", "/")).startswith("403")
        assert await run(sandbox, GET, "one.good.test", "one.good.test", "/") == "failed gaierror"
        assert await run(sandbox, HELLO, far.addresses[1], "one.good.test", "whole") in REFUSED
        assert await refusals(sandbox) == ["policy"] * 2


async def test_nothing_but_tcp_and_names(client: dsec.DSecClient, far: FarSide) -> None:
    """Datagrams, echo requests and raw sockets go nowhere, for root too."""
    script = """
import socket
def attempt(make):
    try:
        make()
        print("went")
    except OSError:
        print("refused")
for family, address in ((socket.AF_INET, "8.8.8.8"), (socket.AF_INET6, "2001:4860:4860::8888")):
    udp = socket.socket(family, socket.SOCK_DGRAM)
    attempt(lambda: udp.sendto(b"x", (address, 443)))
    attempt(lambda: udp.sendto(b"x" * 60000, (address, 443)))
    protocol = 1 if family == socket.AF_INET else 58
    attempt(lambda: socket.socket(family, socket.SOCK_DGRAM, protocol))
    attempt(lambda: socket.socket(family, socket.SOCK_RAW, protocol))
"""
    async with client.sandbox(IMAGE, network="open") as sandbox:
        assert await run(sandbox, script) == "\n".join(["refused"] * 8)


async def test_a_rate_that_is_lifted_frees_who_waits(client: dsec.DSecClient, far: FarSide) -> None:
    """A connection that waits for a rate of bytes goes on at once when there is none any more."""
    slow = dsec.Network(default="allow", max_bytes_per_s=1)
    async with client.sandbox(IMAGE, network=slow) as sandbox:
        program = await sandbox.spawn("python3", "-c", GET, far.addresses[1], "x", "/bytes/100000")
        async with asyncio.timeout(60):
            while (await sandbox.network()).sent_bytes == 0:  # noqa: ASYNC110  (no event tells of it)
                await asyncio.sleep(0.02)
        await sandbox.set_network("open")
        assert (await program.wait()).stdout.startswith("200")
