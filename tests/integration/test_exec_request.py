"""What a program is given: words, environment, directory, user, input; and what is refused before it runs."""

from __future__ import annotations

import hashlib
import json

import pytest

import dsec

from .conftest import IMAGE

pytestmark = [pytest.mark.node, pytest.mark.anyio]

SHOW = "import json, os, sys; print(json.dumps([list(os.fsencode(word)) for word in sys.argv[1:]]))"


async def test_words_arrive_verbatim(sandbox: dsec.Sandbox) -> None:
    """Newlines, empty words, leading dashes, quotes, globs, dollars, bytes that are no UTF-8: nothing is changed."""
    words: list[str | bytes] = [
        "", "-", "--", "-c", "a\nb\n", " lead", "trail ", "$HOME", "*", "a'b\"c", "\\", "ünï", b"\xff\xfe\x01", "",
    ]  # fmt: skip
    result = await sandbox.exec("python3", "-c", SHOW, *words)
    seen = [bytes(word) for word in json.loads(result.stdout)]
    assert seen == [word if isinstance(word, bytes) else word.encode() for word in words]


async def test_many_words(sandbox: dsec.Sandbox) -> None:
    """A hundred thousand bytes of arguments arrive; a word longer than the kernel takes is the caller's error."""
    words = [f"{number:05d}" for number in range(20_000)]
    result = await sandbox.exec("sh", "-c", 'echo $# "${20000}"', "sh", *words)
    assert result.stdout == "20000 19999\n"
    with pytest.raises(dsec.InvalidArgument) as caught:
        await sandbox.exec("true", "x" * (200 * 1024))
    assert caught.value.fault == "caller"


async def test_environment_of_image_sandbox_and_exec(client: dsec.DSecClient) -> None:
    """The exec's variables win over the sandbox's, those over the image's; values are exact; no others are there."""
    async with client.sandbox(IMAGE, env={"A": "sandbox", "B": "sandbox", "PATH": "/usr/bin:/bin"}) as sandbox:
        odd = " =\n'\"$x ü"
        result = await sandbox.exec("env", "-0", env={"B": "exec", "C": odd, "EMPTY": ""})
        seen = dict(line.split("=", 1) for line in result.stdout.split("\0") if line)
        expected = {"A": "sandbox", "B": "exec", "C": odd, "EMPTY": "", "PATH": "/usr/bin:/bin", "HOME": "/root"}
        assert {name: seen.get(name) for name in expected} == expected
        assert not {name for name in seen if name.startswith("DSEC")}
        assert set(seen) - set(expected) <= {"LANG", "LC_ALL", "HOSTNAME"}


async def test_home_follows_the_user(sandbox: dsec.Sandbox) -> None:
    """HOME is the user's own, by name and by number, unless it is given."""
    await sandbox.run_shell("useradd -m -u 4321 alice", check=True)
    for user, home in (("alice", "/home/alice"), (None, "/root")):
        assert (await sandbox.exec("sh", "-c", "echo $HOME", user=user)).stdout == f"{home}\n"
    assert (await sandbox.exec("sh", "-c", "echo $HOME", user="alice", env={"HOME": "/x"})).stdout == "/x\n"


async def test_users(sandbox: dsec.Sandbox) -> None:
    """By name, number, name:group, number:number; supplementary groups as in /etc/group."""
    await sandbox.run_shell("useradd -m -u 4321 -G games,audio alice", check=True)
    shown = {
        "alice": "4321 4321 4321,29,60",
        "4321": "4321",
        "alice:games": "4321 60",
        "1234:77": "1234 77 77",
        "root": "0 0 0",
    }
    for user, expected in shown.items():
        result = await sandbox.run_shell("echo $(id -u) $(id -g) $(id -G | tr ' ' ,)", user=user)
        parts, wanted = result.stdout.split(), expected.split()
        assert parts[: len(wanted[:2])] == wanted[:2], user
        if len(wanted) == 3:
            assert set(parts[2].split(",")) == set(wanted[2].split(",")), user


async def test_user_and_directory_of_sandbox_and_exec(client: dsec.DSecClient) -> None:
    """The sandbox's user and directory hold for every exec that names no other; a missing workdir is made."""
    async with client.sandbox(IMAGE, user="nobody", workdir="/made/for/it") as sandbox:
        assert (await sandbox.run_shell("id -un; pwd")).stdout == "nobody\n/made/for/it\n"
        assert (await sandbox.run_shell("id -un; pwd", user="root", cwd="/tmp")).stdout == "root\n/tmp\n"


async def test_shell_and_login_shell(sandbox: dsec.Sandbox) -> None:
    """run_shell is bash; a login shell reads the profile."""
    await sandbox.write("/etc/profile.d/dsec-test.sh", "export FROM_PROFILE=yes\n")
    script = "echo ${BASH_VERSION:+bash} ${FROM_PROFILE:-no}; shopt -q login_shell && echo login || echo plain"
    assert (await sandbox.run_shell(script)).stdout == "bash no\nplain\n"
    assert (await sandbox.run_shell(script, login=True)).stdout == "bash yes\nlogin\n"


async def test_shell_falls_back_to_sh(sandbox: dsec.Sandbox) -> None:
    """Without bash it is /bin/sh; without either, ExecutableNotFound."""
    await sandbox.run_shell("rm /bin/bash", check=True)
    assert (await sandbox.run_shell("echo $0 ${BASH_VERSION:-none}")).stdout == "/bin/sh none\n"
    await sandbox.exec("rm", "/bin/sh", check=True)
    with pytest.raises(dsec.ExecutableNotFound):
        await sandbox.run_shell("true")


async def test_a_bare_name_is_looked_up_in_the_execs_path(sandbox: dsec.Sandbox) -> None:
    """PATH of the exec decides; a relative path is taken from cwd; argv[0] stays as given."""
    await sandbox.write("/opt/tool", "#!/bin/sh\necho $0\n", mode=0o755)
    assert (await sandbox.exec("tool", env={"PATH": "/opt:/bin"})).stdout == "/opt/tool\n"
    assert (await sandbox.exec("./tool", cwd="/opt")).stdout == "./tool\n"
    with pytest.raises(dsec.ExecutableNotFound):
        await sandbox.exec("tool")


async def test_input_is_exact_and_may_be_large(sandbox: dsec.Sandbox) -> None:
    """Ten megabytes of any bytes reach a program whole; empty input is an end of file; no input is /dev/null."""
    data = bytes(range(256)) * 40_960
    result = await sandbox.exec("sha256sum", stdin=data)
    assert result.stdout.split()[0] == hashlib.sha256(data).hexdigest()
    assert (await sandbox.exec("wc", "-c", stdin=b"")).stdout == "0\n"
    assert (await sandbox.exec("cat")).stdout == ""


async def test_input_that_nobody_reads(sandbox: dsec.Sandbox) -> None:
    """A program that ends without reading its input ends all the same, with its own code."""
    result = await sandbox.exec("sh", "-c", "exit 3", stdin=b"x" * 5_000_000)
    assert result.exit_code == 3


@pytest.mark.parametrize(
    ("argv", "error", "fault"),
    [
        (["/no/such/program"], dsec.ExecutableNotFound, "command"),
        (["no-such-program"], dsec.ExecutableNotFound, "command"),
        (["/etc/passwd"], dsec.NotExecutable, "command"),
        (["/etc"], dsec.NotExecutable, "command"),
        (["/etc/passwd/x"], dsec.ExecutableNotFound, "command"),
    ],
)
async def test_a_program_that_cannot_run(
    sandbox: dsec.Sandbox, argv: list[str], error: type[dsec.DSecError], fault: str
) -> None:
    """Missing, not executable, a directory: typed, the command's fault, never an exit code of 127; so for spawn."""
    for call in (sandbox.exec, sandbox.spawn):
        with pytest.raises(error) as caught:
            await call(*argv)
        assert (caught.value.fault, caught.value.retryable, caught.value.is_infra) == (fault, False, False)
        assert caught.value.sandbox_id == sandbox.id
        assert caught.value.remedy


async def test_a_script_without_its_interpreter(sandbox: dsec.Sandbox) -> None:
    """A missing interpreter is ExecutableNotFound; a file of rubbish marked executable is NotExecutable."""
    await sandbox.write("/opt/a", "#!/no/interpreter\n", mode=0o755)
    await sandbox.write("/opt/b", b"\x00\x01\x02rubbish", mode=0o755)
    with pytest.raises(dsec.ExecutableNotFound):
        await sandbox.exec("/opt/a")
    with pytest.raises(dsec.NotExecutable):
        await sandbox.exec("/opt/b")


@pytest.mark.parametrize(
    ("fields", "phase"),
    [
        ({"user": "no-such-user"}, "user"),
        ({"user": "root:no-such-group"}, "user"),
        ({"cwd": "/no/such/directory"}, "cwd"),
        ({"cwd": "/etc/passwd"}, "cwd"),
        ({"cwd": "relative"}, "cwd"),
    ],
)
async def test_a_bad_user_or_directory(sandbox: dsec.Sandbox, fields: dict[str, str], phase: str) -> None:
    """The caller's error with the phase that failed; nothing has run."""
    with pytest.raises(dsec.InvalidArgument) as caught:
        await sandbox.exec("touch", "/ran", **fields)  # type: ignore[arg-type]
    assert (caught.value.phase, caught.value.fault) == (phase, "caller")
    assert caught.value.remedy
    assert not (await sandbox.exec("test", "-e", "/ran")).ok


@pytest.mark.parametrize(
    "fields",
    [
        {"timeout_s": 0}, {"timeout_s": -1}, {"timeout_s": float("nan")}, {"timeout_s": float("inf")},
        {"grace_s": -1}, {"grace_s": float("nan")}, {"max_output_bytes": 0}, {"max_output_bytes": 65 << 20},
        {"env": {"A=B": "x"}}, {"env": {"": "x"}}, {"env": {"A": "x\0y"}}, {"key": "has space"}, {"user": "a\nb"},
    ],
)  # fmt: skip
async def test_impossible_requests(sandbox: dsec.Sandbox, fields: dict[str, object]) -> None:
    """Each is InvalidArgument, the caller's fault."""
    with pytest.raises(dsec.InvalidArgument) as caught:
        await sandbox.exec("true", **fields)  # type: ignore[arg-type]
    assert caught.value.fault == "caller"


@pytest.mark.parametrize("argv", [[], [""], ["a\0b"], ["true", "a\0b"]])
async def test_impossible_words(sandbox: dsec.Sandbox, argv: list[str]) -> None:
    """No word, an empty program, a NUL byte: InvalidArgument."""
    with pytest.raises(dsec.InvalidArgument):
        await sandbox.exec(*argv)
