"""External programs: what they print, how they end, and that nothing of them outlives the call."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from dsec.errors import NodeError
from dsec.images.tools import SubprocessTools, not_installed

pytestmark = pytest.mark.anyio
# Prints its PID and that of a child in the background, then waits for ever.
SPAWNS = 'sleep 1000 & echo "$$ $!" > "$0"; echo ready >&2; wait'


def is_alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def wait_gone(pids: list[int]) -> None:
    """Wait until the kernel has ended processes that were killed."""
    for pid in pids:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(pidfd, ended.set)
        try:
            await asyncio.wait_for(ended.wait(), 10)
        finally:
            asyncio.get_running_loop().remove_reader(pidfd)
            os.close(pidfd)


async def test_output_and_exit_code() -> None:
    """Standard output, the log line by line, the tail of standard error and the exit code come back."""
    lines: list[str] = []
    result = await SubprocessTools().run(
        "t", ["sh", "-c", "echo out; echo one >&2; printf two >&2; exit 3"], timeout_s=10, log=lines.append
    )
    assert (result.exit_code, result.stdout, result.stderr) == (3, b"out\n", "one\ntwo")
    assert lines == ["one"]


async def test_a_signal_is_a_negative_code() -> None:
    """A program that a signal ended is told apart from one that exits."""
    assert (await SubprocessTools().run("t", ["sh", "-c", "kill -9 $$"], timeout_s=10)).exit_code == -9


@pytest.mark.parametrize("argv", [["dsec-no-such"], ["env", "A=1", "dsec-no-such", "-x"]])
async def test_missing_program(argv: list[str]) -> None:
    """A program that is not installed is named with its package, also behind env."""
    with pytest.raises(NodeError, match="dsec-no-such is not installed") as caught:
        await SubprocessTools().run("t", argv, timeout_s=10)
    assert caught.value.remedy == "Install the package dsec-no-such"
    assert not_installed("pull", ["env", "X=1", "prlimit"]).remedy == "Install the package util-linux"


async def test_timeout_kills_the_whole_group(tmp_path: Path) -> None:
    """After the time is over, neither the program nor its children live."""
    with pytest.raises(TimeoutError, match="did not end within"):
        await SubprocessTools().run("t", ["sh", "-c", SPAWNS, str(tmp_path / "pids")], timeout_s=0.5)
    pids = [int(each) for each in (tmp_path / "pids").read_text().split()]
    await wait_gone(pids)
    assert not any(is_alive(each) for each in pids)


async def test_cancellation_kills_the_whole_group(tmp_path: Path) -> None:
    """Cancelling the call does the same."""
    ready = asyncio.Event()
    argv = ["sh", "-c", SPAWNS, str(tmp_path / "pids")]
    run = asyncio.create_task(SubprocessTools().run("t", argv, timeout_s=60, log=lambda _: ready.set()))
    await ready.wait()
    pids = [int(each) for each in (tmp_path / "pids").read_text().split()]
    assert all(is_alive(each) for each in pids)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await wait_gone(pids)
    assert not any(is_alive(each) for each in pids)


async def test_an_error_of_the_log_ends_the_program(tmp_path: Path) -> None:
    """Who reads the log can end the program by raising."""

    def refuse(line: str) -> None:
        raise ValueError(line)

    with pytest.raises(ValueError, match="ready"):
        await SubprocessTools().run("t", ["sh", "-c", SPAWNS, str(tmp_path / "pids")], timeout_s=60, log=refuse)
    pids = [int(each) for each in (tmp_path / "pids").read_text().split()]
    await wait_gone(pids)
    assert not any(is_alive(each) for each in pids)


async def test_cgroups_are_joined_before_the_program_runs(tmp_path: Path) -> None:
    """The process writes itself into each file given, and is still the same process as the program."""
    files = [tmp_path / "cgroup one", tmp_path / "two"]
    result = await SubprocessTools(files).run("t", ["sh", "-c", 'echo "$1"', "sh", "a b"], timeout_s=10)
    assert result.stdout == b"a b\n"
    assert [each.read_text() for each in files] == ["0\n", "0\n"]
