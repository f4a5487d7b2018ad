"""An uplink in a namespace of a test's own, and what lies beyond it: servers of UDP and TCP on the far side."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import secrets
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:  # it also runs alone, as the servers
    from .far_side import FarSide

__all__ = ["METADATA", "PORTS", "Beyond", "beyond", "run_in"]

PORTS = (5000, 5005, 6000)
METADATA = "169.254.169.254"


def run_in(namespace: str, *argv: str) -> str:
    """What a program says in a network namespace."""
    done = subprocess.run(["ip", "netns", "exec", namespace, *argv], check=True, capture_output=True, text=True)
    return done.stdout


class Beyond:
    """``name``: the uplink's namespace. ``near``: its own address on the link, from which all comes that was routed.
    ``addresses`` are the servers', ``closed`` one more that no operator has opened.
    """

    def __init__(self, far: FarSide, number: int) -> None:
        self.far = far
        self.name = f"up{secrets.token_hex(3)}"
        self.near = f"10.{number}.0.1"
        self.gateway = f"10.{number}.0.2"
        self.addresses = far.addresses[1:]
        self.closed = f"10.{number}.0.3"

    def settings(self, more: str = "") -> str:
        """Of a node that has this uplink, and whose operator opens more than can be reached by it."""
        opened = [f"{each}/32" for each in (*self.far.addresses, self.near)]
        opened += ["169.254.0.0/16", "198.18.0.0/15", "127.0.0.0/8"]
        return (
            f'[network]\nresolvers = ["{self.far.resolver}"]\nallowed_ranges = {json.dumps(opened)}\n'
            f'[network.uplink]\ninterface = "far"\nnamespace = "{self.name}"\n{more}'
        )

    def links(self) -> list[str]:
        """Links of nodes beside the uplink, by name."""
        return [each for each in self.left() if each.startswith("dsec-")]

    def left(self) -> list[str]:
        """Links, packet filters and remembered flows of nodes beside the uplink."""
        links = [
            line.split(":")[1].strip().split("@")[0] for line in run_in(self.name, "ip", "-o", "link").splitlines()
        ]
        tables = run_in(self.name, "nft", "list", "tables").splitlines()
        flows = run_in(self.name, "cat", "/proc/net/nf_conntrack").splitlines()
        routed = [each for each in flows if each.split("src=")[1].startswith("198.18.")]
        return [*(each for each in (*links, *tables) if "dsec" in each), *routed]


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True)


@contextlib.contextmanager
def beyond(far: FarSide) -> Iterator[Beyond]:
    """The namespace of an uplink that leads to the far side, and servers there."""
    made = Beyond(far, 192 + secrets.randbelow(63))
    _run("ip", "netns", "add", made.name)
    try:
        here = ("ip", "-n", made.name)
        there = ("ip", "-n", far.name)
        _run(*here, "link", "add", "far", "type", "veth", "peer", "name", "near", "netns", far.name)
        _run(*here, "addr", "add", f"{made.near}/24", "dev", "far")
        for address in (f"{made.gateway}/24", f"{made.closed}/24", f"{METADATA}/32"):
            _run(*there, "addr", "add", address, "dev", "near")
        for each in ((*here, "link", "set", "lo", "up"), (*here, "link", "set", "far", "up")):
            _run(*each)
        _run(*there, "link", "set", "near", "up")
        # The far side would find its way to links of sandboxes, if it were let.
        _run(*there, "route", "add", "198.18.0.0/15", "via", made.near)
        for address in (*far.addresses, METADATA):
            _run(*here, "route", "add", f"{address}/32", "via", made.gateway)
        run_in(made.name, "sysctl", "-q", "-w", "net.ipv4.conf.far.forwarding=1")
        servers = [_serve(far.name, *far.addresses[1:], made.closed, METADATA), _serve(made.name, made.near)]
        try:
            for server in servers:
                assert server.stdout is not None
                assert server.stdout.readline() == b"ready\n"
            yield made
        finally:
            for server in servers:
                server.kill()
                server.wait()
                if server.stdout is not None:
                    server.stdout.close()
    finally:
        _run("ip", "netns", "del", made.name)


def _serve(namespace: str, *addresses: str) -> subprocess.Popen[bytes]:
    argv = ["ip", "netns", "exec", namespace, sys.executable, __file__, *addresses]
    return subprocess.Popen(argv, stdout=subprocess.PIPE)


class _Echo(asyncio.DatagramProtocol):
    """Answers with who asked, as it sees it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._transport.sendto(f"{addr[0]} {len(data)}".encode(), addr)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Says who has called, then echoes."""
    with contextlib.suppress(ConnectionError):
        writer.write(f"{writer.get_extra_info('peername')[0]}\n".encode())
        while part := await reader.read(1000):
            writer.write(part)
            await writer.drain()
    writer.close()


async def _main(addresses: list[str]) -> None:
    loop = asyncio.get_running_loop()
    for address in addresses:
        for port in PORTS:
            await loop.create_datagram_endpoint(_Echo, local_addr=(address, port))
            await asyncio.start_server(_answer, address, port)
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("addresses", nargs="+")
    asyncio.run(_main(parser.parse_args().addresses))
