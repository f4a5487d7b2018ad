"""The same as test_weakened, of attacks that are more than a program: they race, fill, crash, and come in pairs."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import AsyncIterator
from typing import IO

import pytest

import dsec
from dsec.testing.node import RunningNode

from . import kernel_attacks as kernel
from .inside import IMAGE, attempts
from .test_cores import WAYS as LIMITS
from .test_cores import crashed, handled, handled_until
from .test_disk import LIMIT_MIB, filled
from .test_disk import WAYS as FILLS
from .test_entering import climbed, descriptors, magic_places, snooped
from .test_files import TRAPS
from .test_neighbours import HOG, buffered, forked, left_over, shared
from .test_profiles import gained, status
from .weakened import client, left_out, node

__all__ = ["client", "handled", "node"]
pytestmark = [pytest.mark.node, pytest.mark.anyio, pytest.mark.timeout(900)]


@contextlib.asynccontextmanager
async def made_without(
    client: dsec.DSecClient, node: RunningNode, *names: str, profile: str = "default", **limits: int
) -> AsyncIterator[dsec.Sandbox]:
    """A sandbox that is made, and whose programs run, without these."""
    with left_out(node, *names):
        async with client.sandbox(IMAGE, profile=profile, **limits) as sandbox:  # type: ignore[arg-type]
            yield sandbox


async def test_who_enters(client: dsec.DSecClient, node: RunningNode) -> None:
    """Dumpable, it is read, traced and robbed: its program, its memory, what it has open."""
    async with made_without(client, node, "nondumpable") as sandbox:
        assert {kind for kind, _ in await snooped(sandbox, "root")} >= {"exe", "map"}


async def test_open_descriptors(client: dsec.DSecClient, node: RunningNode) -> None:
    """With all that the keeper has open, a script climbs from one of them to a program of the host, and runs it."""
    async with made_without(client, node, "close_range") as sandbox:
        assert await climbed(sandbox) != []


async def test_inherited_descriptors(client: dsec.DSecClient, node: RunningNode) -> None:
    """Not marked, they come with the program."""
    async with made_without(client, node, "close_on_exec") as sandbox:
        assert await descriptors(sandbox, "root") > {0, 1, 2}


async def test_magic_links(client: dsec.DSecClient, node: RunningNode) -> None:
    """Followed, they lead into the entering process: as directories, and as files to be read."""
    async with made_without(client, node, "magic_links") as sandbox:
        assert {"/proc/self/root", "/proc/self/cwd"} <= set(await magic_places(sandbox))
        await sandbox.run_shell(TRAPS, check=True)
        assert b"root:" in await sandbox.read("/h/root")


async def test_files_of_the_helper(client: dsec.DSecClient, node: RunningNode) -> None:
    """/proc/self is then the helper's own."""
    async with made_without(client, node, "proc_files") as sandbox:
        assert b"-" in await sandbox.read("/proc/self/maps", limit=100)


async def test_the_keepers_program(client: dsec.DSecClient, node: RunningNode) -> None:
    """Were its mode another, a script would run it."""
    program = node.paths.keeper_program
    async with client.sandbox(IMAGE) as sandbox:
        await sandbox.write("/evil", "#!/proc/self/exe --help\n", mode=0o755)
        with pytest.raises(dsec.NotExecutable):
            await sandbox.exec("/evil")
        program.chmod(0o755)
        try:
            assert (await sandbox.exec("/evil")).ended == "exited"
        finally:
            program.chmod(0o700)


async def test_objects_between_processes(client: dsec.DSecClient, node: RunningNode) -> None:
    """Without an IPC namespace they are all of the machine's, and this test's to remove."""
    libc = ctypes.CDLL(None)
    try:
        async with made_without(client, node, "ipc") as one, made_without(client, node, "ipc") as other:
            found = await shared(one, other)
    finally:
        libc.shmctl(libc.shmget(0x1234, 0, 0), 0, None)
        libc.msgctl(libc.msgget(0x77, 0), 0, None)
        libc.semctl(libc.semget(0x55, 0, 0), 0, 0)
        libc.mq_unlink(b"/queue")
    assert [name for name in ("shm", "msg", "sem", "queue") if not isinstance(found[name], int)] == []


async def test_names(client: dsec.DSecClient, node: RunningNode) -> None:
    """Without a UTS namespace it has the machine's name."""
    async with made_without(client, node, "hostname") as sandbox:
        assert (await sandbox.exec("uname", "-n", check=True)).stdout.strip() == os.uname().nodename


async def test_kernel_objects(client: dsec.DSecClient, node: RunningNode) -> None:
    """Of the same IDs, one takes the pipes and inotify instances of the other."""
    async with made_without(client, node, "own_ids") as one, made_without(client, node, "own_ids") as other:
        found = await left_over(one, other)
    assert found["pipe"] < 65536 and found["inotify"] is not True, found


async def test_processes(client: dsec.DSecClient, node: RunningNode) -> None:
    """More than it was given."""
    async with made_without(client, node, "pids", pids=50) as sandbox:
        assert await forked(sandbox) == 200


async def test_memory(client: dsec.DSecClient, node: RunningNode) -> None:
    """More than it was given, and /dev/shm without a size of its own as well."""
    async with made_without(client, node, "memory", memory_mib=256) as sandbox:
        assert (await sandbox.exec("python3", "-c", HOG)).exit_code == 0
    async with made_without(client, node, "memory", memory_mib=64) as sandbox:
        assert await buffered(sandbox) == 200
    async with made_without(client, node, "shm_size", memory_mib=256) as sandbox:
        await sandbox.run_shell("head -c 100M /dev/zero > /dev/shm/x", check=True)


async def test_disk(client: dsec.DSecClient, node: RunningNode) -> None:
    """More than it was given."""
    with left_out(node, "quota"):
        assert (await filled(client, FILLS[0][0], LIMIT_MIB))[0] == "never stopped"


@pytest.mark.parametrize(("without", "way"), [("rlimits", LIMITS[0]), ("seccomp", LIMITS[1])])
async def test_cores(client: dsec.DSecClient, node: RunningNode, handled: IO[str], without: str, way: str) -> None:
    """Without the limit, or with a limit that can be changed, the machine's handler gets the core."""
    async with made_without(client, node, without) as sandbox:
        await crashed(sandbox, "inside", way, "root")
        assert "inside" in await handled_until(handled)


async def test_what_is_gained(client: dsec.DSecClient, node: RunningNode) -> None:
    """In the strict profile too: root by a set-user-ID program, and its capabilities."""
    async with made_without(client, node, "no_new_privs", profile="strict") as sandbox:
        assert await gained(sandbox) == "0"
    async with made_without(client, node, "capabilities", profile="strict") as sandbox:
        assert int((await status(sandbox, "root"))["CapBnd"], 16) > 1 << 40 - 1


async def test_another_architecture(client: dsec.DSecClient, node: RunningNode) -> None:
    """Without the filter its calls do not kill."""
    async with made_without(client, node, "seccomp") as sandbox:
        found = await attempts(sandbox, kernel.CALLING_CONVENTIONS, only=())
    assert found["int80 getpid"] == 0
