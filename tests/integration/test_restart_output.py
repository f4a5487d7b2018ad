"""The runtime is killed again and again while programs write to a terminal or a merged pipe: no byte is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import dsec
from dsec.client.results import Exited, Stdout
from dsec.testing.node import RunningNode, private_node, wait_until

pytestmark = [pytest.mark.node, pytest.mark.anyio, pytest.mark.timeout(240)]

LINES = 60_000
KILLS = 3
WRITE = (
    "import os, sys, time\n"
    "if os.isatty(1): import tty; tty.setraw(1)\n"
    f"for each in range({LINES}):\n"
    "  os.write(1 + each % 2, b'%09d\\n' % each)\n"
    "  if each % 20 == 0: time.sleep(0.001)\n"
    "os._exit(9)"
)
WRITTEN = b"".join(b"%09d\n" % each for each in range(LINES))


@pytest.fixture(scope="module")
def own_node(store: Path) -> Iterator[RunningNode]:
    """One node for this module, whose runtime is killed."""
    with private_node(store) as running:
        yield running


async def kill_runtime(node: RunningNode) -> None:
    """SIGKILL, and wait until the keeper has started another."""
    before = node.services()["runtime"].pid
    await asyncio.to_thread(node.kill, "runtime")
    await asyncio.to_thread(
        wait_until, lambda: node.services()["runtime"].pid not in (0, before), "the runtime runs again"
    )


@pytest.mark.parametrize("how", ["pty", "merged"])
async def test_no_byte_is_lost(own_node: RunningNode, how: str) -> None:
    """Every byte once and in order and the true exit code, although the runtime was killed three times on the way."""
    terminal = dsec.Pty(24, 80) if how == "pty" else None
    async with own_node.client() as client, client.sandbox("dsec/debian:12") as sandbox:
        running = await sandbox.spawn("python3", "-c", WRITE, merge_stderr=how == "merged", pty=terminal)
        output, end, kills = bytearray(), None, 0
        killing: asyncio.Task[None] | None = None
        async for event in running.events():
            if isinstance(event, Stdout):
                assert event.offset == len(output)
                output += event.data
                if kills < KILLS and len(output) > (kills + 1) * len(WRITTEN) // 8:
                    if killing is not None:
                        await killing
                    kills += 1
                    killing = asyncio.create_task(kill_runtime(own_node))
            elif isinstance(event, Exited):
                end = event
        assert killing is not None
        await killing
        assert kills == KILLS
        assert bytes(output) == WRITTEN
        assert end is not None and end.exit_code == 9
        assert (await running.wait()).output_bytes == WRITTEN


async def test_a_terminal_goes_on_after_the_runtime(own_node: RunningNode) -> None:
    """Typing, resizing and end of file work with the successor, the screen's own size and settings are kept."""
    async with own_node.client() as client, client.sandbox("dsec/debian:12") as sandbox:
        running = await sandbox.spawn(
            shell="stty -echo; echo ready; while read line; do echo got $line; done", pty=dsec.Pty(9, 99)
        )
        lines = running.lines()
        assert await anext(lines) == "ready\r"
        await running.stdin.write("before\n")
        assert await anext(lines) == "got before\r"
        await kill_runtime(own_node)
        await running.stdin.write("after\n")
        assert await anext(lines) == "got after\r"
        await running.resize(12, 34)
        await running.stdin.write("$(stty size)\n")
        assert await anext(lines) == "got $(stty size)\r"
        await running.stdin.close()
        assert [line async for line in lines] == []
        assert (await running.wait()).exit_code == 0


@pytest.mark.parametrize("runtime_too", [False, True])
async def test_a_terminal_survives_a_new_keeper(own_node: RunningNode, runtime_too: bool) -> None:
    """``dsec restart keeper`` while a program writes to a terminal: every byte once, in order, and the true code. A
    new runtime finds the terminal with the new keeper.
    """
    async with own_node.client() as client, client.sandbox("dsec/debian:12") as sandbox:
        running = await sandbox.spawn("python3", "-c", WRITE, pty=dsec.Pty(24, 80))
        events = running.events()
        output = bytearray()
        async for event in events:
            assert isinstance(event, Stdout) and event.offset == len(output)
            output += event.data
            if len(output) > len(WRITTEN) // 8:
                break
        await asyncio.to_thread(own_node.restart, "keeper")
        if runtime_too:
            await kill_runtime(own_node)
        assert await running.poll() is None
        async for event in events:
            if isinstance(event, Exited):
                assert event.exit_code == 9
            else:
                assert isinstance(event, Stdout) and event.offset == len(output)
                output += event.data
        assert bytes(output) == WRITTEN


async def test_an_end_that_nobody_saw(own_node: RunningNode) -> None:
    """A program that writes and exits while there is no runtime is told whole by the next one."""
    async with own_node.client() as client, client.sandbox("dsec/debian:12") as sandbox:
        script = "read go; seq 1 1500; exit 4"
        running = await sandbox.spawn(shell=script, pty=dsec.Pty(24, 80))
        await running.stdin.write("\n")
        await asyncio.to_thread(own_node.kill, "runtime")
        result = await running.wait()
        assert result.exit_code == 4
        assert result.output.replace("\r\n", "\n").endswith("".join(f"{each}\n" for each in range(1, 1501)))
