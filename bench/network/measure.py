"""What a network costs a create, how fast it changes, and what goes through it. Nothing is asserted."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dsec
from bench.network.many import measure_many
from bench.network.world import DOMAIN, LABELS, PORT, World, open_world, run_program
from bench.record import Record
from bench.scenarios import together

__all__ = ["QUICK", "NetworkLoad", "measure_network"]

_SMALL: Mapping[str, Any] = {"cpu": (0.001, 2), "memory_mib": (4, 1024), "disk_mib": (1, 4096), "pids": (4, 1024)}
"""Requests so small that many are admitted: what is measured is not the queue."""
_MODES = {"down": "2", "up": "3"}
_THREADS = 16


@dataclass(frozen=True)
class NetworkLoad:
    """How much of each."""

    creates: int = 150
    changes: int = 300
    connects: int = 1_000
    seconds: float = 4.0
    many: int = 1_000


QUICK = NetworkLoad(20, 50, 100, 1.0, 50)
"""A look."""


async def measure_network(record: Record, load: NetworkLoad, scratch: Path, say: Callable[[str], None]) -> None:
    """Fill the record's ``network …`` scenarios, on a node and a far side of their own."""
    async with open_world(scratch) as world:
        args = dsec.SandboxArgs("dsec/debian:12", labels=LABELS, lifetime_s=1800, **_SMALL)
        named = _by_name(80, PORT)
        say("network: create")
        record.add("dsec", "network create", **await _creates(world, args, named, load.creates))
        say("network: change")
        record.add("dsec", "network change", await _changes(world, args, load.changes))
        async with (
            world.client.sandbox(args.replace(network=named)) as by_name,
            world.client.sandbox(args.replace(network=_by_address(world))) as by_address,
        ):
            both = {"by name": by_name, "by address": by_address}
            for sandbox in both.values():
                await world.equip(sandbox)
            say("network: connect")
            record.add("dsec", "network connect", **await _connects(world, both, load.connects))
            for way, mode in _MODES.items():
                say(f"network: bytes {way}")
                record.add("dsec", f"network {way}", **await _bulk(world, [*both.values()], mode, load.seconds))
            say("network: http")
            record.add("dsec", "network http", **await _http(world, both, load.seconds))
        say(f"network: {load.many} sandboxes")
        record.add("dsec", "network many", **await measure_many(world, args, load.many))


def _by_name(*ports: int) -> dsec.Network:
    return dsec.Network(rules=(dsec.NetworkRule(action="allow", domain=f"*.{DOMAIN}", ports=ports),))


def _by_address(world: World) -> dsec.Network:
    return dsec.Network(rules=(dsec.NetworkRule(action="allow", addresses=world.range),))


async def _creates(world: World, args: dsec.SandboxArgs, network: dsec.Network, count: int) -> dict[str, Any]:
    """Create → first exec, with and without a policy in turn; and the node's time for making a network."""
    taken: dict[str, list[float]] = {"without_s": [], "samples_s": [], "phase_s": []}
    for number in range(2 * count + 2):
        with_it = number % 2 == 1
        begun = time.perf_counter()
        sandbox = await world.client.sandbox(args.replace(network=network) if with_it else args)
        await sandbox.exec("true", check=True)
        seconds = time.perf_counter() - begun
        if number >= 2:  # the first of each is warmth
            taken["samples_s" if with_it else "without_s"].append(seconds)
            if with_it:
                taken["phase_s"].append((await sandbox.info()).phases_us["network"] / 1e6)
        await sandbox.stop()
    return taken


async def _changes(world: World, args: dsec.SandboxArgs, count: int) -> list[float]:
    """``set_network`` to one of two policies in turn."""
    taken = []
    policies = (_by_name(80), _by_name(443))
    async with world.client.sandbox(args.replace(network=policies[1])) as sandbox:
        for number in range(count):
            begun = time.perf_counter()
            await sandbox.set_network(policies[number % 2])
            taken.append(time.perf_counter() - begun)
    return taken


async def _looked_up(sandbox: dsec.Sandbox) -> None:
    """Let it ask for the name, as every program that dials one does; where addresses decide there is none."""
    await sandbox.exec("getent", "ahosts", World.name(0))


async def _connects(world: World, sandboxes: dict[str, dsec.Sandbox], count: int) -> dict[str, Any]:
    """A connection and one byte there and back, in turns of a tenth each."""
    taken: dict[str, list[float]] = {"direct": [], **{name: [] for name in sandboxes}}
    asked = ("connect", world.address(0), str(count // 10))
    for _ in range(10):
        taken["direct"] += _seconds(world.direct(*asked))
        for name, sandbox in sandboxes.items():
            await _looked_up(sandbox)
            taken[name] += _seconds(await run_program(sandbox, *asked))
    return {"samples_s": taken["by name"], "direct_s": taken["direct"], "by_address_s": taken["by address"]}


async def _bulk(world: World, sandboxes: list[dsec.Sandbox], mode: str, seconds: float) -> dict[str, Any]:
    """Bytes a second, directly and of all sandboxes in sum, two connections each."""
    each = 2
    asked = ("bulk", mode, world.address(0))
    direct = float(world.direct(*asked, str(each * len(sandboxes)), str(seconds)))
    for sandbox in sandboxes:
        await _looked_up(sandbox)
    rates = await together(*(run_program(one, *asked, str(each), str(seconds)) for one in sandboxes))
    return {
        "bytes_per_s": sum(map(float, rates)),
        "direct_bytes_per_s": direct,
        "connections": each * len(sandboxes),
        "sandboxes": len(sandboxes),
    }


async def _http(world: World, sandboxes: dict[str, dsec.Sandbox], seconds: float) -> dict[str, Any]:
    """Connections a second, each with one request and its answer; directly, parsed (by name), unread (by address)."""
    asked = ("http", World.name(0), world.address(0), str(_THREADS), str(seconds))
    direct = _seconds(world.direct(*asked))
    taken: dict[str, list[float]] = {}
    for name, sandbox in sandboxes.items():
        await _looked_up(sandbox)
        taken[name] = _seconds(await run_program(sandbox, *asked))
    return {
        "samples_s": taken["by name"],
        "per_second": len(taken["by name"]) / seconds,
        "by_address_per_second": len(taken["by address"]) / seconds,
        "direct_per_second": len(direct) / seconds,
        "threads": _THREADS,
    }


def _seconds(printed: str) -> list[float]:
    return [int(line) / 1e9 for line in printed.split()]
