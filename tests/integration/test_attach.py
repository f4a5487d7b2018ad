"""Attach: any client, at byte offsets, any number of readers and writers, after the end and after the stop."""

from __future__ import annotations

import asyncio
import hashlib
import pickle
import random

import pytest

import dsec
from dsec.client.results import Exited, Gap, Stderr, Stdout
from dsec.testing.node import RunningNode, wait_until

pytestmark = [pytest.mark.node, pytest.mark.anyio]

IMAGE = "dsec/debian:12"
COUNT = 30_000
OUT = b"".join(b"%08d out\n" % each for each in range(COUNT))
ERR = b"".join(b"%08d err\n" % each for each in range(COUNT // 3))
WRITE = (
    "import os, time\n"
    f"for each in range({COUNT}):\n"
    " os.write(1, b'%08d out\\n' % each)\n"
    " if each % 3 == 0: os.write(2, b'%08d err\\n' % (each // 3))\n"
    " if each % 100 == 0: time.sleep(0.002)\n"
)


async def exactly(exec_: dsec.Exec, start: tuple[int, int]) -> tuple[bytes, bytes]:
    """Everything from these offsets to the end; each event stands where the one before it ended."""
    out, err = bytearray(), bytearray()
    async for event in exec_.events():
        if isinstance(event, Stdout):
            assert event.offset == start[0] + len(out)
            out += event.data
        elif isinstance(event, Stderr):
            assert event.offset == start[1] + len(err)
            err += event.data
        else:
            assert isinstance(event, Exited) and event.exit_code == 0, event
    return bytes(out), bytes(err)


async def test_readers_come_and_go(node: RunningNode, sandbox: dsec.Sandbox) -> None:
    """Sixty readers of three clients begin and leave anywhere while the program runs: each is byte-exact."""
    chance = random.Random(20)
    running = await sandbox.spawn("python3", "-c", WRITE)

    async def churn(client: dsec.DSecClient) -> None:
        start = (chance.randrange(len(OUT)), chance.randrange(len(ERR)))
        enough = chance.randrange(1, len(OUT))
        reader = client.attach(sandbox.id).attach(running.id, offset=start)
        taken = 0
        events = reader.events()
        async for event in events:
            if isinstance(event, Stdout | Stderr):
                whole = OUT if isinstance(event, Stdout) else ERR
                assert event.data == whole[event.offset : event.offset + len(event.data)]
                taken += len(event.data)
            if taken > enough:
                break
        await events.aclose()

    async with node.client() as second, node.client() as third:
        clients = [sandbox._client, second, third]
        await asyncio.gather(*(churn(clients[each % 3]) for each in range(60)))
        assert await exactly(third.attach(sandbox.id).attach(running.id), (0, 0)) == (OUT, ERR)
    start = (len(OUT) - 5, 7)
    assert await exactly(sandbox.attach(running.id, offset=start), start) == (OUT[-5:], ERR[7:])
    assert await exactly(sandbox.attach(running.id, offset=len(OUT)), (len(OUT), len(OUT))) == (b"", b"")


async def test_a_slow_reader_blocks_nobody(node: RunningNode, sandbox: dsec.Sandbox) -> None:
    """One takes a single event and stops: the program ends and another reader gets all of 20 MB."""
    size = 20_000_000
    running = await sandbox.spawn(shell=f"head -c {size} /dev/zero; echo end >&2")
    slow = sandbox.attach(running.id).events()
    assert isinstance(await anext(slow), Stdout)
    async with node.client() as other:
        fast = 0
        async for event in other.attach(sandbox.id).attach(running.id).events():
            if isinstance(event, Stdout):
                fast += len(event.data)
        assert fast == size
    rest = [event async for event in slow]
    assert isinstance(rest[-1], Exited)
    assert sum(len(event.data) for event in rest if isinstance(event, Stdout)) < size


async def test_writing_to_anybodys_exec(node: RunningNode, sandbox: dsec.Sandbox) -> None:
    """Two clients write to what a third one started: all of it arrives, each one's bytes in order."""
    running = await sandbox.spawn("cat", stdin=dsec.PIPE)
    await running.stdin.write("first\n")
    async with node.client() as one, node.client() as two:
        writers = [client.attach(sandbox.id).attach(running.id) for client in (one, two)]

        async def write(writer: dsec.Exec, name: str) -> None:
            for number in range(200):
                await writer.stdin.write(f"{name} {number}\n")

        seen = running.lines()
        await asyncio.gather(write(writers[0], "one"), write(writers[1], "two"))
        for _ in range(401):  # what is on its way by another connection comes after a close by this one
            await anext(seen)
        await running.stdin.write("last\n")
        await running.stdin.close()
        result = await writers[0].wait()
    lines = result.stdout.splitlines()
    assert lines[0] == "first" and lines[-1] == "last" and len(lines) == 402
    for name in ("one", "two"):
        assert [line for line in lines if line.startswith(name)] == [f"{name} {number}" for number in range(200)]


async def test_much_input_by_another(node: RunningNode, sandbox: dsec.Sandbox) -> None:
    """Input of 3 MB from an attached client is exact, with back-pressure."""
    running = await sandbox.spawn("sha256sum", stdin=dsec.PIPE)
    data = random.Random(3).randbytes(3_000_000)
    async with node.client() as other:
        attached = pickle.loads(pickle.dumps(running))
        assert attached.id == running.id
        attached = other.attach(sandbox.id).attach(running.id)
        await attached.stdin.write(data)
        await attached.stdin.close()
        assert (await attached.wait()).stdout.split()[0] == hashlib.sha256(data).hexdigest()


async def test_input_where_none_is_taken(sandbox: dsec.Sandbox) -> None:
    """An exec without standard input says so, and its result is still to be had."""
    running = await sandbox.spawn(shell="until test -e /tmp/go; do sleep 0.05; done; echo done")
    attached = sandbox.attach(running.id)
    with pytest.raises(dsec.InvalidArgument):
        await attached.stdin.write("x" * 100_000)
        await attached.stdin.write("x" * 400_000)
    await sandbox.write("/tmp/go", b"")
    assert (await attached.wait()).stdout == "done\n"


async def test_after_the_end_and_after_the_stop(node: RunningNode, client: dsec.DSecClient) -> None:
    """An ended exec is told whole; of a stopped sandbox the last 64 KiB with a gap before them, and the end."""
    async with client.sandbox(IMAGE) as sandbox:
        ended = await sandbox.spawn("python3", "-c", WRITE)
        assert await exactly(sandbox.attach(ended.id), (0, 0)) == (OUT, ERR)
        cut = await sandbox.spawn(shell="echo begun; exec sleep 100")
        assert await anext(cut.lines()) == "begun"
    await asyncio.to_thread(wait_until, lambda: sandbox.id not in node.live_sandboxes(), "the runtime forgets it")
    kept = 64 << 10
    events = [event async for event in client.attach(sandbox.id).attach(ended.id).events()]
    assert isinstance(events[-1], Exited) and events[-1].exit_code == 0
    assert {(gap.stream, gap.start, gap.end) for gap in events if isinstance(gap, Gap)} == {
        ("stdout", 0, len(OUT) - kept),
        ("stderr", 0, len(ERR) - kept),
    }
    assert b"".join(event.data for event in events if isinstance(event, Stdout)) == OUT[-kept:]
    assert b"".join(event.data for event in events if isinstance(event, Stderr)) == ERR[-kept:]
    late = [event async for event in client.attach(sandbox.id).attach(ended.id, offset=len(ERR) - 10).events()]
    assert [event.data for event in late if isinstance(event, Stderr)] == [ERR[-10:]]
    result = await client.attach(sandbox.id).attach(ended.id).wait()
    assert result.exit_code == 0 and result.truncated and result.stdout_bytes == OUT[-kept:]
    with pytest.raises(dsec.SandboxGone) as gone:
        await client.attach(sandbox.id).attach(cut.id).wait()
    assert gone.value.partial is not None and gone.value.partial.stdout == "begun\n"
    shown = []
    with pytest.raises(dsec.SandboxGone):
        async for event in client.attach(sandbox.id).attach(cut.id).events():
            shown.append(event)
    assert shown == [Stdout(b"begun\n", 0)]


async def test_what_cannot_be_attached_to(sandbox: dsec.Sandbox) -> None:
    """No exec of that ID, an ID that is none, offsets that are none."""
    with pytest.raises(dsec.NotFound):
        await sandbox.attach("a" * 26).wait()
    with pytest.raises(dsec.NotFound):
        async for _ in sandbox.attach("a" * 26).events():
            pass
    for wrong in (-1, (0, -1)):
        with pytest.raises(dsec.InvalidArgument):
            sandbox.attach("a" * 26, offset=wrong)
    with pytest.raises(dsec.InvalidArgument):
        sandbox.attach("not an ID")
