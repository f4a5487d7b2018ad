"""What tools see of processors and memory follows the limits: for sizing, and with nothing in common."""

from __future__ import annotations

import os

import pytest

import dsec

from .inside import IMAGE, USERS, attempts

pytestmark = [pytest.mark.node, pytest.mark.anyio]

ASK = """
import re
def read(path):
    return open(path).read()
meminfo = dict(line.split(":") for line in read("/proc/meminfo").splitlines())
found["kib"] = {key: int(meminfo[key].split()[0]) for key in ("MemTotal", "MemFree", "MemAvailable", "SwapTotal")}
found["mask"] = len(os.sched_getaffinity(0))
found["count"] = os.cpu_count()
found["blocks"] = len(re.findall("^processor", read("/proc/cpuinfo"), re.M))
found["ranges"] = [read(f"/sys/devices/system/cpu/{name}").strip() for name in ("online", "possible", "present")]
"""


def processors(limit: int) -> int:
    """As many as the limit, where the machine has them."""
    return min(limit, len(os.sched_getaffinity(0)))


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize(("cpu", "count"), [(0.5, 1), (1, 1), (2, 2)])
async def test_processors_and_memory(client: dsec.DSecClient, cpu: float, count: int, user: str) -> None:
    """Mask, sysconf, cpuinfo and /sys count the CPU limit, rounded up; memory is the limit; there is no swap."""
    wanted = processors(count)
    async with client.sandbox(IMAGE, cpu=cpu, memory_mib=192) as sandbox:
        found = await attempts(sandbox, ASK, user)
        kib = 192 * 1024
        assert found["kib"] == {"MemTotal": kib, "MemFree": kib, "MemAvailable": kib, "SwapTotal": 0}
        assert (found["mask"], found["count"], found["blocks"]) == (wanted, wanted, wanted)
        if wanted < (os.cpu_count() or 1):
            assert set(found["ranges"]) == {"0" if wanted == 1 else f"0-{wanted - 1}"}
        tools = "nproc; getconf _NPROCESSORS_ONLN; free -m | awk '/^Mem/ { print $2 }'"
        said = await sandbox.run_shell(tools, user=user, check=True)
        assert said.stdout.split() == [str(wanted), str(wanted), "192"]


async def test_a_session_and_a_fork_see_the_same(client: dsec.DSecClient) -> None:
    """The shell of a session, and a fork, are sized like any exec."""
    async with client.sandbox(IMAGE, cpu=1, memory_mib=128) as sandbox:
        async with sandbox.open_session() as session:
            assert (await session.run("nproc")).stdout == "1\n"
        (made,) = await sandbox.fork(1).all()
        assert made.sandbox is not None, made.error
        try:
            said = await made.sandbox.run_shell("nproc; head -1 /proc/meminfo", check=True)
            assert said.stdout.split() == ["1", "MemTotal:", "131072", "kB"]
        finally:
            await made.sandbox.stop()


async def test_it_is_no_limit(client: dsec.DSecClient) -> None:
    """A program may take all processors again; the files it can neither write, unmount nor replace."""
    async with client.sandbox(IMAGE, cpu=1, memory_mib=128) as sandbox:
        found = await attempts(
            sandbox,
            """
os.sched_setaffinity(0, range(1024))
found["all"] = len(os.sched_getaffinity(0))
for path in ("/proc/meminfo", "/proc/cpuinfo", "/sys/devices/system/cpu/online"):
    attempt("write " + path, lambda: os.open(path, os.O_WRONLY))
    attempt("chmod " + path, os.chmod, path, 0o666)
    attempt("remove " + path, os.unlink, path)
    attempt("umount " + path, call, 166, path.encode(), 2)
""",
        )
        assert found.pop("all") == len(os.sched_getaffinity(0))
        if len(os.sched_getaffinity(0)) == 1:
            found = {name: result for name, result in found.items() if "meminfo" in name}
        assert set(found.values()) <= {"EROFS", "EACCES", "EPERM", "EBUSY"}, found


async def test_not_a_file_in_common(client: dsec.DSecClient) -> None:
    """A lock that one sandbox holds on its meminfo, its neighbour of the same limits has as well."""
    lock = "import fcntl, time; f=open('/proc/meminfo'); fcntl.flock(f, fcntl.LOCK_EX|fcntl.LOCK_NB); print('held')"
    async with client.sandbox(IMAGE, memory_mib=128) as one, client.sandbox(IMAGE, memory_mib=128) as two:
        held = await one.spawn("python3", "-uc", lock + "; time.sleep(60)")
        async for line in held.lines():
            assert "held" in str(line)
            break
        else:
            pytest.fail((await held.wait()).stderr)
        assert (await one.exec("python3", "-c", lock)).exit_code == 1
        assert (await two.exec("python3", "-c", lock)).stdout == "held\n"
