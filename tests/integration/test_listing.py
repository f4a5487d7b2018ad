"""Listing 1 of the paper, as it is printed, on a node whose operator has named the groups ``npm`` and ``pypi``."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

import dsec
from dsec.testing.node import RunningNode, private_node

from .far_side import GET, FarSide, far_side

pytestmark = [pytest.mark.node, pytest.mark.anyio]

LISTING = """
client = DSecClient()
await client.open()
args = DSecContainerRunArgs(container_image="dsec/debian:12", memory_limit_mb=4096, cpu_cores_limit=4,
                            ttl_running_stop=300, network_rules={"npm": False, "pypi": True}, init_user="root")
sandbox = await client.run_container(args, timeout=120)
result = await sandbox.run_shell("echo hello world")
await sandbox.stop()
"""
"""Only the image's name is filled in."""
NAMES = {"pypi.test": ["@1"], "npm.test": ["@2"], "other.test": ["@1"]}
GROUPS = '[network.groups.pypi]\ndomains = ["pypi.test"]\n[network.groups.npm]\ndomains = ["npm.test"]\n'


@pytest.fixture(scope="module")
def far() -> Iterator[FarSide]:
    """Servers that have those names."""
    with far_side(NAMES) as made:
        yield made


@pytest.fixture(scope="module")
def node(store: Path, far: FarSide) -> Iterator[RunningNode]:
    """A node whose operator has named both groups."""
    with private_node(store, settings=far.settings(GROUPS)) as running:
        yield running


def statements() -> list[CodeType]:
    """The listing's, each for itself: what it made is looked at before its last one."""
    parsed = ast.parse(LISTING).body
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    return [compile(ast.Module([each], []), "Listing 1", "exec", flags=flags) for each in parsed]


async def run(code: CodeType, names: dict[str, Any]) -> None:
    """Run one statement where the names are."""
    outcome = eval(code, names)
    if asyncio.iscoroutine(outcome):
        await outcome


async def test_listing_1(node: RunningNode, far: FarSide, monkeypatch: pytest.MonkeyPatch) -> None:
    """Word for word: what it prints, its limits, and its rules in force: pypi passes, npm and others do not."""
    for name, value in (("DSEC_URL", node.url), ("DSEC_TOKEN", node.token)):
        monkeypatch.setenv(name, value)
    names: dict[str, Any] = {name: getattr(dsec, name) for name in ("DSecClient", "DSecContainerRunArgs")}
    *before, last = statements()
    for code in before:
        await run(code, names)
    client, sandbox, result = names["client"], names["sandbox"], names["result"]
    assert (result.exit_code, result.stdout) == (0, "hello world\n")
    network = (await sandbox.network()).network
    assert network is not None and network.groups == {"npm": False, "pypi": True}
    for name, answer in (("pypi.test", f"200 pypi.test {far.addresses[1]}"), ("npm.test", ""), ("other.test", "")):
        said = await sandbox.exec("python3", "-c", GET, name, name, "/", check=True)
        assert said.stdout.strip() == (answer or "failed gaierror"), name
    refused = {(each.name, each.reason) for each in (await sandbox.events()).events}
    assert refused == {("npm.test", "policy"), ("other.test", "policy")}
    info = await sandbox.info()
    assert (info.memory_mib, info.cpu, info.idle_timeout_s, info.user) == (4096, 4, 300, "root")
    assert (await sandbox.run_shell("id -un")).stdout == "root\n"
    await run(last, names)
    assert (await sandbox.info()).state == "stopped"
    await client.close()
