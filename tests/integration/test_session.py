"""Sessions: what stays between runs, what ends a run or its session, in each shell."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import AsyncIterator

import pytest

import dsec
from dsec.sync import DSecClient
from dsec.testing.node import RunningNode

from ..conftest import CHECKOUT
from .conftest import IMAGE

pytestmark = [pytest.mark.node, pytest.mark.anyio]

BUSYBOX = CHECKOUT / "build" / "tools" / "bin" / "busybox"
SHELLS = {"bash": "/bin/bash", "dash": "/bin/dash", "busybox": ("/tmp/busybox", "sh")}


@pytest.fixture(params=SHELLS)
async def session(sandbox: dsec.Sandbox, request: pytest.FixtureRequest) -> AsyncIterator[dsec.Session]:
    """A session in each of the three shells."""
    if request.param == "busybox":
        await sandbox.write("/tmp/busybox", BUSYBOX.read_bytes(), mode=0o755)
    async with sandbox.open_session(SHELLS[request.param]) as opened:
        yield opened
        assert opened.closed or (await opened.run("printf alive")).stdout == "alive"


async def test_state_stays(session: dsec.Session) -> None:
    """Directory, exports, functions, positional parameters and `$?` are there in the next run."""
    await session.run("cd /usr; export A='a b'; f() { echo \"f $1\"; }; set -- x y")
    result = await session.run('pwd; echo "$A"; f 1; echo $2; sh -c \'echo "$A"\'')
    assert result.stdout == "/usr\na b\nf 1\ny\na b\n"
    assert (result.ok, result.stderr) == (True, "")
    assert (await session.run("false")).exit_code == 1
    assert (await session.run("echo $?")).stdout == "1\n"
    assert (await session.run("(exit 200)")).exit_code == 200
    assert (await session.run("return 7")).exit_code == 7


async def test_background_jobs_stay(session: dsec.Session) -> None:
    """A job runs on and can be waited for in a later run; one that holds the pipes does not hold the run up."""
    begun = time.monotonic()
    pid = (await session.run("sleep 1000 & echo $!")).stdout.strip()
    assert time.monotonic() - begun < 100
    assert (await session.run(f"kill -0 {pid}")).ok
    result = await session.run(f"kill {pid}; wait {pid}; echo $?")
    assert result.stdout == "143\n"


async def test_output_of_jobs_is_never_lost(session: dsec.Session) -> None:
    """What a job writes between two runs belongs to the later one, byte for byte."""
    await session.run("mkfifo /tmp/go; { read x < /tmp/go; echo between; echo done > /tmp/go; } &")
    await session._sandbox.run_shell("echo go > /tmp/go; read x < /tmp/go")
    assert (await session.run("printf next")).stdout == "between\nnext"


async def test_output_is_exact(session: dsec.Session) -> None:
    """Binary, without a newline at its end, none at all: each run has its own bytes, on both streams apart."""
    write = 'python3 -c "import os; os.write(1, bytes(range(256))); os.write(2, bytes(reversed(range(256))))"'
    for _ in range(3):
        result = await session.run(write)
        assert result.stdout_bytes == bytes(range(256))
        assert result.stderr_bytes == bytes(reversed(range(256)))
        assert (await session.run(":")).stdout_total_bytes == 0
        assert (await session.run("printf no-newline")).stdout == "no-newline"


async def test_caps_keep_head_and_tail(session: dsec.Session) -> None:
    """Of a run's output beyond max_output_bytes both ends are kept, wherever it stands in the session's."""
    await session.run("seq 1 5000")
    whole = "".join(f"{number}\n" for number in range(1, 100_001)).encode()
    result = await session.run("seq 1 100000", max_output_bytes=10_000)
    assert (result.stdout_total_bytes, result.truncated) == (len(whole), True)
    assert result.stdout_bytes == whole[:5000] + whole[-5000:]
    assert f"{len(whole) - 10_000} bytes cut here" in result.stdout
    assert (await session.run("echo after")).stdout == "after\n"


async def test_standard_input_is_empty(session: dsec.Session) -> None:
    """`cat` sees the end of its input at once, and never the script."""
    result = await session.run("cat; echo $?\nread x; echo $?")
    assert result.stdout == "0\n1\n"


@pytest.mark.parametrize("script", ["if then (", "echo 'open", "for", "echo $(", "case x in"])
async def test_syntax_errors_end_only_their_script(session: dsec.Session, script: str) -> None:
    """A status that is not 0, a word about it, and the shell goes on where it was."""
    await session.run("cd /usr")
    result = await session.run(script)
    assert result.exit_code not in (0, None) and result.stderr
    assert not session.closed
    assert (await session.run("pwd")).stdout == "/usr\n"


async def test_exit_is_a_result_and_closes(session: dsec.Session) -> None:
    """`exit N` is the run's code; then nothing can be run any more, which is said and not guessed."""
    result = await session.run("echo last; exit 42")
    assert (result.exit_code, result.ended, result.stdout) == (42, "exited", "last\n")
    assert session.closed
    with pytest.raises(dsec.Conflict, match="closed") as refused:
        await session.run("true")
    assert refused.value.phase == "session"


async def test_a_signal_to_the_shell_is_a_result(session: dsec.Session) -> None:
    """A shell that is killed has no exit code; the session is closed."""
    result = await session.run("kill -9 $$")
    assert (result.exit_code, result.signal, result.ended, session.closed) == (None, 9, "signalled", True)


async def test_errexit_closes_as_in_a_script(session: dsec.Session) -> None:
    """`set -e` ends the shell at the next failure, with its status; until then it changes nothing."""
    assert (await session.run("set -e")).ok
    assert (await session.run("if false; then :; fi; false || echo handled")).stdout == "handled\n"
    result = await session.run("echo before; false; echo after")
    assert (result.exit_code, result.stdout, session.closed) == (1, "before\n", True)


async def test_shell_options_do_not_show_the_session(session: dsec.Session) -> None:
    """`set -u`, `set -f`, an odd IFS, noclobber, functions of any name: the own lines of the session work, unseen."""
    await session.run("set -u; set -f; IFS=0123456789; set -C; echo() { :; }; read() { :; }")
    assert (await session.run("printf '%s\\n' *")).stdout == "*\n"
    await session.run("set -x")
    traced = (await session.run("printf hello")).stderr
    assert "printf hello" in traced and len(traced.splitlines()) <= 3
    assert (await session.run("set +x; (exit 5)")).exit_code == 5


async def test_an_exit_trap_runs_at_close(session: dsec.Session) -> None:
    """`trap … EXIT` is kept until the session is closed, and its work is done by then."""
    await session.run("trap 'echo bye > /tmp/bye' EXIT; trap 'echo hup' HUP")
    assert (await session.run("kill -HUP $$; :")).stdout == "hup\n"
    await session.close()
    await session.close()
    assert (await session._sandbox.read("/tmp/bye")) == b"bye\n"


async def test_close_leaves_nothing(session: dsec.Session) -> None:
    """Jobs in the background go with their session, those that left its group and ignore SIGTERM too."""
    await session.run("(trap '' TERM; setsid sleep 1000 &) ; sleep 1000 & true")
    await session.close()
    assert (await session._sandbox.run_shell("pgrep -c sleep")).stdout == "0\n"


async def test_redirections_stay_and_statuses_come(session: dsec.Session) -> None:
    """`exec > file` and closed descriptors hold for later runs; the status has its own way."""
    await session.run("exec 3>&1 > /tmp/out")
    assert (await session.run("echo in the file; (exit 3)")).exit_code == 3
    assert (await session.run("exec >&3 3>&-; cat /tmp/out")).stdout == "in the file\n"
    close_all = "exec <&- 3<&- 4<&- 5<&- 6<&- 7<&- 8<&- 9<&-; echo closed"
    assert (await session.run(close_all)).stdout == "closed\n"
    assert (await session.run("exec 9> /tmp/lock; echo locked >&9; cat /tmp/lock")).stdout == "locked\n"


async def test_break_finds_no_loop(session: dsec.Session) -> None:
    """`break` and `continue` outside a loop of the script's own end nothing."""
    assert (await session.run("break 2> /dev/null; continue 2> /dev/null; echo on")).stdout == "on\n"


async def test_a_timeout_interrupts_and_spares(session: dsec.Session) -> None:
    """The script ends where it is, in loops, functions and substitutions; earlier jobs and the shell's state stay."""
    pid = (await session.run("cd /usr; g() { sleep 1000; echo no; }; sleep 1000 & echo $!")).stdout.strip()
    scripts = [
        "echo begun; sleep 1000; echo no",
        "echo begun; while :; do :; done; echo no",
        "echo begun; for i in 1 2 3; do sleep 1000; echo no; done; echo no",
        "echo begun; g; echo no",
        "echo begun; x=$(sleep 1000; echo no); echo no $x",
        "echo begun; (sleep 1000; echo no) | cat; echo no",
        "echo begun; if ! sleep 1000; then echo no; fi || echo no",
        "echo begun; (sleep 1000 &); setsid sleep 1000 & wait; echo no",
    ]
    for script in scripts:
        result = await session.run(script, timeout_s=0.3, grace_s=5)
        assert (result.ended, result.exit_code, result.stdout) == ("timeout", None, "begun\n"), script
        assert 0.3 <= result.duration_s < 5, script
    assert not session.closed
    after = await session.run(f"pwd; kill -0 {pid} && echo lives; kill {pid}; wait {pid}; true")
    assert after.stdout == "/usr\nlives\n"
    assert (await session._sandbox.run_shell("pgrep -c sleep")).stdout == "0\n"


async def test_a_stubborn_program_is_killed(session: dsec.Session) -> None:
    """What ignores SIGTERM is killed after the grace, and the session lives on."""
    result = await session.run(
        "sh -c \"trap '' TERM; echo begun; sleep 1000; sleep 1000\"; echo no", timeout_s=0.5, grace_s=0.2
    )
    assert (result.ended, result.stdout) == ("timeout", "begun\n")
    assert not session.closed


async def test_a_shell_that_does_not_come_back_is_killed(session: dsec.Session) -> None:
    """A shell without the session's trap, busy with its own words, is not spared: the session says it is closed."""
    result = await session.run("trap '' URG; echo begun; while :; do :; done", timeout_s=0.3, grace_s=0.1)
    assert (result.ended, result.stdout, session.closed) == ("timeout", "begun\n", True)
    assert (await session._sandbox.run_shell("echo alive")).ok


async def test_cancelling_a_run(session: dsec.Session) -> None:
    """The program is gone when the cancelled call returns; the session goes on."""
    running = asyncio.create_task(session.run("touch /tmp/begun; sleep 1000; touch /tmp/no"))
    await session._sandbox.run_shell("until [ -e /tmp/begun ]; do sleep 0.01; done")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await session._sandbox.run_shell("pgrep -c sleep")).stdout == "0\n"
    assert (await session.run("ls /tmp/no")).exit_code != 0


async def test_runs_wait_for_each_other(session: dsec.Session) -> None:
    """However many are asked for at once, each has the shell to itself."""
    await session.run("n=0")
    script = "n=$((n + 1)); [ -e /tmp/busy ] && echo both; : > /tmp/busy; rm /tmp/busy; echo $n"
    results = await asyncio.gather(*(session.run(script) for _ in range(20)))
    assert sorted(int(each.stdout) for each in results) == list(range(1, 21))


async def test_long_scripts(session: dsec.Session) -> None:
    """10 MiB of script are run as they are; 16 MiB and more are refused, and so is a NUL byte."""
    length = 10 << 20
    script = ": '" + "x" * length + "'; echo ${#n} done"
    begun = await session.run("n=abc")
    assert begun.ok
    assert (await session.run(script)).stdout == "3 done\n"
    with pytest.raises(dsec.InvalidArgument):
        await session.run("#" + "x" * (16 << 20))
    with pytest.raises(dsec.InvalidArgument):
        await session.run("echo \0")


async def test_the_same_key_runs_once(session: dsec.Session) -> None:
    """Asked for twice, side by side and later, a run is made once; another script under its key is a Conflict."""
    script = "echo run >> /tmp/count; sleep 0.2; echo out; (exit 5)"
    one, two = await asyncio.gather(*(session.run(script, key="k") for _ in range(2)))
    await session.run("echo other")
    three = await session.run(script, key="k")
    assert one == two == three and (one.exit_code, one.stdout) == (5, "out\n")
    assert await session._sandbox.read("/tmp/count") == b"run\n"
    with pytest.raises(dsec.Conflict):
        await session.run("true", key="k")


async def test_as_a_user(sandbox: dsec.Sandbox) -> None:
    """A session of a user who is no root, by name, in a directory and with an environment of its own."""
    await sandbox.run_shell("useradd -m worker")
    async with sandbox.open_session(user="worker", cwd="/usr", env={"A": "1"}) as session:
        result = await session.run("id -un; pwd; echo $A $HOME; echo err > /dev/stderr")
        assert result.stdout == "worker\n/usr\n1 /home/worker\n"
        assert result.stderr == "err\n"
        assert (await session.run("sleep 1000", timeout_s=0.2)).ended == "timeout"
        assert (await session.run("whoami")).stdout == "worker\n"


async def test_what_cannot_be_opened(sandbox: dsec.Sandbox) -> None:
    """A shell, a user or a directory that does not exist is the same typed error as for an exec."""
    with pytest.raises(dsec.ExecutableNotFound):
        await sandbox.open_session("/bin/nosuchshell")
    with pytest.raises(dsec.InvalidArgument):
        await sandbox.open_session(user="nobody-there")
    with pytest.raises(dsec.InvalidArgument):
        await sandbox.open_session(cwd="/nowhere")


async def test_two_sessions_and_their_key(
    sandbox: dsec.Sandbox, node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions are apart; the same key is the same session, from any process that has it."""
    monkeypatch.setenv("DSEC_TOKEN", node.token)  # is never pickled
    async with sandbox.open_session(key="one") as one, sandbox.open_session() as two:
        await one.run("x=1")
        await two.run("x=2")
        assert (await (await sandbox.open_session(key="one")).run("echo $x")).stdout == "1\n"
        assert (await pickle.loads(pickle.dumps(two)).run("echo $x")).stdout == "2\n"
        assert {each.id for each in await sandbox.execs()} == {one.id, two.id}


async def test_facts_are_those_of_the_run(client: dsec.DSecClient) -> None:
    """OOM kills, processor time and limits met are counted for the run in which they happened."""
    hog = "python3 -c 'b = bytearray(400 << 20)'"
    busy = "python3 -c 'import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass'"
    async with client.sandbox(IMAGE, memory_mib=128) as sandbox, sandbox.open_session() as session:
        quiet = await session.run("true")
        assert (quiet.oom_kills, quiet.quota_hits) == (0, frozenset())
        killed = await session.run(f"({hog}; true); echo survived")
        assert killed.oom_kills >= 1 and killed.stdout == "survived\n"
        assert (await session.run(busy)).usage.cpu_s >= 0.3
        after = await session.run("true")
        assert after.oom_kills == 0 and after.usage.cpu_s < 0.3


async def test_a_stopped_sandbox_says_so(client: dsec.DSecClient) -> None:
    """A run whose sandbox is stopped is SandboxGone with what it had said; one that had ended keeps its result."""
    sandbox = await client.sandbox(IMAGE)
    session = await sandbox.open_session()
    done = await session.run("echo done; (exit 3)", key="done")
    running = asyncio.create_task(session.run("touch /tmp/begun; echo part; sleep 1000"))
    await sandbox.run_shell("until [ -e /tmp/begun ]; do sleep 0.01; done")
    await sandbox.stop()
    with pytest.raises(dsec.SandboxGone) as gone:
        await running
    assert gone.value.cause == "stopped" and session.closed
    again = await session.run("echo done; (exit 3)", key="done")
    assert (again.exit_code, again.stdout) == (3, "done\n") == (done.exit_code, done.stdout)
    await session.close()


async def test_programs_cannot_write_a_status_by_accident(sandbox: dsec.Sandbox) -> None:
    """What a program prints, on any descriptor that it is given as a habit, is output and never a status."""
    async with sandbox.open_session() as session:
        result = await session.run("echo '1 7'; echo '2 7' >&2; (exit 4)")
        assert (result.exit_code, result.stdout, result.stderr) == (4, "1 7\n", "2 7\n")


def test_from_plain_python(node: RunningNode) -> None:
    """The same names without await."""
    with DSecClient(node.url, node.token) as client, client.sandbox(IMAGE) as sandbox:
        with sandbox.open_session() as session:
            session.run("cd /usr")
            assert session.run("pwd").stdout == "/usr\n"
        assert session.closed
        other = sandbox.open_session("/bin/dash")
        assert other.run("exit 3").exit_code == 3 and other.closed
