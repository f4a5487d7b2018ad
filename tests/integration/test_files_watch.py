"""Changes of files, told as they happen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

import dsec

pytestmark = [pytest.mark.node, pytest.mark.anyio]


async def _until(events: AsyncGenerator[dsec.FileEvent], path: str) -> list[dsec.FileEvent]:
    """Events up to the first of a path; it is created by the test as a mark of the end."""
    found: list[dsec.FileEvent] = []
    async with asyncio.timeout(30):
        async for event in events:
            if event.path == path:
                return found
            found.append(event)
    raise AssertionError(f"the watch ended before {path}")


async def _begun(sandbox: dsec.Sandbox, events: AsyncGenerator[dsec.FileEvent], mark: str) -> None:
    """Watch, and write marks until one is told: from then on nothing is missed."""
    first = asyncio.ensure_future(anext(events))
    number = 0
    while not first.done():
        await sandbox.write(f"{mark}/mark{number}", b"")
        number += 1
        await asyncio.wait([first], timeout=0.1)
    await sandbox.write(f"{mark}/begun", b"")
    await _until(events, f"{mark}/begun")
    await sandbox.write(f"{mark}/settled", b"")
    await _until(events, f"{mark}/settled")


async def test_what_happens_in_a_directory(sandbox: dsec.Sandbox) -> None:
    """Created, modified, closed, attributes, moved and removed, in their order."""
    await sandbox.files.mkdir("/w")
    async with aclosing(sandbox.files.watch("/w")) as events:
        await _begun(sandbox, events, "/w")
        program = (
            "import os\n"
            "with open('/w/f', 'w') as file: file.write('x')\n"
            "os.chmod('/w/f', 0o600); os.rename('/w/f', '/w/g'); os.mkdir('/w/d')\n"
            "os.remove('/w/g'); os.rmdir('/w/d')\n"
            "open('/w/end', 'w')\n"
        )
        await sandbox.exec("python3", "-c", program, check=True)
        seen = [event for event in await _until(events, "/w/end") if event.path != "/w/settled"]
    assert [(event.kind, event.path, event.target, event.is_dir) for event in seen] == [
        ("created", "/w/f", None, False),
        ("modified", "/w/f", None, False),
        ("closed", "/w/f", None, False),
        ("attributes", "/w/f", None, False),
        ("moved", "/w/f", "/w/g", False),
        ("created", "/w/d", None, True),
        ("removed", "/w/g", None, False),
        ("removed", "/w/d", None, True),
    ]


async def test_below_too(sandbox: dsec.Sandbox) -> None:
    """Recursive: also what happens in directories made, or moved, after the watch began; what leaves is removed."""
    await sandbox.run_shell("mkdir -p /w/old /out; touch /w/old/x", check=True)
    async with aclosing(sandbox.files.watch("/w", recursive=True)) as events:
        await _begun(sandbox, events, "/w")
        await sandbox.run_shell("mkdir -p /w/a/b; echo 1 > /w/a/b/f; mv /w/a /w/c; mv /w/old /out/", check=True)
        await sandbox.run_shell("echo 2 > /w/c/b/g; echo 3 > /out/old/x; touch /w/end", check=True)
        seen = await _until(events, "/w/end")
    told = {(event.kind, event.path) for event in seen}
    assert {("created", "/w/a"), ("created", "/w/a/b"), ("created", "/w/a/b/f")} <= told
    assert any((event.kind, event.path, event.target) == ("moved", "/w/a", "/w/c") for event in seen)
    assert ("created", "/w/c/b/g") in told and ("removed", "/w/old") in told
    assert not [event for event in seen if event.path.startswith("/w/old/") and event.kind == "modified"]


async def test_one_file(sandbox: dsec.Sandbox) -> None:
    """A file is watched too; the watch ends when it is removed."""
    await sandbox.write("/one", "x")
    seen: list[dsec.FileEvent] = []
    watching = asyncio.ensure_future(_gather(sandbox, "/one", seen))
    while not seen:
        await sandbox.run_shell("echo more >> /one")
    await sandbox.run_shell("rm /one", check=True)
    async with asyncio.timeout(30):
        await watching
    assert {event.path for event in seen} == {"/one"} and seen[-1].kind == "removed"


async def _gather(sandbox: dsec.Sandbox, path: str, seen: list[dsec.FileEvent]) -> None:
    async for event in sandbox.files.watch(path):
        seen.append(event)


async def test_too_slow_a_reader_is_told_so(sandbox: dsec.Sandbox) -> None:
    """Who does not read loses events, hears ``overflow``, and the program never waits."""
    await sandbox.files.mkdir("/w")
    async with aclosing(sandbox.files.watch("/w")) as events:
        await _begun(sandbox, events, "/w")
        flood = "for n in range(150000):\n  f = f'/w/{n:0200}'; open(f, 'w').close(); __import__('os').unlink(f)"
        result = await sandbox.exec("python3", "-c", flood, timeout_s=120)
        assert result.ok
        async with asyncio.timeout(60):
            async for event in events:
                if event.kind == "overflow":
                    break
        assert (event.kind, event.path) == ("overflow", "/w")


async def test_ends_with_the_sandbox(client: dsec.DSecClient) -> None:
    """The iterator ends, without an error, when the sandbox does; what is not there is an error at once."""
    async with client.sandbox("dsec/debian:12") as sandbox:
        with pytest.raises(FileNotFoundError):
            async for _ in sandbox.files.watch("/none"):
                break
        with pytest.raises(dsec.FileDenied):
            async for _ in sandbox.files.watch("/proc"):
                break
        await sandbox.files.mkdir("/w")
        events = sandbox.files.watch("/w")
        await _begun(sandbox, events, "/w")
        await sandbox.stop()
        async with asyncio.timeout(30):
            assert [event async for event in events if event.kind == "overflow"] == []


async def test_thirty_two_watches(sandbox: dsec.Sandbox) -> None:
    """As many a sandbox may have; the next is refused; those that are left make room."""
    await sandbox.files.mkdir("/w")
    streams = [sandbox.files.watch("/w") for _ in range(32)]
    firsts = [asyncio.ensure_future(anext(each)) for each in streams]
    pending: set[asyncio.Future[dsec.FileEvent]] = set(firsts)
    while pending:
        await sandbox.write("/w/x", b"")
        _, pending = await asyncio.wait(pending, timeout=0.2)
    with pytest.raises(dsec.CapacityError):
        await anext(sandbox.files.watch("/w"))
    for each in streams:
        await each.aclose()
    async with asyncio.timeout(30):
        while True:
            again = sandbox.files.watch("/w")
            first = asyncio.ensure_future(anext(again))
            while not first.done():
                await sandbox.write("/w/x", b"")
                await asyncio.wait([first], timeout=0.2)
            await again.aclose()
            if first.exception() is None:
                break
