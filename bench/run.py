"""The whole run: every scenario on dsec, then the same, shorter, on Docker."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import dsec
from bench import memory, scenarios
from bench.dockerd import running_daemon
from bench.files import measure_files
from bench.floods import measure_flood
from bench.load import QUICK, Load, measure_load
from bench.network import QUICK as QUICK_NETWORK
from bench.network import NetworkLoad, measure_network
from bench.phases import measure_phases
from bench.record import Record
from bench.sessions import measure_sessions, measure_swerex
from bench.targets import DockerTarget, DsecTarget, Target
from dsec.demo.docker_api import DockerApi, socket_of
from dsec.demo.dsec_boxes import export_root
from dsec.errors import NodeError

__all__ = ["DEFAULT", "OWN", "SCENARIOS", "Plan", "run"]

H = TypeVar("H")
_DOCKER_IMAGE = ("dsec-bench", "base")
OWN = ("phases", "files", "flood", "session", "throughput", "stream", "tree", "readopt", "network")
"""What is measured of dsec alone."""
SCENARIOS = ("serial", "parallel", "burst", "computesdk", "sustained", "warm", "creating", "memory", *OWN)
DEFAULT = tuple(name for name in SCENARIOS if name not in ("network", "readopt"))
"""``readopt`` kills parts of the node, ``network`` brings up another one: these are asked for by name."""


@dataclass(frozen=True)
class Plan:
    """How much of each scenario is run."""

    only: frozenset[str]
    serial: int
    parallel: int
    bursts: int
    burst: int
    computesdk: int
    sustained_s: float
    warm: int
    idle: int
    phases: int
    files_mib: int
    files_rounds: int
    session: int
    load: Load
    network: NetworkLoad

    @classmethod
    def full(cls, only: frozenset[str]) -> Plan:
        """What the figures in the README are measured with."""
        return cls(only, 200, 320, 5, 100, 100, 30.0, 1_000, 500, 100, 1024, 5, 1_000, Load(), NetworkLoad())

    @classmethod
    def quick(cls, only: frozenset[str]) -> Plan:
        """A look, in well under a minute."""
        return cls(only, 20, 48, 1, 50, 10, 3.0, 100, 50, 10, 256, 1, 100, QUICK, QUICK_NETWORK)

    def for_docker(self) -> Plan:
        """Less of everything: Docker takes some hundred milliseconds each."""
        return Plan(
            only=self.only.difference(OWN),
            serial=min(self.serial, 20),
            parallel=min(self.parallel, 48),
            bursts=1,
            burst=self.burst,
            computesdk=min(self.computesdk, 100),
            sustained_s=min(self.sustained_s, 15.0),
            warm=min(self.warm, 100),
            idle=min(self.idle, 100),
            phases=0,
            files_mib=self.files_mib,
            files_rounds=self.files_rounds,
            session=0,
            load=QUICK,
            network=QUICK_NETWORK,
        )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def run(record: Record, plan: Plan, *, image: str, docker: str, swerex: Path | None = None) -> None:
    """Fill the record. ``docker``: "auto" uses a daemon that answers, "start" starts one, "no" leaves it out.

    ``swerex``: an interpreter that has SWE-ReX, to be measured beside our sessions.
    """
    if "network" in plan.only:
        with tempfile.TemporaryDirectory(prefix="dsec-network-") as scratch:
            await measure_network(record, plan.network, Path(scratch), _say)
    if plan.only == {"network"}:
        return
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(dsec.DSecClient(max_creates_in_flight=1_000))
        target = DsecTarget.of(client, image)
        await measure(target, record, plan)
        if "phases" in plan.only:
            _say("dsec: phases")
            record.add("dsec", "phases", samples_ms=await measure_phases(target, plan.phases))
        if "files" in plan.only:
            _say("dsec: files")
            taken = await measure_files(target, plan.files_mib, plan.files_rounds)
            record.add("dsec", "files", mib=plan.files_mib, **taken)
        if "flood" in plan.only:
            _say("dsec: flood")
            record.add("dsec", "flood", **await measure_flood(target, plan.session))
        if "session" in plan.only:
            _say("dsec: session")
            _add_sessions(record, "dsec", await measure_sessions(target, plan.session))
            if swerex is not None:
                _say("swe-rex: session")
                version, samples = measure_swerex(swerex, min(plan.session, 100))
                _add_sessions(record, f"SWE-ReX {version}, local, no isolation", samples)
        await measure_load(target, record, plan.only, plan.load)
        api = await _docker(stack, docker)
        if api is not None:
            name = ":".join(_DOCKER_IMAGE)
            if not await api.has_image(name):
                _say("docker: importing the same root filesystem")
                await api.import_image(*_DOCKER_IMAGE, export_root(client, image))
            await measure(DockerTarget(api, name), record, plan.for_docker())


def _add_sessions(record: Record, target: str, samples: dict[str, list[float]]) -> None:
    for name, taken in samples.items():
        record.add(target, f"session {name}", taken)


async def _docker(stack: AsyncExitStack, docker: str) -> DockerApi | None:
    if docker == "no":
        return None
    socket = await stack.enter_async_context(running_daemon()) if docker == "start" else socket_of(os.environ)
    try:
        return await stack.enter_async_context(DockerApi(socket))
    except NodeError:
        if docker == "start":
            raise
        _say("docker: no daemon answers, so there is nothing beside dsec; `--docker start` starts one")
        return None


async def measure(target: Target[H], record: Record, plan: Plan) -> None:
    """Run the plan's scenarios on one target; raises RuntimeError if they left sandboxes, which are stopped then."""
    try:
        await _measure(target, record, plan)
    finally:
        left = await target.clean()
    if left:
        raise RuntimeError(f"{target.name}: {left} sandboxes of the benchmark were left")


async def _measure(target: Target[H], record: Record, plan: Plan) -> None:
    def wants(name: str) -> bool:
        if name in plan.only:
            _say(f"{target.name}: {name}")
        return name in plan.only

    def add(scenario: str, samples: list[float], **facts: Any) -> None:
        record.add(target.name, scenario, samples, **facts)

    # First, while the platform has made little in advance for what follows.
    if wants("memory"):
        add("idle memory", [], **await memory.idle_memory(target, plan.idle))
    await scenarios.first_exec_serial(target, 2)
    if wants("serial"):
        add("serial", await scenarios.first_exec_serial(target, plan.serial))
    if wants("parallel"):
        add("parallel", await scenarios.first_exec_parallel(target, plan.parallel, 16), workers=16)
    if wants("burst"):
        await _bursts(target, plan, add)
    if wants("computesdk"):
        add("computesdk sequential", await scenarios.first_exec_serial(target, plan.computesdk))
        add("computesdk staggered", await scenarios.staggered(target, plan.computesdk, 0.2), gap_s=0.2)
        wall, samples = await scenarios.burst(target, plan.computesdk)
        add("computesdk concurrent", samples, wall_s=wall)
    if wants("sustained"):
        rate, samples = await scenarios.sustained(target, plan.sustained_s, 16)
        add("sustained", samples, per_second=rate, seconds=plan.sustained_s, workers=16)
    if wants("warm"):
        add("warm", await scenarios.warm_exec(target, plan.warm))
    if wants("creating"):
        rate, samples = await scenarios.warm_exec_while_creating(target, plan.warm, 50)
        add("warm while creating", samples, creates_per_second=rate)


async def _bursts(target: Target[H], plan: Plan, add: Callable[..., None]) -> None:
    walls: list[float] = []
    samples: list[float] = []
    for _ in range(plan.bursts):
        wall, taken = await scenarios.burst(target, plan.burst)
        walls.append(wall)
        samples += taken
    add("burst", samples, walls_s=walls, count=plan.burst)
