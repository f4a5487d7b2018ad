"""``merge_stderr``: one descriptor for both outputs, so that their order is the order of the writes."""

from __future__ import annotations

import asyncio

import pytest

import dsec
from dsec.client.results import Exited, Stdout

pytestmark = [pytest.mark.node, pytest.mark.anyio]

TURNS = "i=0; while [ $i -lt 500 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done"
WANTED = "".join(f"out {each}\nerr {each}\n" for each in range(500))


async def test_order_is_that_of_the_writes(sandbox: dsec.Sandbox) -> None:
    """A thousand writes in turns come back in their order, by ``run_shell``, ``exec`` and ``spawn`` alike."""
    by_shell = await sandbox.run_shell(TURNS, merge_stderr=True)
    by_exec = await sandbox.exec("sh", "-c", TURNS, merge_stderr=True)
    for result in (by_shell, by_exec):
        assert result.merged and result.ok
        assert result.output == result.stdout == WANTED
        assert result.output_bytes == WANTED.encode()
        assert (result.stderr, result.stderr_total_bytes) == ("", 0)
        assert result.stdout_total_bytes == len(WANTED)
    spawned = await sandbox.spawn(shell=TURNS, merge_stderr=True)
    events = [event async for event in spawned.events()]
    assert b"".join(event.data for event in events if isinstance(event, Stdout)).decode() == WANTED
    assert [type(event) for event in events if not isinstance(event, Stdout)] == [Exited]
    assert (await spawned.wait()).output == WANTED
    info = await spawned.info()
    assert info.merge_stderr and not info.pty


async def test_it_is_one_open_file(sandbox: dsec.Sandbox) -> None:
    """Descriptors 1 and 2 are the same pipe, and the user's own: /dev/stderr can be opened anew."""
    script = "readlink /proc/self/fd/1 /proc/self/fd/2; echo again > /dev/stderr"
    for user in ("root", "nobody"):
        result = await sandbox.run_shell(script, user=user, merge_stderr=True)
        first, second, rest = result.output.splitlines()
        assert first == second and first.startswith("pipe:") and rest == "again"


async def test_apart_there_is_no_common_order(sandbox: dsec.Sandbox) -> None:
    """Without it ``output`` is refused instead of guessed, and says what to do."""
    result = await sandbox.run_shell("echo out; echo err >&2")
    assert (result.stdout, result.stderr, result.merged) == ("out\n", "err\n", False)
    with pytest.raises(dsec.InvalidArgument) as refused:
        _ = result.output
    assert refused.value.remedy is not None and "merge_stderr" in refused.value.remedy


async def test_caps_ends_and_failures_of_merged_output(sandbox: dsec.Sandbox) -> None:
    """Head and tail of the one stream are kept; a timeout keeps what there was; ``check`` quotes the last words."""
    long = await sandbox.run_shell("seq 1 100000; echo last >&2", merge_stderr=True, max_output_bytes=1000)
    assert long.truncated and long.output.startswith("1\n2\n") and long.output.endswith("last\n")
    assert "bytes cut here" in long.output
    late = await sandbox.run_shell("echo before >&2; sleep 60", merge_stderr=True, timeout_s=0.3, grace_s=0)
    assert (late.ended, late.output) == (dsec.Ended.TIMEOUT, "before\n")
    with pytest.raises(dsec.ExecFailed, match="what went wrong"):
        await sandbox.run_shell("echo what went wrong >&2; exit 3", merge_stderr=True, check=True)


async def test_one_key_one_body(sandbox: dsec.Sandbox) -> None:
    """Merging is a part of the request: the same key without it is a conflict, with it the same result."""
    first = await sandbox.run_shell("echo $$; echo $$ >&2", merge_stderr=True, key="merged")
    assert (await sandbox.run_shell("echo $$; echo $$ >&2", merge_stderr=True, key="merged")).output == first.output
    with pytest.raises(dsec.Conflict):
        await sandbox.run_shell("echo $$; echo $$ >&2", key="merged")


async def test_many_at_once(sandbox: dsec.Sandbox) -> None:
    """Fifty of them keep their streams apart from each other."""
    scripts = [f"echo {each}; echo {each} >&2; echo {each}" for each in range(50)]
    results = await asyncio.gather(*(sandbox.run_shell(script, merge_stderr=True) for script in scripts))
    assert [result.output for result in results] == [f"{each}\n" * 3 for each in range(50)]
