"""A namespace behind a link, with servers of names, HTTP and bytes; and a node whose sandboxes may reach it."""

from __future__ import annotations

import contextlib
import json
import secrets
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import dsec
from dsec.testing.node import RunningNode, private_node
from dsec.testing.store import ensure_store

__all__ = ["DOMAIN", "LABELS", "PORT", "World", "open_world", "run_program"]

_STORE = Path("build/test-store").absolute()
_SOURCE = Path(__file__).with_name("load.c")
_PROGRAM = "/tmp/load"
LABELS = {"dsec-bench": "network"}
DOMAIN = "bench.test"
PORT = 9000
"""Where the far side echoes, sends and eats bytes."""


@dataclass(frozen=True)
class World:
    """The far side, the node and the program that loads it: here and, uploaded, in sandboxes."""

    number: int
    node: RunningNode
    client: dsec.DSecClient
    program: Path

    @property
    def range(self) -> str:
        """All addresses of the far side."""
        return f"10.{self.number}.0.0/17"

    def address(self, index: int) -> str:
        """That of ``name(index)``."""
        return f"10.{self.number}.{1 + index // 256}.{index % 256}"

    @staticmethod
    def name(index: int) -> str:
        """One of some thousands of names, each with an address of its own."""
        return f"n{index}.{DOMAIN}"

    def direct(self, *arguments: str) -> str:
        """What the program prints when it is run outside of every sandbox."""
        return subprocess.run([self.program, *arguments], check=True, capture_output=True, text=True).stdout

    async def equip(self, sandbox: dsec.Sandbox) -> None:
        """Put the program into a sandbox."""
        await sandbox.files.upload(self.program, Path(_PROGRAM))


async def run_program(sandbox: dsec.Sandbox, *arguments: str) -> str:
    """What the program prints in a sandbox that has it."""
    done = await sandbox.exec(_PROGRAM, *arguments)
    if not done.ok:
        refused = [(each.name, each.address, each.port, each.reason) for each in (await sandbox.events()).events]
        raise RuntimeError(f"{arguments}: {done.stderr[-300:]} {refused[-1:]}")
    return done.stdout


@contextlib.contextmanager
def _link(number: int) -> Iterator[str]:
    """A namespace with all of 10.NUMBER.0.0/17, led to over a link of the host."""
    name = f"bench{secrets.token_hex(3)}"
    near, far = f"10.{number}.255.1", f"10.{number}.255.2"
    _run("ip", "netns", "add", name)
    try:
        _run("ip", "link", "add", name, "type", "veth", "peer", "name", "far", "netns", name)
        _run("ip", "addr", "add", f"{near}/30", "dev", name)
        _run("ip", "link", "set", name, "up")
        for argv in (
            ("addr", "add", f"{far}/30", "dev", "far"),
            ("link", "set", "far", "up"),
            ("link", "set", "lo", "up"),
            ("route", "add", "local", f"10.{number}.0.0/17", "dev", "lo"),
        ):
            _run("ip", "-n", name, *argv)
        _run("ip", "route", "add", f"10.{number}.0.0/17", "via", far, "dev", name)
        yield name
    finally:
        _run("ip", "netns", "del", name)


@contextlib.contextmanager
def _served(namespace: str, program: Path, resolver: str) -> Iterator[None]:
    argv = ["ip", "netns", "exec", namespace, str(program), "serve", resolver]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as server:
        try:
            if server.stdout is None or server.stdout.readline() != b"ready\n":
                raise RuntimeError("the far side's servers do not come up")
            yield
        finally:
            server.kill()


@contextlib.asynccontextmanager
async def open_world(scratch: Path) -> AsyncIterator[World]:
    """The far side, with a node of its own beside the one that is up; needs root."""
    number = 64 + secrets.randbelow(128)
    resolver = f"10.{number}.0.2"
    settings = f"[network]\nresolvers = [{json.dumps(resolver)}]\nallowed_ranges = ['10.{number}.0.0/17']\n"
    program = scratch / "load"
    with _link(number) as namespace, private_node(ensure_store(_STORE), settings=settings, pool_mib=4096) as node:
        async with node.client(max_creates_in_flight=256) as client:
            await _compile(client, program)
            with _served(namespace, program, resolver):
                yield World(number, node, client, program)


async def _compile(client: dsec.DSecClient, program: Path) -> None:
    """By the image's own compiler, which is everywhere the same."""
    async with client.sandbox("dsec/debian:12") as sandbox:
        await sandbox.files.upload(_SOURCE, Path("/tmp/load.c"))
        done = await sandbox.exec("gcc", "-O2", "-static", "-pthread", "-o", _PROGRAM, "/tmp/load.c")
        if not done.ok:
            raise RuntimeError(f"the program could not be compiled: {done.stderr}")
        await sandbox.files.download(Path(_PROGRAM), program)


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True)
