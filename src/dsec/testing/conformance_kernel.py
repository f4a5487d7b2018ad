"""The second group of the conformance suite: what only a kernel can show."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from dsec.api import ids
from dsec.backends.contract import Pausable, Snapshotting
from dsec.testing.subject import Subject

__all__ = ["KERNEL"]

_MIB = 1 << 20


async def a_timeout_reaches_every_process(subject: Subject) -> None:
    """The leader and what it started in the background, in sessions of their own too, are gone when it has ended."""
    async with subject.sandbox() as sandbox_id:
        script = "trap '' TERM; setsid sleep 1234 & sleep 1234 & wait"
        end = (await subject.run(subject.exec_spec(sandbox_id, script=script, timeout_ms=200, grace_ms=100))).exec_end
        assert end.ended == "timeout"
        heard = await subject.run(subject.exec_spec(sandbox_id, script="cat /proc/[0-9]*/cmdline | tr '\\0' ' '"))
        assert b"sleep 1234" not in heard.out


async def memory_has_a_limit_that_is_counted(subject: Subject) -> None:
    """A child beyond the limit is killed, and the exec says so although its leader exits well."""
    async with subject.sandbox(memory_bytes=64 * _MIB) as sandbox_id:
        script = "sh -c 'x=$(head -c 200000000 /dev/zero | tr \"\\0\" x)'; exit 0"
        end = (await subject.run(subject.exec_spec(sandbox_id, script=script))).exec_end
        assert (end.exit_code, end.ended) == (0, "exited")
        assert end.oom_kills >= 1


async def processes_have_a_limit_that_is_counted(subject: Subject) -> None:
    """Beyond the limit forks are refused, and the exec names the quota."""
    async with subject.sandbox(pids=24) as sandbox_id:
        script = "i=0; while [ $i -lt 60 ]; do sleep 5 & i=$((i+1)); done 2>/dev/null; exit 0"
        end = (await subject.run(subject.exec_spec(sandbox_id, script=script, timeout_ms=20_000))).exec_end
        assert "pids" in end.quota_hits


async def the_disk_has_a_limit_that_is_counted(subject: Subject) -> None:
    """A write beyond the limit fails, and the exec names the quota."""
    async with subject.sandbox(disk_bytes=32 * _MIB) as sandbox_id:
        script = "head -c 100000000 /dev/urandom > /var/tmp/big"
        end = (await subject.run(subject.exec_spec(sandbox_id, script=script))).exec_end
        assert end.exit_code != 0
        assert "disk" in end.quota_hits


async def neighbours_are_invisible(subject: Subject) -> None:
    """Two sandboxes see neither each other's processes nor each other's files, and both are root at home."""
    async with subject.sandbox() as one, subject.sandbox() as other:
        await subject.run(subject.exec_spec(one, script="echo secret > /tmp/secret"))
        await subject.begin(subject.exec_spec(one, "sleep", "4321"))
        script = "id -u; ls /tmp; cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
        heard = await subject.run(subject.exec_spec(other, script=script))
        assert heard.out.startswith(b"0\n")
        assert b"secret" not in heard.out
        assert b"sleep 4321" not in heard.out


async def usage_is_measured(subject: Subject) -> None:
    """Processor time of an exec and of its sandbox is the kernel's."""
    async with subject.sandbox() as sandbox_id:
        script = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"
        end = (await subject.run(subject.exec_spec(sandbox_id, script=script))).exec_end
        assert end.usage.cpu_ns > 1_000_000
        assert (await subject.backend.usage(sandbox_id)).cpu_ns >= end.usage.cpu_ns // 2


async def a_paused_sandbox_stands_still(subject: Subject) -> None:
    """Where the kind is Pausable: nothing of a paused sandbox runs, and it goes on where it was."""
    backend = subject.backend
    if not isinstance(backend, Pausable):
        return
    async with subject.sandbox() as sandbox_id:
        spec = subject.exec_spec(sandbox_id, script="while :; do echo x; done")
        await subject.begin(spec)
        frozen = await backend.freeze(sandbox_id, cause="test")
        assert frozen.paused
        before = (await backend.usage(sandbox_id)).cpu_ns
        assert (await backend.usage(sandbox_id)).cpu_ns == before
        assert await backend.thaw(sandbox_id)
        await backend.kill_exec(sandbox_id, spec.exec_id, signal=None, grace_ms=0)
        assert (await backend.usage(sandbox_id)).cpu_ns > before


async def a_snapshot_is_of_one_moment(subject: Subject) -> None:
    """Where the kind is Snapshotting: of two files replaced in turn, the second is never ahead, and none is half."""
    backend = subject.backend
    if not isinstance(backend, Snapshotting):
        return
    async with subject.sandbox() as sandbox_id:
        await subject.run(subject.exec_spec(sandbox_id, script="echo 0 > /var/tmp/a; echo 0 > /var/tmp/b"))
        step = "echo $i > new; mv new a; echo $i > new; mv new b"
        script = f"cd /var/tmp; i=0; while :; do i=$((i+1)); {step}; done"
        await subject.begin(subject.exec_spec(sandbox_id, script=script))
        for number in range(3):
            own = ids.snapshot_id(sandbox_id, f"key-{number}")
            made = await backend.snapshot(own, sandbox_id, keep_ms=60_000)
            assert made.whole and await backend.snapshot(own, sandbox_id, keep_ms=60_000) == made
            async with subject.sandbox(from_snapshot=own) as copy:
                heard = await subject.run(subject.exec_spec(copy, script="cd /var/tmp; echo $(cat a) $(cat b)"))
                first, _, second = heard.out.partition(b" ")
                assert int(first) - int(second) in (0, 1)
            await backend.remove_snapshots([own, own])
        assert await backend.snapshots() == []


KERNEL: tuple[Callable[[Subject], Awaitable[None]], ...] = (
    a_timeout_reaches_every_process,
    memory_has_a_limit_that_is_counted,
    processes_have_a_limit_that_is_counted,
    the_disk_has_a_limit_that_is_counted,
    neighbours_are_invisible,
    usage_is_measured,
    a_paused_sandbox_stands_still,
    a_snapshot_is_of_one_moment,
)
