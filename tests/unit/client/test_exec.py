"""Execs: results, output, input, and what is asked of the server for them."""

from __future__ import annotations

import asyncio
import signal

import pytest

import dsec
from dsec.client.client import DSecClient
from dsec.testing.fake_node import FakeNode

pytestmark = pytest.mark.anyio


async def test_a_result_has_every_fact(client: DSecClient) -> None:
    """An exec's result carries exit code, ending, output as text and bytes, times, usage and its ID."""
    sandbox = await client.sandbox("image")
    result = await sandbox.exec("echo", "héllo", "world")
    assert result.ok and result.exit_code == 0 and result.signal is None
    assert result.ended is dsec.Ended.EXITED
    assert result.stdout == "héllo world\n"
    assert result.stdout_bytes == "héllo world\n".encode()
    assert result.stdout_total_bytes == 13 and not result.truncated
    assert result.stderr == "" and result.stderr_bytes == b"" and result.stderr_total_bytes == 0
    assert result.started_at > 0 and result.duration_s >= 0
    assert result.usage.cpu_s == 0.001 and result.usage.memory_peak_mib == 1
    assert result.oom_kills == 0 and result.quota_hits == frozenset()
    assert result.sandbox_id == sandbox.id


async def test_a_non_zero_exit_is_data(client: DSecClient) -> None:
    """Without check a failed program is a result; with check it raises ExecFailed, which has the result."""
    sandbox = await client.sandbox("image")
    result = await sandbox.run_shell("exit 7")
    assert result.exit_code == 7 and not result.ok
    with pytest.raises(dsec.ExecFailed, match="7") as failed:
        await sandbox.run_shell("exit 7", check=True)
    assert failed.value.result.exit_code == 7
    assert failed.value.fault == "command"


async def test_text_is_decoded_with_replacement(client: DSecClient) -> None:
    """Bytes that are no UTF-8 become replacement characters in the text and stay exact in the bytes."""
    sandbox = await client.sandbox("image")
    result = await sandbox.exec("err", b"a\xff")
    assert result.stderr == "a\ufffd\n"
    assert result.stderr_bytes == b"a\xff\n"


async def test_long_output_keeps_head_and_tail(client: DSecClient) -> None:
    """Of output beyond max_output_bytes head and tail are kept, and the text says how much was cut where."""
    sandbox = await client.sandbox("image")
    result = await sandbox.exec("spew", "100000", max_output_bytes=1000)
    whole = bytes(range(256)) * 390 + bytes(160)
    assert result.truncated and result.stdout_total_bytes == 100_000
    assert result.stdout_bytes == whole[:500] + whole[-500:]
    assert "[… 99000 bytes cut here …]" in result.stdout


async def test_output_larger_than_many_frames_is_exact(client: DSecClient) -> None:
    """Five megabytes of output arrive complete and in order."""
    sandbox = await client.sandbox("image")
    result = await sandbox.exec("spew", str(5 << 20))
    assert result.stdout_bytes == bytes(range(256)) * ((5 << 20) // 256)
    assert not result.truncated


async def test_input_larger_than_its_credit_arrives(client: DSecClient) -> None:
    """A program gets standard input of more than one credit window exactly, then its end."""
    sandbox = await client.sandbox("image")
    data = bytes(range(256)) * 8192
    result = await sandbox.exec("cat", stdin=data)
    assert result.stdout_bytes == data


async def test_a_warm_exec_is_one_message_out(fake: FakeNode, client: DSecClient) -> None:
    """An exec without input costs the client exactly one frame."""
    sandbox = await client.sandbox("image")
    await sandbox.exec("true")
    before = fake.edge.frames_in
    for _ in range(10):
        await sandbox.exec("true")
    assert fake.edge.frames_in - before == 10


async def test_the_same_key_runs_once(fake: FakeNode, client: DSecClient) -> None:
    """A second exec with the key of the first gives its result and starts nothing."""
    sandbox = await client.sandbox("image")
    first = await sandbox.exec("echo", "one", key="k1")
    second = await sandbox.exec("echo", "one", key="k1")
    assert first.exec_id == second.exec_id and first.stdout == second.stdout
    assert fake.edge.starts == [first.exec_id]


async def test_a_missing_program_is_the_commands_fault(client: DSecClient) -> None:
    """ExecutableNotFound is also Python's FileNotFoundError and names the program; spawn raises it as exec does."""
    sandbox = await client.sandbox("image")
    for start in (sandbox.exec, sandbox.spawn):
        with pytest.raises(dsec.ExecutableNotFound, match="nosuch") as raised:
            await start("nosuch")
        assert isinstance(raised.value, FileNotFoundError) and raised.value.fault == "command"


@pytest.mark.parametrize(
    "fields",
    [
        {"timeout_s": 0.0},
        {"timeout_s": float("nan")},
        {"grace_s": -1.0},
        {"max_output_bytes": 0},
        {"max_output_bytes": (64 << 20) + 1},
        {"key": "with space"},
    ],
)
async def test_impossible_arguments_are_refused(client: DSecClient, fields: dict[str, float]) -> None:
    """What cannot be meant is refused before anything is sent."""
    sandbox = await client.sandbox("image")
    with pytest.raises(dsec.InvalidArgument):
        await sandbox.exec("true", **fields)  # type: ignore[arg-type]
    with pytest.raises(dsec.InvalidArgument):
        await sandbox.exec()


async def test_requests_longer_than_a_frame(client: DSecClient) -> None:
    """They go in parts, several at once; above 16 MiB it is the caller's error, and the connection goes on."""
    sandbox = await client.sandbox("image")
    words = [str(number) * 300_000 for number in range(3)]
    results = await asyncio.gather(*(sandbox.exec("echo", word) for word in words))
    assert [result.stdout for result in results] == [word + "\n" for word in words]
    with pytest.raises(dsec.InvalidArgument, match="more than"):
        await sandbox.exec("echo", "x" * (17 << 20))
    assert (await sandbox.exec("true")).ok


async def test_a_spawned_program_talks_while_it_runs(client: DSecClient) -> None:
    """Input written to a running program comes back as events in exact bytes; then Exited, wait and poll agree."""
    sandbox = await client.sandbox("image")
    running = await sandbox.spawn("cat", stdin=dsec.PIPE)
    assert await running.poll() is None
    got = b""
    await running.stdin.write(b"one\n")
    exits = []
    async for event in running.events():
        if isinstance(event, dsec.Stdout):
            assert event.offset == len(got)
            got += event.data
            if got == b"one\n":
                await running.stdin.write("two\n")
                await running.stdin.close()
        elif isinstance(event, dsec.Exited):
            exits.append(event)
    assert got == b"one\ntwo\n"
    assert [event.exit_code for event in exits] == [0]
    result = await running.wait()
    assert result.stdout == "one\ntwo\n"
    polled = await running.poll()
    assert polled is not None and polled.exit_code == 0


async def test_lines_are_whole_and_decoded(client: DSecClient) -> None:
    """lines() gives whole lines of text without their ends, and the last one without a newline too."""
    sandbox = await client.sandbox("image")
    running = await sandbox.spawn("cat", stdin=dsec.PIPE)
    await running.stdin.write("äöü\nno end")
    await running.stdin.close()
    assert [line async for line in running.lines()] == ["äöü", "no end"]


async def test_events_of_much_output_stay_within_credit(fake: FakeNode, client: DSecClient) -> None:
    """Several windows of output come through events() completely, the reader granting as it reads."""
    sandbox = await client.sandbox("image")
    running = await sandbox.spawn("spew", str(4 << 20))
    got = bytearray()
    async for event in running.events():
        if isinstance(event, dsec.Stdout):
            got += event.data
    assert bytes(got) == bytes(range(256)) * ((4 << 20) // 256)


async def test_signal_and_kill(fake: FakeNode, client: DSecClient) -> None:
    """signal() sends one signal; kill() ends the program, and its result says cancelled."""
    sandbox = await client.sandbox("image")
    running = await sandbox.spawn("hang")
    await running.signal(signal.SIGUSR1)
    started = fake.edge.exec_of(["hang"])
    assert started is not None and started.signals == [signal.SIGUSR1]
    await running.kill()
    result = await running.wait()
    assert result.ended is dsec.Ended.CANCELLED and not result.ok


async def test_writing_to_an_ended_program_says_so(client: DSecClient) -> None:
    """Input for a program that has ended is the command's error, not a broken connection's."""
    sandbox = await client.sandbox("image")
    running = await sandbox.spawn("true", stdin=dsec.PIPE)
    await running.wait()
    with pytest.raises(dsec.CommandError, match="ended"):
        await running.stdin.write(b"too late")


async def test_logs_and_tombstone(client: DSecClient) -> None:
    """A stopped sandbox still answers info, story, usage and execs; stop tells what was seen."""
    sandbox = await client.sandbox("image")
    await sandbox.exec("true")
    stopped = await sandbox.stop()
    assert stopped.proof_of_death.processes == 0 and stopped.cause == "stopped"
    assert (await sandbox.info()).state is dsec.SandboxState.STOPPED
    assert [entry.state for entry in await sandbox.story()] == ["running"]
    assert (await sandbox.usage()).oom_kills == 0
    assert [known.argv for known in await sandbox.execs()] == [["true"]]
