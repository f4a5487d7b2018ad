"""Long arguments and scripts, bytes that are no text, BASH_ENV, signals by name."""

from __future__ import annotations

import pytest

import dsec

pytestmark = [pytest.mark.node, pytest.mark.anyio]


def padded(script: str, size: int) -> str:
    """The script, made as long as wanted by a comment."""
    return f"{script}\n#{'x' * (size - len(script) - 2)}"


BEHAVIOUR = (
    'echo "0=$0 n=$# line=$LINENO flags=${-//[!c]/}"; read input; echo "input=$input"\n'
    "echo line=$LINENO; false; echo code=$?; test -e /proc/self/fd/9; echo fd=$?; f() { return 3; }; f; exit $?"
)


async def test_a_long_script_behaves_as_a_short_one(sandbox: dsec.Sandbox) -> None:
    """$0, arguments, line numbers, standard input, open descriptors and exit codes, from 1 KiB to 10 MiB."""
    short = await sandbox.run_shell(BEHAVIOUR, stdin="typed\n")
    assert short.exit_code == 3 and "input=typed" in short.stdout and "0=/bin/bash n=0 line=1" in short.stdout
    for size in ((128 << 10) - 1, 128 << 10, 300_000, 10 << 20):
        long = await sandbox.run_shell(padded(BEHAVIOUR, size), stdin="typed\n")
        assert (long.exit_code, long.stdout, long.stderr) == (3, short.stdout, short.stderr), size
    login = await sandbox.run_shell(padded("shopt login_shell; echo $0", 200_000), login=True)
    assert login.stdout == "login_shell    \ton\n/bin/bash\n"


async def test_ends_of_long_scripts(sandbox: dsec.Sandbox) -> None:
    """``set -e``, a signal, a syntax error, the last command's code."""
    for script, code in (("set -e\nfalse\necho no", 1), ("true\n(exit 7)", 7), ("if then", 2)):
        for size in (1000, 200_000):
            result = await sandbox.run_shell(padded(script, size))
            assert (result.exit_code != 0, "no" in result.stdout) == (True, False)
            if script != "if then":
                assert result.exit_code == code
    killed = await sandbox.run_shell(padded("kill -9 $$", 200_000))
    assert (killed.signal, killed.exit_code) == (9, None)
    with pytest.raises(dsec.InvalidArgument, match="more than"):
        await sandbox.run_shell("#" + "x" * (10 << 20))


async def test_a_long_script_in_dash(sandbox: dsec.Sandbox) -> None:
    """Where there is only /bin/sh the same road is taken."""
    script = padded('echo "$0 $#"; read x; echo "$x"; test -e /proc/self/fd/9; echo $?; exit 4', 200_000)
    prepared = await sandbox.run_shell("mv /bin/bash /bin/bash.away && readlink -f /bin/sh")
    assert prepared.ok and prepared.stdout.endswith("dash\n")
    result = await sandbox.run_shell(script, stdin="typed\n")
    assert (result.exit_code, result.stderr) == (4, "")
    assert result.stdout == "/bin/sh 0\ntyped\n1\n"


@pytest.mark.parametrize("user", ["root", "nobody"])
async def test_a_long_script_for_every_user(sandbox: dsec.Sandbox, user: str) -> None:
    """The file can be read whoever runs it, and written by nobody."""
    script = padded("id -un; true > /dev/fd/9 2>/dev/null || echo closed", 200_000)
    assert (await sandbox.run_shell(script, user=user)).stdout == f"{user}\nclosed\n"


async def test_long_arguments(sandbox: dsec.Sandbox) -> None:
    """A megabyte of arguments arrives exactly; one of 128 KiB, or too many, is refused with what to do instead."""
    words = [str(each) * 100_000 for each in range(1, 9)]
    code = "import sys; print([(word[0], len(word)) for word in sys.argv[1:]])"
    result = await sandbox.exec("python3", "-c", code, *words)
    assert result.stdout == f"{[(str(each), 100_000) for each in range(1, 9)]}\n"
    for many in (["x" * (128 << 10)], ["x" * 100_000] * 30):
        with pytest.raises(dsec.InvalidArgument) as refused:
            await sandbox.exec("true", *many)
        assert refused.value.remedy is not None and "standard input" in refused.value.remedy
    env = {f"LONG{each}": "y" * 100_000 for each in range(5)}
    assert (await sandbox.run_shell("echo ${#LONG0} ${#LONG4}", env=env)).stdout == "100000 100000\n"


async def test_bytes_that_are_no_text(sandbox: dsec.Sandbox) -> None:
    """Arguments of any bytes, as bytes or with Python's escapes; a script of them too."""
    word = bytes(range(1, 256))
    result = await sandbox.exec("printf", "%s", word)
    assert result.stdout_bytes == word
    result = await sandbox.exec("printf", "%s", word.decode(errors="surrogateescape"))
    assert result.stdout_bytes == word
    script = b"printf '%s' '\xff\xfe\x80'".decode(errors="surrogateescape")
    assert (await sandbox.run_shell(script)).stdout_bytes == b"\xff\xfe\x80"
    assert (await sandbox.run_shell(padded(script, 200_000))).stdout_bytes == b"\xff\xfe\x80"
    assert (await sandbox.run_shell(script, key="bytes")).stdout_bytes == b"\xff\xfe\x80"
    words = ("", "a\nb", "-n", "--", " ", "'\"")
    code = "import sys; print(sys.argv[1:])"
    assert (await sandbox.exec("python3", "-c", code, *words)).stdout == f"{list(words)}\n"


async def test_bash_env_as_bash_does(sandbox: dsec.Sandbox) -> None:
    """BASH_ENV is read before a script, short or long, not by an interactive shell and not by sh."""
    await sandbox.write("/tmp/env", "GREETING=hello\n")
    env = {"BASH_ENV": "/tmp/env"}
    for size in (1000, 200_000):
        assert (await sandbox.run_shell(padded("echo $GREETING", size), env=env)).stdout == "hello\n"
    assert (await sandbox.exec("sh", "-c", "echo ${GREETING:-none}", env=env)).stdout == "none\n"


@pytest.mark.parametrize(("signal", "number"), [("SIGUSR1", 10), ("term", 15), (2, 2), ("SIGRTMIN+1", 35)])
async def test_signals_by_name(sandbox: dsec.Sandbox, signal: str | int, number: int) -> None:
    """By every spelling, to the exec and through the sandbox."""
    running = await sandbox.spawn("sleep", "100")
    await running.signal(signal)
    assert (await running.wait()).signal == number
    running = await sandbox.spawn("sleep", "100")
    await sandbox.kill(running.id, signal=signal)
    assert (await running.wait()).signal == number
    with pytest.raises(dsec.InvalidArgument):
        await running.signal("SIGNOPE")
