"""Holder and fetcher die at each of their steps, or stand still: what is read is right, and others go on."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import dsec
from dsec.node.local_calls import RuntimeCalls
from dsec.testing.faults import SETTINGS, Faults, fault_names
from dsec.testing.node import RunningNode, private_node, wait_until

from .fault_operations import IMAGE

pytestmark = [pytest.mark.node, pytest.mark.anyio, pytest.mark.timeout(180)]

OWN = [name for name in fault_names(Path(__file__).parents[2]) if name.startswith(("fetcher.", "holder."))]
CHUNK = 256 << 10
SIZE = 6 << 20


@pytest.fixture(scope="module")
def own_node(store: Path) -> Iterator[RunningNode]:
    """One node for this module, which reads layers on demand from a directory."""
    with tempfile.TemporaryDirectory(prefix="dsec-store-") as folder:
        Path(folder).chmod(0o755)
        settings = f'{SETTINGS}reader = "filled"\n[stores.shelf]\nurl = "file://{folder}"\n'
        with private_node(store, settings=settings) as running:
            yield running


@pytest.fixture(autouse=True)
def whole_again(own_node: RunningNode) -> Iterator[None]:
    """Nothing is left of a test. A restart by request makes the keeper forget how often a part died: it would wait
    longer and longer before it starts it again.
    """
    yield
    wait_until(lambda: own_node.leftovers() == [], "nothing is left", timeout_s=15)
    for part, service in own_node.services().items():
        if service.restarts % 3 == 0 and service.restarts:
            own_node.restart(part)


def _content(tag: str) -> bytes:
    return random.Random(tag).randbytes(SIZE)


async def _on_demand(client: dsec.DSecClient, tag: str) -> None:
    """A layer of which this node has nothing but the metadata."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "file").write_bytes(_content(tag))
        await client.layers.build(folder, tag, at="/work")
    await client.layers.push(tag)
    await client.layers.evict(tag)


async def _check_part(sandbox: dsec.Sandbox, tag: str, chunk: int, page: int = 0) -> None:
    """One page of a chunk."""
    read = await sandbox.exec(*_reading(chunk, page))
    assert read.stdout_bytes == _page(tag, chunk, page)


def _reading(chunk: int, page: int = 0) -> tuple[str, ...]:
    skip = chunk * CHUNK // 4096 + page
    return "dd", "if=/work/file", "bs=4096", "count=1", f"skip={skip}", "status=none"


def _page(tag: str, chunk: int, page: int = 0) -> bytes:
    return _content(tag)[chunk * CHUNK + page * 4096 :][:4096]


async def _read_whole(sandbox: dsec.Sandbox, tag: str) -> None:
    """By three readers, of which two begin in the middle."""
    await asyncio.gather(*(_check_part(sandbox, tag, chunk) for chunk in (9, 17)))
    assert await sandbox.read("/work/file") == _content(tag)


async def _complete(client: dsec.DSecClient, tag: str, _: Passed) -> None:
    """Read from end to end by two sandboxes, the layer is exact."""
    async with client.sandbox(IMAGE, workspace=tag) as sandbox, client.sandbox(IMAGE, workspace=tag) as other:
        await asyncio.gather(_read_whole(sandbox, tag), _read_whole(other, tag))


async def _let_go(client: dsec.DSecClient, tag: str, passed: Passed) -> None:
    """Read in part, evicted, and read again, the layer is exact."""
    async with client.sandbox(IMAGE, workspace=tag) as sandbox:
        await _check_part(sandbox, tag, 3)
    await client.layers.evict(tag)
    await _complete(client, tag, passed)


async def _recorded(client: dsec.DSecClient, tag: str, passed: Passed) -> None:
    """Read in part by a sandbox that lives on until that is recorded, the layer is exact."""
    async with client.sandbox(IMAGE, workspace=tag) as sandbox:
        await _check_part(sandbox, tag, 3)
        await passed()
        await _read_whole(sandbox, tag)


Passed = Callable[[], Awaitable[None]]
"""Waits until a process has come to the point."""
OPERATIONS: dict[str, Callable[[dsec.DSecClient, str, Passed], Awaitable[None]]] = {
    "close": _let_go,
    "complete": _complete,
    "event": _complete,
    "fetch": _complete,
    "flush": _recorded,
    "layer": _complete,
}


def test_every_step_has_an_operation() -> None:
    """A new step of holder or fetcher is walked without being listed, or this fails."""
    assert len(OWN) > 20
    assert {name.split(".")[1] for name in OWN} == set(OPERATIONS)


@pytest.mark.parametrize("name", OWN)
async def test_it_dies_at(own_node: RunningNode, name: str) -> None:
    """Killed there, it has a successor: readers read what is right, and the layer becomes complete."""
    faults, tag, part = Faults(own_node), f"workspace/{name.replace('.', '-')}:1", name.partition(".")[0]
    before = own_node.services()[part].pid

    async def passed() -> None:
        await asyncio.to_thread(faults.wait_passed, name)

    async with own_node.client() as client:
        await _on_demand(client, tag)
        digest = (await client.layers.get(tag)).digest
        with faults.armed(name, "kill"):
            await OPERATIONS[name.split(".")[1]](client, tag, passed)
            await passed()
        assert own_node.services()[part].pid != before
        filled = own_node.paths.layers / digest / "filled"
        await asyncio.to_thread(wait_until, lambda: not filled.exists(), "the layer is complete", timeout_s=60)
        assert (await client.layers.verify(tag)).faults == []
        await client.layers.remove(tag)


@contextmanager
def _standing_still(node: RunningNode, part: str) -> Iterator[None]:
    pid = node.services()[part].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _counts(node: RunningNode) -> dict[str, int]:
    with RuntimeCalls(node.paths.runtime_socket) as runtime:
        counts: dict[str, int] = runtime.call("layer.loading", {"after": 0})["counts"]
    return counts


async def _still_works(client: dsec.DSecClient, count: int) -> None:
    """So many sandboxes at once, none of which needs what stands still, are made and work."""

    async def one() -> None:
        async with client.sandbox(IMAGE) as sandbox:
            assert (await sandbox.exec("echo", "works")).stdout == "works\n"

    await asyncio.gather(*(one() for _ in range(count)))


async def test_a_fetcher_that_stands_still(own_node: RunningNode) -> None:
    """Readers of what is not there wait and can be killed; what is there can be read, of the same layer too; other
    sandboxes are made and work. Once it goes on, whoever waited reads what is right, and a sandbox that waited
    for its layer to be opened is made.
    """
    tag, other = "workspace/fetcher-stopped:1", "workspace/fetcher-stopped:2"
    async with own_node.client() as client:
        await _on_demand(client, tag)
        await _on_demand(client, other)
        async with client.sandbox(IMAGE, workspace=tag) as sandbox:
            await _check_part(sandbox, tag, 3)
            with _standing_still(own_node, "fetcher"):
                killed, patient = [await sandbox.spawn(*_reading(chunk)) for chunk in (10, 20)]
                await asyncio.to_thread(wait_until, lambda: _counts(own_node)["waiting"] >= 2, "both wait")
                hits = _counts(own_node)["hits"]
                assert (await client.status()).loading["waiting"] >= 2
                await _check_part(sandbox, tag, 3, page=60)
                assert _counts(own_node)["hits"] > hits
                await killed.kill()
                assert (await killed.wait()).ended == "cancelled"
                making = asyncio.ensure_future(client.sandbox(IMAGE, workspace=other))
                await _still_works(client, 12)
                assert await patient.poll() is None and not making.done()
            assert (await patient.wait()).stdout_bytes == _page(tag, 20)
            made = await making
            await _check_part(made, other, 5)
            await made.stop()


async def test_a_holder_that_stands_still(own_node: RunningNode) -> None:
    """Whoever reads or opens a layer that it watches waits, and can be killed; sandboxes of other layers are made and
    work, however many wait. Once it goes on, they are all served.
    """
    tags = [f"workspace/holder-stopped:{number}" for number in range(8)]
    async with own_node.client() as client:
        for tag in tags:
            await _on_demand(client, tag)
        async with client.sandbox(IMAGE, workspace=tags[0]) as sandbox:
            await _check_part(sandbox, tags[0], 3)
            with _standing_still(own_node, "holder"):
                killed, patient = [await sandbox.spawn(*_reading(chunk)) for chunk in (10, 20)]
                making = [asyncio.ensure_future(client.sandbox(IMAGE, workspace=tag)) for tag in tags[1:]]
                await _still_works(client, 12)
                assert (await client.status()).loading == {}
                await killed.kill()
                assert (await killed.wait()).ended == "cancelled"
                assert await patient.poll() is None and not any(each.done() for each in making)
            assert (await patient.wait()).stdout_bytes == _page(tags[0], 20)
            for each, tag in zip(await asyncio.gather(*making), tags[1:], strict=True):
                await _check_part(each, tag, 5)
                await each.stop()
