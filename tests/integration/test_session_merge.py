"""``merge_stderr`` of a run: the shell's two outputs are one descriptor while its script runs."""

from __future__ import annotations

import pytest

import dsec

from .test_session import session  # noqa: F401  (the fixture: one in each of three shells)

pytestmark = [pytest.mark.node, pytest.mark.anyio]

TURNS = "i=0; while [ $i -lt 500 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done"
WANTED = "".join(f"out {each}\nerr {each}\n" for each in range(500))


async def test_order_is_that_of_the_writes(session: dsec.Session) -> None:  # noqa: F811
    """A thousand writes in turns, by the shell and by a program, come in their order; other runs are apart."""
    one = await session.run(TURNS, merge_stderr=True)
    assert (one.output, one.stderr, one.merged) == (WANTED, "", True)
    program = 'import os\nfor i in range(500): os.write(1, b"out %d\\n" % i); os.write(2, b"err %d\\n" % i)'
    assert (await session.run(f"python3 -c '{program}'", merge_stderr=True)).output == WANTED
    apart = await session.run("echo out; echo err >&2")
    assert (apart.stdout, apart.stderr, apart.merged) == ("out\n", "err\n", False)
    with pytest.raises(dsec.InvalidArgument, match="apart"):
        apart.output  # noqa: B018


async def test_the_shell_stays_as_it_was(session: dsec.Session) -> None:  # noqa: F811
    """State, ``$?`` and redirections of standard output stay; syntax errors, traces, messages are merged too."""
    await session.run("cd /usr; f() { echo f >&2; }; (exit 3)")
    result = await session.run(
        'echo $? >&2; pwd; f; v=1; exec 3>&1 > /tmp/out; echo "in the file" >&2', merge_stderr=True
    )
    assert (result.output, result.stderr, result.exit_code) == ("3\n/usr\nf\nin the file\n", "", 0)
    assert (await session.run("exec >&3 3>&-; cat /tmp/out; echo $v")).stdout == "1\n"
    wrong = await session.run("if then (", merge_stderr=True)
    assert wrong.exit_code not in (0, None) and wrong.output and not wrong.stderr
    await session.run("set -x")
    traced = await session.run("echo hello", merge_stderr=True)
    assert "+ echo hello\nhello\n" in traced.output and not traced.stderr
    await session.run("set +x")
    assert (await session.run("return 7", merge_stderr=True)).exit_code == 7


async def test_jobs_keep_what_they_were_given(session: dsec.Session) -> None:  # noqa: F811
    """A job of a merged run goes on writing to the one stream; a job of another run keeps its standard error."""
    wait = "{ read x < /tmp/%s; echo job >&2; echo done > /tmp/told; } &"
    await session.run("mkfifo /tmp/one /tmp/two /tmp/told")
    await session.run(wait % "one", merge_stderr=True)
    result = await session.run("echo go > /tmp/one; read x < /tmp/told")
    assert (result.stdout, result.stderr) == ("job\n", "")
    await session.run(wait % "two")
    result = await session.run("echo go > /tmp/two; read x < /tmp/told", merge_stderr=True)
    assert (result.output, result.stderr) == ("", "job\n")


async def test_a_timeout_interrupts_it(session: dsec.Session) -> None:  # noqa: F811
    """What came is there, the session lives on, and its outputs are two again."""
    result = await session.run("echo begun >&2; sleep 1000; echo no", merge_stderr=True, timeout_s=0.5, grace_s=5)
    assert (result.ended, session.closed) == ("timeout", False)
    assert result.output.startswith("begun\n") and "no" not in result.output.split()
    apart = await session.run("echo out; echo err >&2")
    assert (apart.stdout, apart.stderr) == ("out\n", "err\n")


async def test_one_key_one_body(session: dsec.Session) -> None:  # noqa: F811
    """Merging is a part of the run: the same key with it is the same result, without it a Conflict."""
    first = await session.run("echo a >&2", merge_stderr=True, key="k")
    assert await session.run("echo a >&2", merge_stderr=True, key="k") == first
    with pytest.raises(dsec.Conflict):
        await session.run("echo a >&2", key="k")
