"""Attacks on links, the way out for other protocols than TCP. All that is sent ends in namespaces of a test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.integration.beyond import METADATA, Beyond, beyond, run_in
from tests.integration.far_side import FarSide, far_side

import dsec
from dsec.testing.node import RunningNode, private_node

from .inside import IMAGE, attempts, stopped
from .linking import (
    CALL,
    CONFIGURATION,
    LONG,
    PING,
    REFUSED,
    SEND,
    SHORT,
    Route,
    dropped,
    entered,
    held,
    routed,
    send,
)
from .reaching import run

pytestmark = [pytest.mark.node, pytest.mark.anyio]

NAMES = {"one.good.test": ["@1"]}


@pytest.fixture(scope="module")
def far() -> Iterator[FarSide]:
    """The world as the proxy reaches it."""
    with far_side(NAMES) as made:
        yield made


@pytest.fixture(scope="module")
def up(far: FarSide) -> Iterator[Beyond]:
    """The world as links reach it."""
    with beyond(far) as made:
        yield made


@pytest.fixture(scope="module")
def node(store: Path, up: Beyond) -> Iterator[RunningNode]:
    """A node with an uplink, of which nothing is left beside it."""
    with private_node(store, settings=up.settings()) as running:
        yield running
    assert up.left() == []


@pytest.fixture
async def client(node: RunningNode, up: Beyond) -> AsyncIterator[dsec.DSecClient]:
    """Of that node; with its last sandbox all links and packet filters are gone."""
    async with node.client() as made:
        yield made
    node.stop_all()
    assert up.left() == []


async def test_a_range_of_ports(client: dsec.DSecClient, up: Beyond) -> None:
    """Datagrams to what a rule names are answered, large ones too; those to other ports, addresses and families do
    not leave their socket and are on record. TCP to the same place goes to the proxy, which knows no rule for it.
    """
    one, other = up.addresses
    async with client.sandbox(IMAGE, network=routed(("udp", f"{one}/32", ("5000-5010",)))) as sandbox:
        for port in (5000, 5005):
            assert await send(sandbox, one, port) == f"{up.near} 1"
        assert await send(sandbox, one, 5000, "", "9000") == f"{up.near} 9000"
        assert await dropped(sandbox) == {}
        for address, port in ((one, 6000), (one, 4999), (other, 5000), (up.far.six, 5000)):
            assert await send(sandbox, address, port) == REFUSED, (address, port)
        assert (await dropped(sandbox))["policy"] >= 4
        assert await run(sandbox, PING, one, SHORT, "8") == REFUSED
        assert (await run(sandbox, CALL, one, "5000")).startswith("refused")
        assert [each.reason for each in (await sandbox.events()).events if each.kind == "connection"] == ["policy"]


async def test_names_and_tcp_as_before(client: dsec.DSecClient, up: Beyond) -> None:
    """Beside a rule for all datagrams names are looked up at the node's resolver, and TCP passes by the proxy."""
    rules = (
        dsec.NetworkRule(action="allow", domain="*.good.test"),
        dsec.NetworkRule(action="allow", protocol="udp"),
    )
    script = "import socket; print(socket.gethostbyname('one.good.test'))"
    async with client.sandbox(IMAGE, network=dsec.Network(rules=rules)) as sandbox:
        assert await run(sandbox, script) == up.addresses[0]
        assert await run(sandbox, CALL, "one.good.test", "80") == "HTTP/1.1 403 Forbidden"
        assert await send(sandbox, up.addresses[1], 6000) == f"{up.near} 1"
        # Port 53 of whoever is asked is the node's resolver, which answers nothing that is no question.
        assert await send(sandbox, up.far.resolver, 53, wait=SHORT) == "refused TimeoutError"


async def test_echoes(client: dsec.DSecClient, up: Beyond) -> None:
    """An echo request is answered where a rule says so, and is all that there is of ICMP."""
    one, other = up.addresses
    async with client.sandbox(IMAGE, network=routed(("icmp", f"{one}/32", ()))) as sandbox:
        assert await run(sandbox, PING, one, LONG, "8") == "type 0"
        assert await run(sandbox, PING, other, SHORT, "8") == REFUSED
        # The other question that such a socket takes, by which interfaces are asked about (RFC 8335).
        assert await run(sandbox, PING, one, SHORT, "42") == REFUSED
        assert await send(sandbox, one, 5000) == REFUSED
        raw = "import socket\ntry:\n socket.socket(2, 3, 1)\nexcept OSError as error:\n print(type(error).__name__)"
        assert await run(sandbox, raw) == "PermissionError"


async def test_everything_of_a_range(client: dsec.DSecClient, up: Beyond) -> None:
    """A rule for any protocol takes TCP past the proxy, unread; a rule for TCP before it keeps its part with the
    proxy.
    """
    one, other = up.addresses
    rules = (
        dsec.NetworkRule(action="deny", addresses=f"{one}/32", ports=(5005,)),
        dsec.NetworkRule(action="allow", addresses=f"{one}/32", ports=(6000,)),
        dsec.NetworkRule(action="allow", protocol="any", addresses=f"{one}/32"),
    )
    async with client.sandbox(IMAGE, network=dsec.Network(rules=rules)) as sandbox:
        assert await run(sandbox, CALL, one, "5000") == up.near
        assert await run(sandbox, CALL, one, "6000") == up.far.near
        assert (await run(sandbox, CALL, one, "5005")).startswith("refused")
        assert (await run(sandbox, CALL, other, "5000")).startswith("refused")
        assert await send(sandbox, one, 6000) == f"{up.near} 1"
        assert await run(sandbox, PING, one, LONG, "8") == "type 0"
        assert (await sandbox.network()).connections == 1


async def test_forged_sources(client: dsec.DSecClient, up: Beyond) -> None:
    """Nothing leaves from an address that is not the link's, however it is asked for."""
    one = up.addresses[0]
    async with client.sandbox(IMAGE, network=routed(("udp", None, ()))) as sandbox:
        assert await send(sandbox, one, 5000, "192.0.2.1", wait=SHORT) == REFUSED
        assert await send(sandbox, one, 5000, "pktinfo", "192.0.2.1", wait=SHORT) == REFUSED
        assert await dropped(sandbox) == {"source": 2}
        for source in (one, up.near, "198.18.0.77", "127.0.0.1"):
            assert (await send(sandbox, one, 5000, source, wait=SHORT)).startswith("refused"), source
            assert (await send(sandbox, one, 5000, "pktinfo", source, wait=SHORT)).startswith("refused"), source
        assert await send(sandbox, one, 5000) == f"{up.near} 1"


async def test_no_way_but_out(client: dsec.DSecClient, up: Beyond) -> None:
    """With rules for everything, of what the operator has opened too, no packet gets to the uplink's own addresses,
    to metadata, to what is not opened or to another sandbox: neither by the sandbox's packet filter nor, without it,
    by that beside the uplink.
    """
    everything = routed(("any", None, ()))
    async with (
        client.sandbox(IMAGE, network=everything) as one, client.sandbox(IMAGE, network=everything) as other,
        entered(one) as inside, entered(other) as there,
    ):  # fmt: skip
        own = [each("ip", "-4", "-o", "addr", "show", "dev", "eth0").split()[3][:-3] for each in (inside, there)]
        for address in (METADATA, up.closed, own[1], "127.0.0.1", "224.0.0.1", "255.255.255.255"):
            assert (await send(one, address, 5000, wait=SHORT)).startswith("refused"), address
        # By TCP these are the proxy's, which would ask the machine's own network for what the node has opened.
        for address in (up.closed, "127.0.0.1", "224.0.0.1", "255.255.255.255"):
            assert not (await run(one, CALL, address, "5000")).startswith(up.near), address
        # By name of the interface the packet filter beside the uplink is all that there is.
        assert await send(one, up.near, 5000, wait=SHORT) == "refused TimeoutError"
        inside("nft", "delete", "table", "inet", "dsec")
        ask = ("python3", "-c", SEND)
        for address in (up.near, METADATA, own[1]):
            assert inside(*ask, address, "5000", own[0], SHORT) == "refused TimeoutError", address
        inside("ip", "addr", "add", f"{own[1]}/32", "dev", "lo")
        assert inside(*ask, up.addresses[0], "5000", own[1], SHORT) == "refused TimeoutError"
        assert inside(*ask, up.addresses[0], "5000", own[0], LONG) == f"{up.near} 1"


async def test_nobody_comes_in(client: dsec.DSecClient, up: Beyond) -> None:
    """What was not asked for does not arrive: neither from a server's other port, nor at the link's own address, nor
    from beside the uplink.
    """
    one = up.addresses[0]
    say = """
import socket, sys
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind((sys.argv[1], 0))
udp.sendto(b"x", (sys.argv[2], int(sys.argv[3])))
"""
    async with (
        client.sandbox(IMAGE, network=routed(("udp", f"{one}/32", (5000,)))) as sandbox,
        held(sandbox, "udp", one, 5000) as (ask, port), entered(sandbox) as inside,
    ):  # fmt: skip
        assert await ask("send") == "answered"
        own = inside("ip", "-4", "-o", "addr", "show", "dev", "eth0").split()[3][:-3]
        for namespace, source, to in (
            (up.far.name, one, up.near), (up.far.name, one, own), (up.name, up.near, own),
        ):  # fmt: skip
            run_in(namespace, "python3", "-c", say, source, to, str(port))
            assert await ask("hear") == "cut", (namespace, to)
        assert await ask("send") == "answered"


async def test_taken_back(client: dsec.DSecClient, up: Beyond, node: RunningNode) -> None:
    """A rule that is taken back takes what it had let out with it, at once and both ways; with the last one the link
    is gone, and may come back. A sandbox without such rules has nothing but its loopback interface.
    """
    one, other = up.addresses
    both = routed(("any", f"{one}/32", ()), ("udp", f"{other}/32", ()))
    async with client.sandbox(IMAGE, network=both) as sandbox, entered(sandbox) as inside:
        links = "ls /sys/class/net"
        async with held(sandbox, "udp", one, 5000) as (udp, _), held(sandbox, "tcp", one, 5000) as (tcp, _):
            assert (await udp("send"), await tcp("send")) == ("answered", "answered")
            await sandbox.set_network(routed(("udp", f"{other}/32", ())))
            assert (await udp("send"), await tcp("send")) == ("cut", "cut")
            assert await send(sandbox, other, 5000) == f"{up.near} 1"
            await sandbox.set_network(both)
            assert await udp("send") == "answered"
        assert (await sandbox.run_shell(links)).stdout.split() == ["eth0", "lo"]
        assert len(up.links()) == 1
        for policy in ("open", "none"):
            await sandbox.set_network(policy)
            assert await send(sandbox, one, 5000) == REFUSED
            assert inside("ip", "-o", "link").count("\n") == 0
            assert up.left() == []
        await sandbox.set_network(both)
        assert await send(sandbox, one, 5000) == f"{up.near} 1"


async def test_as_many_connections(client: dsec.DSecClient, up: Beyond) -> None:
    """There are no more connections at a time than the policy says, so that no table of the kernel's is filled."""
    script = """
import socket, sys
went = 0
for _ in range(40):
    udp = socket.socket(2, 2)
    try:
        udp.sendto(b"x", (sys.argv[1], 5000))
        went += 1
    except OSError:
        pass
print(went)
"""
    async with client.sandbox(IMAGE, network=routed(("udp", None, ()), max_connections=9)) as sandbox:
        assert int(await run(sandbox, script, up.addresses[0])) == 9
        assert await dropped(sandbox) == {"connections": 31}


async def test_connections_one_after_the_other(client: dsec.DSecClient, up: Beyond) -> None:
    """What is over is remembered for two minutes beside the uplink: no loop of connections fills that table."""
    script = """
import socket, sys
went = 0
for _ in range(30):
    try:
        socket.create_connection((sys.argv[1], 5000), 0.2).close()
        went += 1
    except OSError:
        pass
print(went)
"""
    async with client.sandbox(IMAGE, network=routed(("any", None, ()), max_connections=9)) as sandbox:
        assert 9 <= int(await run(sandbox, script, up.addresses[0])) < 30
        assert (await dropped(sandbox))["connections"] > 0


async def test_root_inside(client: dsec.DSecClient, up: Beyond) -> None:
    """Root in the sandbox changes neither its link nor addresses, routes, neighbours, packet filter or settings of
    it.
    """
    network = routed(("udp", f"{up.addresses[0]}/32", (5000,)))
    async with client.sandbox(IMAGE, network=network) as sandbox, entered(sandbox) as inside:

        def state() -> list[str]:
            return [
                inside("nft", "list", "ruleset"),
                inside("ip", "addr"),
                inside("ip", "route", "show", "table", "all"),
            ]

        before = state()
        found = await attempts(sandbox, CONFIGURATION)
        assert [name for name, result in found.items() if not stopped(result)] == []
        assert state() == before
        assert await send(sandbox, up.addresses[0], 5000) == f"{up.near} 1"


@pytest.mark.parametrize("part", ["runtime", "edge", "proxy"])
async def test_deaths(client: dsec.DSecClient, up: Beyond, node: RunningNode, part: str) -> None:
    """The rules hold whatever dies, open sockets live on, and what was dropped is on record afterwards. A change and
    the end come through after it.
    """
    one, other = up.addresses
    async with (
        client.sandbox(IMAGE, network=routed(("udp", f"{one}/32", (5000,)))) as sandbox,
        held(sandbox, "udp", one, 5000) as (ask, _),
    ):
        assert await ask("send") == "answered"
        node.kill(part)
        assert await send(sandbox, one, 6000) == REFUSED
        assert await send(sandbox, one, 5000) == f"{up.near} 1"
        assert await ask("send") == "answered"
        assert (await dropped(sandbox))["policy"] == 1
        await sandbox.set_network(routed(("udp", f"{other}/32", (5000,))))
        assert await ask("send") == "cut"
        assert await send(sandbox, other, 5000) == f"{up.near} 1"


async def test_halves_are_swept(client: dsec.DSecClient, up: Beyond, node: RunningNode) -> None:
    """A link that is nobody's is removed by the next runtime; one that was lost is made again."""
    network = routed(("udp", None, ()))
    async with client.sandbox(IMAGE, network=network) as sandbox:
        (name,) = up.links()
        run_in(up.name, "ip", "link", "add", f"{name[:-1]}fff", "type", "veth", "peer", "name", "half")
        run_in(up.name, "ip", "link", "del", name)
        node.kill("runtime")
        await sandbox.set_network(routed(("udp", f"{up.addresses[0]}/32", ())))
        assert await send(sandbox, up.addresses[0], 5000) == f"{up.near} 1"
        assert up.links() == [name]


async def test_an_uplink_that_hands_nothing_on(client: dsec.DSecClient, up: Beyond) -> None:
    """Whoever asks for a link hears what is wrong with the uplink, and has nothing afterwards."""
    run_in(up.name, "sysctl", "-q", "-w", "net.ipv4.conf.far.forwarding=0")
    try:
        with pytest.raises(dsec.NodeError, match="forwarding"):
            async with client.sandbox(IMAGE, network=routed(("udp", None, ()))):
                pass
    finally:
        run_in(up.name, "sysctl", "-q", "-w", "net.ipv4.conf.far.forwarding=1")


async def test_a_node_without_an_uplink(store: Path, far: FarSide) -> None:
    """It names the setting, changes nothing, and no sandbox of it has an interface but the loopback."""
    with private_node(store, settings=far.settings()) as running:
        async with running.client() as other, other.sandbox(IMAGE, network="open") as sandbox:
            asked: list[Route] = [("udp", None, ()), ("icmp", None, ()), ("any", f"{far.addresses[0]}/32", ())]
            for each in asked:
                with pytest.raises(dsec.Unsupported, match=r"network\.uplink"):
                    await sandbox.set_network(routed(each))
            assert (await sandbox.network()).network == dsec.Network(default="allow")
            assert (await sandbox.run_shell("ls /sys/class/net")).stdout.split() == ["lo"]
            with pytest.raises(dsec.Unsupported, match=r"network\.uplink"):
                async with other.sandbox(IMAGE, network=routed(("udp", None, ()))):
                    pass
