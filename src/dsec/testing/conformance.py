"""The conformance suite: what every kind of sandbox does, as functions that the author of a backend calls.

``CONTRACT`` is for all backends, fakes too; ``KERNEL`` for those whose sandboxes are real. Each check takes a
Subject, leaves nothing behind, and fails by AssertionError:

    @pytest.mark.parametrize("check", [*CONTRACT, *KERNEL])
    async def test_conforms(subject, check):
        await check(subject)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from dsec.backends.contract import ExecEnded, SandboxEnded
from dsec.errors import Conflict, DSecError, ExecutableNotFound, NotFound, SandboxGone
from dsec.testing.conformance_kernel import KERNEL
from dsec.testing.subject import Subject, listen

__all__ = ["CONTRACT", "KERNEL", "Check"]

E = TypeVar("E", bound=DSecError)
Check = Callable[[Subject], Awaitable[None]]
_PATIENCE_S = 10.0


async def _raises(kind: type[E], work: Awaitable[object]) -> E:
    try:
        await work
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


async def fingerprint_says_which_boot(subject: Subject) -> None:
    """The same node gives the same boot ID, and does not refuse."""
    one, other = await subject.backend.fingerprint(), await subject.backend.fingerprint()
    assert one.boot_id == other.boot_id != ""
    assert one.refusal is None


async def start_twice_is_one_sandbox(subject: Subject) -> None:
    """The same specification twice, also at once, makes one sandbox, which says so."""
    spec = subject.sandbox_spec()
    try:
        both = await asyncio.gather(*(subject.backend.start(spec, timeout_s=30) for _ in range(2)))
        again = await subject.backend.start(spec, timeout_s=30)
        assert again.existing
        assert {each.started_at for each in (*both, again)} == {again.started_at}
        found = [each.sandbox_id for each in await subject.backend.recover()]
        assert found.count(spec.sandbox_id) == 1
    finally:
        await subject.clear(spec.sandbox_id)


async def recover_finds_live_and_ended(subject: Subject) -> None:
    """Both are found by their ID with their state, until the end is forgotten."""
    async with subject.sandbox() as live, subject.sandbox() as ended:
        await subject.backend.stop(ended, cause="idle", actor="test", grace_ms=0)
        found = {each.sandbox_id: each for each in await subject.backend.recover()}
        assert (found[live].state, found[live].end) == ("running", None)
        end = found[ended].end
        assert end is not None and end.cause == "idle"
        await subject.backend.forget([ended])
        assert ended not in {each.sandbox_id for each in await subject.backend.recover()}


async def stop_is_confirmed_and_keeps_its_first_cause(subject: Subject) -> None:
    """A second stop gives the first one's end; of what never was or is forgotten there is none."""
    async with subject.sandbox() as sandbox_id:
        first = await subject.backend.stop(sandbox_id, cause="idle", actor="test", grace_ms=0)
        again = await subject.backend.stop(sandbox_id, cause="stopped", actor="other", grace_ms=0)
        assert (again.cause, again.ended_at) == (first.cause, first.ended_at) == ("idle", first.ended_at)
        assert first.proof.processes == 0
        await subject.backend.forget([sandbox_id])
        await subject.backend.forget([sandbox_id])
        await _raises(NotFound, subject.backend.stop(sandbox_id, cause="stopped", actor="test", grace_ms=0))


async def a_live_sandbox_is_not_forgotten(subject: Subject) -> None:
    """Forgetting one that lives is refused, and changes nothing."""
    async with subject.sandbox() as sandbox_id:
        await _raises(Conflict, subject.backend.forget([sandbox_id]))
        assert (await subject.run(subject.exec_spec(sandbox_id, "true"))).exec_end.exit_code == 0


async def an_exec_tells_code_and_streams(subject: Subject) -> None:
    """Exit code and both totals; output is whole."""
    async with subject.sandbox() as sandbox_id:
        heard = await subject.run(subject.exec_spec(sandbox_id, "echo", "a", "b"))
        assert (heard.out, heard.err, heard.exec_end.exit_code) == (b"a b\n", b"", 0)
        assert (heard.exec_end.stdout_total, heard.exec_end.ended) == (4, "exited")
        failed = await subject.run(subject.exec_spec(sandbox_id, script="exit 7"))
        assert (failed.exec_end.ended, failed.exec_end.exit_code) == ("exited", 7)


async def outputs_can_be_one_stream(subject: Subject) -> None:
    """Merged, standard error comes as standard output and the end says so: for an exec, for one run of a session."""
    async with subject.sandbox() as sandbox_id:
        heard = await subject.run(subject.exec_spec(sandbox_id, script="echo a >&2", merge_stderr=True))
        assert (heard.out, heard.err, heard.exec_end.merged) == (b"a\n", b"", True)
        session = await subject.open_session(sandbox_id)
        run = await subject.run_in(sandbox_id, session, "echo b >&2", merge_stderr=True)
        assert (run.out, run.err, run.run_end.merged) == (b"b\n", b"", True)
        run = await subject.run_in(sandbox_id, session, "echo c >&2")
        assert (run.out, run.err, run.run_end.merged) == (b"", b"c\n", False)


async def the_same_exec_runs_once(subject: Subject) -> None:
    """Starting a known ID is an attachment: same times, same output."""
    async with subject.sandbox() as sandbox_id:
        spec = subject.exec_spec(sandbox_id, "echo", "once")
        first, again = await subject.run(spec), await subject.run(spec)
        assert (again.exec_end, again.out) == (first.exec_end, b"once\n")
        assert [each.exec_id for each in await subject.backend.execs(sandbox_id)] == [spec.exec_id]


async def attach_goes_on_at_an_offset(subject: Subject) -> None:
    """A reader gets exactly the bytes from its offset on, after the end too; an unknown exec is not found."""
    async with subject.sandbox() as sandbox_id:
        spec = subject.exec_spec(sandbox_id, "echo", "0123456789")
        await subject.run(spec)
        heard = await subject.attach(sandbox_id, spec.exec_id, mode="stream", offsets={1: 4, 2: 0})
        assert heard.out == b"456789\n"
        other = subject.exec_spec(sandbox_id, "true")
        await _raises(NotFound, subject.attach(sandbox_id, other.exec_id))


async def input_is_byte_exact(subject: Subject) -> None:
    """What goes in comes out of ``cat``, and its end ends it."""
    async with subject.sandbox() as sandbox_id:
        data = bytes(range(256)) * 200
        heard = await subject.run(subject.exec_spec(sandbox_id, "cat", stdin=True), stdin=data)
        assert (heard.out, heard.exec_end.exit_code) == (data, 0)


async def a_program_that_is_not_there(subject: Subject) -> None:
    """It is the command's error, and no exec stays."""
    async with subject.sandbox() as sandbox_id:
        await _raises(ExecutableNotFound, subject.run(subject.exec_spec(sandbox_id, "no-such-program")))


async def kill_ends_and_confirms(subject: Subject) -> None:
    """When it returns the exec has ended, as cancelled; a second one is harmless."""
    async with subject.sandbox() as sandbox_id:
        spec = subject.exec_spec(sandbox_id, "sleep", "1000")
        await subject.begin(spec)
        for _ in range(2):
            await subject.backend.kill_exec(sandbox_id, spec.exec_id, signal=None, grace_ms=0)
        (state,) = await subject.backend.execs(sandbox_id)
        assert state.end is not None and state.end.ended == "cancelled"


async def a_signal_is_only_a_signal(subject: Subject) -> None:
    """SIGTERM by request ends the program as signalled, not as cancelled."""
    async with subject.sandbox() as sandbox_id:
        spec = subject.exec_spec(sandbox_id, "sleep", "1000")
        await subject.begin(spec)
        await subject.backend.kill_exec(sandbox_id, spec.exec_id, signal=15, grace_ms=0)
        end = (await subject.attach(sandbox_id, spec.exec_id)).exec_end
        assert (end.ended, end.signal, end.exit_code) == ("signalled", 15, None)


async def a_kill_that_came_first(subject: Subject) -> None:
    """An exec that was killed before it was started never runs."""
    async with subject.sandbox() as sandbox_id:
        spec = subject.exec_spec(sandbox_id, "echo", "ran")
        await subject.backend.kill_exec(sandbox_id, spec.exec_id, signal=None, grace_ms=0)
        heard = await subject.run(spec)
        assert (heard.exec_end.ended, heard.out) == ("cancelled", b"")


async def an_exec_goes_with_its_sandbox(subject: Subject) -> None:
    """Whoever waits for it is told that the sandbox is gone, and why: that is no result."""
    async with subject.sandbox() as sandbox_id:
        spec = subject.exec_spec(sandbox_id, "sleep", "1000")
        await subject.begin(spec)
        waiting = asyncio.create_task(subject.attach(sandbox_id, spec.exec_id))
        await subject.backend.stop(sandbox_id, cause="lifetime", actor="test", grace_ms=0)
        error = await _raises(SandboxGone, waiting)
        assert error.details["cause"] == "lifetime"
        await _raises(SandboxGone, subject.run(subject.exec_spec(sandbox_id, "true")))


async def the_main_process_ends_its_sandbox(subject: Subject) -> None:
    """Its code is the sandbox's, the cause is main-exited, and the exec's end is told before the sandbox's."""
    told: list[object] = []
    ended = asyncio.Event()

    async def hear() -> None:
        async for event in subject.backend.events():
            told.append(event)
            if isinstance(event, SandboxEnded):
                ended.set()

    hearing = asyncio.create_task(hear())
    try:
        await subject.backend.stats()  # the subscription was sent before this was answered
        async with subject.sandbox(main=("false",)) as sandbox_id:
            async with asyncio.timeout(_PATIENCE_S):
                await ended.wait()
            kinds = [type(event) for event in told]
            assert kinds.index(ExecEnded) < kinds.index(SandboxEnded)
            (found,) = [each for each in await subject.backend.recover() if each.sandbox_id == sandbox_id]
            assert found.end is not None
            assert (found.end.cause, found.end.exit_code) == ("main-exited", 1)
    finally:
        hearing.cancel()
        await asyncio.gather(hearing, return_exceptions=True)


async def files_are_whole(subject: Subject) -> None:
    """What is written is read back, from an offset too; what is not there is a missing file."""
    async with subject.sandbox() as sandbox_id:
        data = bytes(range(256)) * 100
        place = {"sandbox_id": sandbox_id, "path": b"/tmp/file", "user": "", "cwd": b"/"}
        writing = subject.backend.stream("file.write", place | {"mode": 0o640, "parents": False, "length": len(data)})
        await writing.data(0, 0, data)
        await writing.data(0, len(data), b"")
        report = (await listen(writing)).end
        assert (report["size"], report["mode"] & 0o777) == (len(data), 0o640)
        window = {"offset": 1000, "limit": 500, "credit": {1: 1 << 30}}
        assert (await listen(subject.backend.stream("file.read", place | window))).out == data[1000:1500]
        missing = place | {"path": b"/tmp/other"} | window
        error = await _raises(DSecError, listen(subject.backend.stream("file.read", missing)))
        assert isinstance(error, FileNotFoundError)


CONTRACT: tuple[Check, ...] = (
    fingerprint_says_which_boot,
    start_twice_is_one_sandbox,
    recover_finds_live_and_ended,
    stop_is_confirmed_and_keeps_its_first_cause,
    a_live_sandbox_is_not_forgotten,
    an_exec_tells_code_and_streams,
    outputs_can_be_one_stream,
    the_same_exec_runs_once,
    attach_goes_on_at_an_offset,
    input_is_byte_exact,
    a_program_that_is_not_there,
    kill_ends_and_confirms,
    a_signal_is_only_a_signal,
    a_kill_that_came_first,
    an_exec_goes_with_its_sandbox,
    the_main_process_ends_its_sandbox,
    files_are_whole,
)
