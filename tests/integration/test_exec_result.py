"""What a program's end says: streams, caps, timeout, signals, kills, facts beside the ending."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

import dsec

from .conftest import IMAGE

pytestmark = [pytest.mark.node, pytest.mark.anyio]

COUNT_PROCESSES = "ls /proc | grep -c '^[0-9]'"


async def test_streams_apart_and_exact(sandbox: dsec.Sandbox) -> None:
    """Every byte value, on both streams, in order, none added; the text decodes with replacement."""
    program = (
        "import os\n"
        "for i in range(300):\n"
        "    os.write(1, bytes(range(256)))\n"
        "    os.write(2, bytes(reversed(range(256))))\n"
    )
    result = await sandbox.exec("python3", "-c", program)
    assert result.stdout_bytes == bytes(range(256)) * 300
    assert result.stderr_bytes == bytes(reversed(range(256))) * 300
    assert (result.stdout_total_bytes, result.truncated) == (76_800, False)
    assert "\ufffd" in result.stdout


async def test_caps_keep_head_and_tail(sandbox: dsec.Sandbox) -> None:
    """Of more than max_output_bytes the halves at both ends are kept; totals are exact, the other stream is whole."""
    script = "seq 1 200000; echo err >&2"
    whole = "".join(f"{number}\n" for number in range(1, 200_001)).encode()
    result = await sandbox.run_shell(script, max_output_bytes=10_000)
    assert result.truncated and result.ok
    assert result.stdout_total_bytes == len(whole)
    assert result.stdout_bytes == whole[:5000] + whole[-5000:]
    assert f"{len(whole) - 10_000} bytes cut here" in result.stdout
    assert result.stderr == "err\n"


async def test_output_of_exactly_the_cap_is_whole(sandbox: dsec.Sandbox) -> None:
    """No off-by-one: a stream as long as the cap is not cut, one byte more is."""
    for count, cut in ((4096, False), (4097, True)):
        result = await sandbox.run_shell(f"head -c {count} /dev/zero | tr '\\0' x", max_output_bytes=4096)
        assert (result.stdout_total_bytes, result.truncated) == (count, cut)
        assert len(result.stdout_bytes) == 4096


async def test_more_output_than_is_kept(sandbox: dsec.Sandbox) -> None:
    """A program that writes more than the node keeps is not held back; total, head and tail are exact."""
    program = (
        "import os\n"
        "for i in range(100):\n"
        "    data = (b'%07d\\n' % i) * 131072\n"
        "    while data: data = data[os.write(1, data):]\n"
    )
    result = await sandbox.exec("python3", "-c", program, max_output_bytes=64 << 20)
    assert result.ok
    assert result.stdout_total_bytes == 100 << 20
    assert result.truncated
    assert result.stdout_bytes.startswith(b"0000000\n" * 1000)
    assert result.stdout_bytes.endswith(b"0000099\n" * 1000)


async def test_exit_codes_are_data(sandbox: dsec.Sandbox) -> None:
    """Any code from 0 to 255 comes back as it is, with ended=exited and no signal."""
    for code in (0, 1, 2, 126, 127, 128, 137, 255):
        result = await sandbox.exec("sh", "-c", f"exit {code}")
        assert (result.exit_code, result.signal, result.ended, result.ok) == (code, None, "exited", code == 0)


async def test_signals_are_named(sandbox: dsec.Sandbox) -> None:
    """A program that a signal ended has no exit code, and says which."""
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV):
        result = await sandbox.run_shell(f"kill -{int(number)} $$")
        assert (result.exit_code, result.signal, result.ended) == (None, number, "signalled")


async def test_check_raises_with_the_result(sandbox: dsec.Sandbox) -> None:
    """check=True: ExecFailed and ExecTimeout carry the whole result, and are the command's fault."""
    with pytest.raises(dsec.ExecFailed) as failed:
        await sandbox.run_shell("echo out; echo why >&2; exit 9", check=True)
    assert failed.value.result.exit_code == 9
    assert failed.value.result.stdout == "out\n"
    assert "why" in str(failed.value) and failed.value.fault == "command"
    with pytest.raises(dsec.ExecTimeout) as late:
        await sandbox.run_shell("echo out; sleep 1000", check=True, timeout_s=0.3, grace_s=0.1)
    assert isinstance(late.value, TimeoutError)
    assert late.value.result.stdout == "out\n"


async def test_timeout_keeps_the_output_and_leaves_nothing(sandbox: dsec.Sandbox) -> None:
    """ended=timeout, what was said so far is there, and no process of the exec's tree is left, not even a daemon."""
    script = "echo before; setsid -f sleep 1000; (sleep 1000 &) ; trap '' TERM; sleep 1000; echo after"
    result = await sandbox.run_shell(script, timeout_s=0.5, grace_s=0.2)
    assert result.ended == "timeout"
    assert result.stdout == "before\n"
    assert 0.5 <= result.duration_s < 5
    assert (await sandbox.run_shell("pgrep -c sleep")).stdout == "0\n"


async def test_timeout_lets_a_program_clean_up(sandbox: dsec.Sandbox) -> None:
    """SIGTERM comes first: within grace_s the program may react, and it still is a timeout."""
    result = await sandbox.run_shell("trap 'echo cleaned; exit 4' TERM; sleep 1000 & wait", timeout_s=0.3, grace_s=10)
    assert (result.ended, result.stdout) == ("timeout", "cleaned\n")
    assert result.duration_s < 5


async def test_the_sandboxes_exec_timeout(client: dsec.DSecClient) -> None:
    """exec_timeout_s holds for every exec that has none of its own."""
    async with client.sandbox(IMAGE, exec_timeout_s=0.3) as sandbox:
        assert (await sandbox.exec("sleep", "1000", grace_s=0)).ended == "timeout"
        assert (await sandbox.exec("sleep", "0.5", timeout_s=60)).ended == "exited"


async def test_background_processes_outlive_their_exec(sandbox: dsec.Sandbox) -> None:
    """The exec ends when its program does, although a child holds its pipes; the child runs on and can be found."""
    begun = time.monotonic()
    result = await sandbox.run_shell("sleep 1000 & echo $!")
    assert result.ok and time.monotonic() - begun < 10
    pid = result.stdout.strip()
    assert (await sandbox.exec("kill", "-0", pid)).ok
    assert (await sandbox.exec("kill", pid)).ok


async def test_oom_kill_of_a_grandchild_is_counted(client: dsec.DSecClient) -> None:
    """A parent that exits 0 although its grandchild was killed for memory: the fact stands beside the ending."""
    hog = "python3 -c 'b = bytearray(400 << 20)'"
    async with client.sandbox(IMAGE, memory_mib=128) as sandbox:
        result = await sandbox.run_shell(f'(sh -c "{hog}"; true); echo survived')
        assert (result.exit_code, result.stdout) == (0, "survived\n")
        assert result.oom_kills >= 1
        assert (await sandbox.run_shell("echo alive")).oom_kills == 0
        assert (await sandbox.info()).state == "running"
        assert (await sandbox.usage()).oom_kills >= 1


async def test_pids_limit_is_a_fact(client: dsec.DSecClient) -> None:
    """A fork bomb meets the limit, is told by quota_hits, and the sandbox lives on."""
    program = (
        "import os, sys\n"
        "children = []\n"
        "try:\n"
        "    while True:\n"
        "        pid = os.fork()\n"
        "        if pid == 0:\n"
        "            os.read(0, 1); os._exit(0)\n"
        "        children.append(pid)\n"
        "except OSError as error:\n"
        "    print(error.errno, len(children) < 64)\n"
    )
    async with client.sandbox(IMAGE, pids=64) as sandbox:
        made = await sandbox.spawn("python3", "-c", program, stdin=dsec.PIPE)
        await made.stdin.close()
        result = await made.wait()
        assert result.stdout == "11 True\n"
        assert result.quota_hits == {"pids"}
        assert (await sandbox.run_shell("echo alive")).quota_hits == frozenset()


async def test_usage_is_plausible(sandbox: dsec.Sandbox) -> None:
    """Processor time, peak memory, duration and start are near what the program did."""
    program = (
        "import time\n"
        "b = bytearray(100 << 20)\n"
        "end = time.process_time() + 0.3\n"
        "while time.process_time() < end: pass\n"
    )
    before = time.time()
    result = await sandbox.exec("python3", "-c", program)
    assert result.ok
    assert 0.3 <= result.usage.cpu_s < 2
    assert 100 <= result.usage.memory_peak_mib < 200
    assert result.usage.cpu_s * 0.4 < result.duration_s < 30
    assert before - 1 <= result.started_at <= time.time()


async def test_the_same_key_runs_once(sandbox: dsec.Sandbox) -> None:
    """Two calls with a key give one run and equal results, side by side and later; another body is a Conflict."""
    script = "echo run >> /count; sleep 0.3; echo out; exit 5"
    first, second = await asyncio.gather(*(sandbox.run_shell(script, key="once") for _ in range(2)))
    third = await sandbox.run_shell(script, key="once")
    assert first == second == third
    assert (first.exit_code, first.stdout) == (5, "out\n")
    assert await sandbox.read("/count") == b"run\n"
    with pytest.raises(dsec.Conflict):
        await sandbox.run_shell("echo other", key="once")


async def test_a_remembered_failure(sandbox: dsec.Sandbox) -> None:
    """An error that is not retryable is the answer of its key, even when it would go well by now."""
    with pytest.raises(dsec.ExecutableNotFound):
        await sandbox.exec("/opt/late", key="k")
    await sandbox.write("/opt/late", "#!/bin/sh\necho late\n", mode=0o755)
    with pytest.raises(dsec.ExecutableNotFound):
        await sandbox.exec("/opt/late", key="k")
    assert (await sandbox.exec("/opt/late", key="k2")).stdout == "late\n"


async def test_cancelling_kills_and_confirms(sandbox: dsec.Sandbox) -> None:
    """When the cancelled call comes back, no process of the exec is left, though it ignores SIGTERM."""
    task = asyncio.create_task(
        sandbox.run_shell("trap '' TERM; setsid -f sleep 1000; touch /ready; sleep 1000", grace_s=0.2, key="k")
    )
    await until_exists(sandbox, "/ready")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await sandbox.run_shell("pgrep -c sleep")).stdout == "0\n"
    ended = [one.ended for one in await sandbox.execs() if "/ready" in one.argv[-1] and "trap" in one.argv[-1]]
    assert ended == ["cancelled"]


async def test_a_timeout_around_an_exec_cancels_it(sandbox: dsec.Sandbox) -> None:
    """asyncio.timeout around exec kills and confirms as well."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await sandbox.exec("sleep", "1000")
    assert (await sandbox.run_shell("pgrep -c sleep")).stdout == "0\n"


async def until_exists(sandbox: dsec.Sandbox, path: str) -> None:
    """Return when the file is there; the waiting is the sandbox's own."""
    result = await sandbox.run_shell(f"while ! [ -e {path} ]; do sleep 0.02; done", timeout_s=20)
    assert result.ok


async def test_a_kill_outruns_a_fork_bomb(client: dsec.DSecClient) -> None:
    """Processes that fork as fast as they can, in sessions of their own, are all gone when kill returns."""
    bomb = "import os\nif os.fork(): print('lit', flush=True)\nos.setsid() if os.getpid() != os.getsid(0) else 0\n"
    bomb += "while True:\n    try: os.fork()\n    except OSError: pass\n"
    async with client.sandbox(IMAGE, pids=300) as sandbox:
        running = await sandbox.spawn("python3", "-c", bomb)
        assert await anext(running.lines()) == "lit"
        await running.kill(grace_s=0)
        assert (await running.wait()).ended == "cancelled"
        assert (await sandbox.run_shell("pgrep -c python3")).stdout == "0\n"
