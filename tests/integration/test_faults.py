"""A part of the node dies at each fault point that the source names: nothing is lost, repeated or left behind."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import dsec
from dsec.client.results import Exited, Stdout
from dsec.testing.faults import SETTINGS, Faults, fault_names
from dsec.testing.node import RunningNode, private_node, wait_until

from . import fault_operations
from .fault_operations import IMAGE, OPERATIONS
from .fault_roads import ROADS

pytestmark = [pytest.mark.node, pytest.mark.anyio, pytest.mark.timeout(120)]

NAMES = [name for name in fault_names(Path(__file__).parents[2]) if name.startswith(("edge.", "runtime."))]
"""The keeper's, the proxy's, and those of holder and fetcher are walked by the files of their names."""
PARTS = ("edge", "fetcher", "holder", "keeper", "proxy", "runtime")
BYSTANDER = "i=0; until [ -e /tmp/over ]; do echo line-$i; i=$((i+1)); sleep 0.01; done; exit 7"


@pytest.fixture(scope="module")
def own_node(store: Path) -> Iterator[RunningNode]:
    """One node for this module, with a store, whose parts die; each test leaves it whole."""
    with tempfile.TemporaryDirectory(prefix="dsec-store-") as folder:
        Path(folder).chmod(0o755)
        settings = f'{SETTINGS}[stores.shelf]\nurl = "file://{folder}"\n'
        with private_node(store, settings=settings) as running:
            yield running


@pytest.fixture(autouse=True)
def whole_again(own_node: RunningNode) -> Iterator[None]:
    """After each test nothing is left of it. A restart by request makes the keeper forget how often a part died: it
    would wait longer and longer before it starts it again.
    """
    yield
    try:
        wait_until(lambda: own_node.leftovers() == [], "nothing is left", timeout_s=15)
    except AssertionError:
        pytest.fail(f"left behind: {'; '.join(own_node.leftovers())}")
    for part, service in own_node.services().items():
        if service.restarts % 3 == 0 and service.restarts:
            own_node.restart(part)


async def _follow(program: dsec.Exec) -> tuple[bytes, int | None]:
    output, code = bytearray(), None
    async for event in program.events():
        if isinstance(event, Stdout):
            output += event.data
        elif isinstance(event, Exited):
            code = event.exit_code
    return bytes(output), code


@asynccontextmanager
async def bystander(client: dsec.DSecClient) -> AsyncIterator[dsec.Sandbox]:
    """A sandbox with an exec whose every byte, and whose exit code, must arrive whatever dies meanwhile."""
    async with client.sandbox(IMAGE) as sandbox:
        program = await sandbox.spawn(shell=BYSTANDER)
        following = asyncio.create_task(_follow(program))
        try:
            yield sandbox
        except BaseException:
            following.cancel()
            raise
        await sandbox.write("/tmp/over", b"")
        output, code = await following
        assert code == 7
        assert output == b"".join(b"line-%d\n" % i for i in range(output.count(b"\n")))
        assert output


def test_every_point_has_an_operation() -> None:
    """A new fault point is walked without being listed anywhere, or this fails."""
    assert len(NAMES) > 40
    assert {name.split(".")[0] for name in fault_names(Path(__file__).parents[2])} == set(PARTS)
    assert {name.split(".")[1] for name in NAMES} <= set(OPERATIONS | ROADS)


@pytest.mark.parametrize("name", NAMES)
async def test_a_part_dies_at(own_node: RunningNode, name: str) -> None:
    """The part whose step it is dies there; the operation ends as if nothing had happened."""
    faults = Faults(own_node)
    async with own_node.client() as client, bystander(client) as sandbox:
        with faults.armed(name, "kill"):
            await (OPERATIONS | ROADS)[name.split(".")[1]](client, sandbox.id, name)
            await asyncio.to_thread(faults.wait_passed, name)


OTHERS = [name for name in NAMES if name.split(".")[1] in ("create", "exec", "stdin", "write", "stop", "run")]
"""Steps at which other parts die too."""


async def _die_at(node: RunningNode, name: str, die: Callable[[], object]) -> None:
    """Wait until the part stands still at its step, let another die, and let it go on."""
    faults = Faults(node)
    await asyncio.to_thread(faults.wait_passed, name)
    try:
        await asyncio.to_thread(die)
    finally:
        await asyncio.to_thread(faults.go_on, name)


@pytest.mark.parametrize("name", OTHERS)
async def test_the_apiserver_dies_at(own_node: RunningNode, name: str) -> None:
    """The apiserver dies while a step is under way: clients find their work done by its successor."""
    async with own_node.client() as client, bystander(client) as sandbox:
        with Faults(own_node).armed(name, "stop"):
            dying = asyncio.create_task(_die_at(own_node, name, lambda: own_node.kill("apiserver")))
            await OPERATIONS[name.split(".")[1]](client, sandbox.id, f"apiserver-{name}")
            await dying


@pytest.mark.parametrize("name", OTHERS)
async def test_the_client_dies_at(own_node: RunningNode, name: str) -> None:
    """A client is killed in the middle of a step; another one, with the same keys, finds what the first began."""
    operation, key = name.split(".")[1], f"client-{name}"
    environment = own_node.environment | {"DSEC_URL": own_node.url, "DSEC_TOKEN": own_node.token}
    async with own_node.client() as client, bystander(client) as sandbox:
        arguments = [sys.executable, fault_operations.__file__, operation, sandbox.id, key]
        first = await asyncio.create_subprocess_exec(*arguments, env=environment, stdin=PIPE, stdout=PIPE)
        assert first.stdin is not None and first.stdout is not None
        assert await first.stdout.readline() == b"ready\n"
        with Faults(own_node).armed(name, "stop"):
            first.stdin.write(b"go\n")
            await _die_at(own_node, name, lambda: _kill(first))
        await first.wait()
        if operation == "stop":  # the key's sandbox has its end already, or is ended here
            await own_stop(client, key)
        else:
            await OPERATIONS[operation](client, sandbox.id, key)


def _kill(process: asyncio.subprocess.Process) -> None:
    # The step may come after the answer: the client has done its work then, and is gone.
    with contextlib.suppress(ProcessLookupError):
        process.kill()


async def own_stop(client: dsec.DSecClient, key: str) -> None:
    """Stop the sandbox of a key, however far another client came with that."""
    sandbox = await client.sandbox(IMAGE, key=key)
    assert (await sandbox.stop()).cause == "stopped"
    assert (await sandbox.info()).state == "stopped"
