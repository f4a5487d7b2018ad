"""Limits hold: memory, processor, disk, processes; what meets them is told, and a neighbour feels nothing."""

from __future__ import annotations

import asyncio

import pytest

import dsec
from dsec.testing.node import RunningNode

from .conftest import IMAGE

pytestmark = [pytest.mark.node, pytest.mark.anyio]


async def test_memory_limit_holds(client: dsec.DSecClient) -> None:
    """A hog is killed inside its limit, by its own group's killer; the sandbox and its other programs live."""
    async with client.sandbox(IMAGE, memory_mib=96) as sandbox:
        other = await sandbox.spawn("cat", stdin=dsec.PIPE)
        hog = await sandbox.exec("python3", "-c", "b = bytearray(300 << 20)")
        assert (hog.ended, hog.signal, hog.oom_kills) == ("signalled", 9, 1)
        await other.stdin.write("alive")
        await other.stdin.close()
        assert (await other.wait()).stdout == "alive"
        assert (await sandbox.exec("python3", "-c", "b = bytearray(40 << 20)")).ok
        usage = await sandbox.usage()
        assert usage.oom_kills == 1 and 40 < usage.memory_peak_mib <= 97


async def test_shared_memory_counts(client: dsec.DSecClient) -> None:
    """/dev/shm is memory of the sandbox: filling it beyond the memory limit kills the writer, not the node."""
    async with client.sandbox(IMAGE, memory_mib=64, shm_mib=512) as sandbox:
        result = await sandbox.run_shell("head -c 200M /dev/zero > /dev/shm/x", timeout_s=60)
        assert not result.ok
        assert (await sandbox.usage()).memory_mib <= 65


async def test_cpu_limit_holds(client: dsec.DSecClient) -> None:
    """Half a processor for a busy second is about half a second of work."""
    program = "import time\nend = time.monotonic() + 2\nwhile time.monotonic() < end: pass"
    async with client.sandbox(IMAGE, cpu=0.25) as sandbox:
        result = await sandbox.exec("python3", "-c", program)
        assert result.ok
        assert result.usage.cpu_s <= 0.25 * result.duration_s + 0.2


async def test_disk_limit_is_exact(client: dsec.DSecClient) -> None:
    """Writing ends with EDQUOT or ENOSPC near the limit, told by quota_hits; deleting gives the room back."""
    fill = (
        "import errno, os\n"
        "file = os.open('/big', os.O_CREAT | os.O_WRONLY)\n"
        "written = 0\n"
        "try:\n"
        "    while True:\n"
        "        written += os.write(file, os.urandom(1 << 16))\n"
        "except OSError as error:\n"
        "    print(written >> 20, errno.errorcode[error.errno])\n"
    )
    async with client.sandbox(IMAGE, disk_mib=48) as sandbox:
        result = await sandbox.exec("python3", "-c", fill)
        written, name = result.stdout.split()
        assert 40 <= int(written) <= 48 and name in ("EDQUOT", "ENOSPC")
        assert result.quota_hits == {"disk"}
        with pytest.raises(dsec.FileError):
            await sandbox.write("/more", b"x" * 10_000_000)
        usage = await sandbox.usage()
        assert 40 <= usage.disk_mib <= 49
        assert (
            await sandbox.run_shell("rm /big && sync && head -c 10M /dev/urandom > /again && stat -c %s /again")
        ).ok
        assert (await sandbox.exec("true")).quota_hits == frozenset()


async def test_pids_limit_of_a_sandbox(client: dsec.DSecClient) -> None:
    """Two programs share one limit; the neighbour starts what it likes."""
    async with client.sandbox(IMAGE, pids=40) as sandbox, client.sandbox(IMAGE) as neighbour:
        program = (
            "import subprocess\n"
            "try:\n"
            "    for _ in range(100): subprocess.Popen(['sleep', '1000'])\n"
            "except OSError as error: print(error.errno)\n"
        )
        result = await sandbox.exec("python3", "-c", program)
        assert (result.stdout, set(result.quota_hits)) == ("11\n", {"pids"})
        assert (await neighbour.run_shell("for i in $(seq 100); do sleep 0 & done; wait")).ok
        usage = await sandbox.usage()
        assert usage.pids <= 40


@pytest.mark.parametrize(
    "fields",
    [
        {"memory_mib": 0}, {"memory_mib": -1}, {"memory_mib": float("nan")}, {"memory_mib": float("inf")},
        {"cpu": 0}, {"cpu": -2}, {"cpu": float("nan")}, {"pids": 0}, {"pids": 1.5}, {"disk_mib": 0},
        {"disk_mib": float("nan")}, {"memory_mib": (512, 256)}, {"cpu": (0, 1)}, {"shm_mib": -1},
        {"memory_mib": (2.0**30, 2.0**30)}, {"cpu": (5000, 5000)}, {"pids": (4_000_000, 4_000_000)},
        {"disk_mib": (2.0**30, 2.0**30)}, {"idle_timeout_s": 0}, {"idle_timeout_s": float("inf")},
        {"lifetime_s": float("nan")}, {"lifetime_s": 1e12}, {"exec_timeout_s": -1},
        {"name": "a b"}, {"name": ""}, {"workdir": "relative"}, {"env": {"A=B": ""}}, {"env": {"A": "\0"}},
        {"labels": {"": "x"}}, {"labels": {"x": "y" * 1000}}, {"command": []}, {"command": "a string"},
        {"user": "no-such-user", "command": ["true"]}, {"image": ""},
    ],
    ids=repr,
)  # fmt: skip
async def test_impossible_sandboxes(node: RunningNode, client: dsec.DSecClient, fields: dict[str, object]) -> None:
    """Each is refused at once as the caller's error, and no sandbox is made."""
    image = fields.pop("image", IMAGE) if "image" in fields else IMAGE
    with pytest.raises(dsec.DSecError) as caught:
        await client.sandbox(image, deadline_s=20, **fields)  # type: ignore[arg-type]
    assert isinstance(caught.value, dsec.InvalidArgument), caught.value
    assert not caught.value.retryable
    assert node.live_sandboxes() == []


async def test_limits_above_the_node_never_bind(client: dsec.DSecClient) -> None:
    """A limit may exceed the machine as long as the request fits."""
    async with client.sandbox(IMAGE, memory_mib=(64, 2.0**24), cpu=(0.1, 512), disk_mib=(10, 2.0**24)) as sandbox:
        assert (await sandbox.exec("true")).ok


async def test_a_full_node(client: dsec.DSecClient) -> None:
    """Requests that no longer fit are refused at once with on_full="raise", and wait for room otherwise."""
    status = await client.status()
    whole = status.capacity["memory_bytes"] / (1 << 20)
    args = dsec.SandboxArgs(IMAGE, memory_mib=(whole * 0.7, whole * 0.7))
    async with client.sandbox(args) as first:
        with pytest.raises(dsec.CapacityError) as full:
            await client.sandbox(args, on_full="raise")
        assert full.value.retryable and full.value.fault == "node" and full.value.remedy
        with pytest.raises(dsec.CapacityError):
            await client.sandbox(args, deadline_s=0.5)
        async with client.sandbox(IMAGE) as small:
            assert (await small.exec("true")).ok
        task = asyncio.ensure_future(client.sandbox(args, deadline_s=30))
        await asyncio.wait([task], timeout=0.2)
        assert not task.done()
        await first.stop()
        second = await task
        await second.stop()
