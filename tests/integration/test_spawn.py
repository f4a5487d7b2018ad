"""Programs that run while their caller does other things."""

from __future__ import annotations

import asyncio
import signal

import pytest

import dsec
from dsec.client.results import Exited, Stderr, Stdout

pytestmark = [pytest.mark.node, pytest.mark.anyio]


async def collected(running: dsec.Exec) -> tuple[bytes, bytes, Exited]:
    """All events of an exec; offsets are checked on the way."""
    out, err = bytearray(), bytearray()
    async for event in running.events():
        if isinstance(event, Stdout):
            assert event.offset == len(out)
            out += event.data
        elif isinstance(event, Stderr):
            assert event.offset == len(err)
            err += event.data
        else:
            assert isinstance(event, Exited)
            return bytes(out), bytes(err), event
    raise AssertionError("no Exited came")


async def test_events_are_exact_and_end_with_exited(sandbox: dsec.Sandbox) -> None:
    """Both streams at their offsets, then the end with its facts; the same again for a second reader."""
    running = await sandbox.spawn(shell="seq 1 50000; seq 1 30000 >&2; exit 6")
    wanted = tuple("".join(f"{number}\n" for number in range(1, count + 1)).encode() for count in (50_000, 30_000))
    for _ in range(2):
        out, err, end = await collected(running)
        assert (out, err) == wanted
        assert (end.exit_code, end.ended, end.signal) == (6, "exited", None)
    assert (await running.wait()).exit_code == 6


async def test_talking_with_a_program(sandbox: dsec.Sandbox) -> None:
    """What is written to stdin is answered while the program runs; closing it ends the program."""
    running = await sandbox.spawn("sed", "-u", "s/^/got /", stdin=dsec.PIPE)
    lines = running.lines()
    for word in ("one", "two ünï"):
        await running.stdin.write(word + "\n")
        assert await anext(lines) == f"got {word}"
    assert await running.poll() is None
    await running.stdin.close()
    assert [line async for line in lines] == []
    end = await running.poll()
    assert end is not None and end.exit_code == 0


async def test_lines_of_split_characters(sandbox: dsec.Sandbox) -> None:
    """A character that comes in two pieces is one; a last line without its newline is given too."""
    program = "import os, sys\nos.write(1, b'\\xc3')\nsys.stdin.read(1)\nos.write(1, b'\\xbc\\n\\xff\\nlast')"
    running = await sandbox.spawn("python3", "-c", program, stdin=dsec.PIPE)
    await running.stdin.write("x")
    assert [line async for line in running.lines()] == ["ü", "\ufffd", "last"]


async def test_signal_and_kill(sandbox: dsec.Sandbox) -> None:
    """A signal reaches the program's group and nothing more; kill ends everything, confirmed."""
    program = (
        "import signal\nsignal.signal(signal.SIGUSR1, lambda *_: print('usr1'))\nprint('ready')\n"
        "while True:\n    signal.pause()"
    )
    running = await sandbox.spawn("python3", "-uc", program)
    lines = running.lines()
    assert await anext(lines) == "ready"
    await running.signal(signal.SIGUSR1)
    assert await anext(lines) == "usr1"
    assert await running.poll() is None
    await running.kill(grace_s=0.2)
    end = await running.poll()
    assert end is not None and end.ended == "cancelled"
    assert (await running.wait()).ended == "cancelled"


async def test_kill_by_id_of_one_that_never_was(sandbox: dsec.Sandbox) -> None:
    """A kill that comes before its exec is remembered: the later start ends cancelled, unrun."""
    from dsec.api.ids import exec_id

    await sandbox.kill(exec_id(sandbox.id, "later"), grace_s=0)
    result = await sandbox.exec("touch", "/ran", key="later")
    assert result.ended == "cancelled"
    assert not (await sandbox.exec("test", "-e", "/ran")).ok


async def test_cancelling_wait_only_detaches(sandbox: dsec.Sandbox) -> None:
    """A cancelled wait leaves the program running, and another wait gets the whole result."""
    running = await sandbox.spawn("cat", stdin=dsec.PIPE)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await running.wait()
    assert await running.poll() is None
    await running.stdin.write("still here")
    await running.stdin.close()
    assert (await running.wait()).stdout == "still here"


async def test_execs_lists_running_and_ended(sandbox: dsec.Sandbox) -> None:
    """In the order of their start, with words, totals and ends."""
    await sandbox.run_shell("echo abc; exit 2")
    running = await sandbox.spawn("sleep", "1000")
    first, second = await sandbox.execs()
    assert (first.argv[-1], first.exit_code, first.stdout_total_bytes) == ("echo abc; exit 2", 2, 4)
    assert (second.id, second.argv, second.ended) == (running.id, ["sleep", "1000"], None)
    await running.kill(grace_s=0)


async def test_backpressure_holds_the_program_and_loses_nothing(sandbox: dsec.Sandbox) -> None:
    """With backpressure a reader that begins late still gets every byte of more than the node keeps."""
    program = (
        "import os\n"
        "for i in range(80):\n"
        "    data = (b'%07d\\n' % i) * 131072\n"
        "    while data: data = data[os.write(1, data):]\n"
    )
    running = await sandbox.spawn("python3", "-c", program, backpressure=True)
    total = 0
    async for event in running.events():
        if isinstance(event, Stdout):
            assert event.offset == total
            total += len(event.data)
        else:
            assert isinstance(event, Exited) and event.exit_code == 0
    assert total == 80 << 20


async def test_many_at_once(sandbox: dsec.Sandbox) -> None:
    """Sixty programs side by side, each with its own exact output."""
    results = await asyncio.gather(*(sandbox.run_shell(f"echo {n}; echo {n} >&2; exit {n}") for n in range(60)))
    assert [(one.stdout, one.stderr, one.exit_code) for one in results] == [
        (f"{n}\n", f"{n}\n", n) for n in range(60)
    ]


async def test_a_stopped_sandbox_ends_its_execs_with_what_they_said(client: dsec.DSecClient) -> None:
    """SandboxGone(stopped), the caller's fault, with the output until then; never a result."""
    async with client.sandbox("dsec/debian:12") as sandbox:
        running = await sandbox.spawn(shell="echo said; touch /ready; sleep 1000")
        assert (await sandbox.run_shell("while ! [ -e /ready ]; do sleep 0.02; done", timeout_s=20)).ok
        waiting = asyncio.create_task(running.wait())
        await sandbox.stop()
        with pytest.raises(dsec.SandboxGone) as gone:
            await waiting
    assert (gone.value.cause, gone.value.fault, gone.value.is_infra) == ("stopped", "caller", False)
    assert gone.value.partial is not None and gone.value.partial.stdout == "said\n"
    with pytest.raises(dsec.SandboxGone):
        await sandbox.exec("true")
    with pytest.raises(dsec.SandboxGone):
        await running.poll()
    (listed,) = [each for each in await sandbox.execs() if each.id == running.id]
    assert listed.ended is None and listed.error is not None and listed.error["code"] == "sandbox_gone"
