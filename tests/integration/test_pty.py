"""Programs at a terminal: it is the sandbox's own, behaves as terminals do, and nothing of its output is lost."""

from __future__ import annotations

import asyncio
import hashlib
import re

import pytest

import dsec
from dsec.client.results import Exited, Gap, Stderr, Stdout

pytestmark = [pytest.mark.node, pytest.mark.anyio]

SIZE = dsec.Pty(rows=31, cols=97)


async def screen(running: dsec.Exec) -> tuple[str, Exited]:
    """All that a program has shown, at its offsets, and its end."""
    shown = bytearray()
    async for event in running.events():
        if isinstance(event, Exited):
            return shown.decode(), event
        assert isinstance(event, Stdout), event
        assert event.offset == len(shown)
        shown += event.data
    raise AssertionError("no Exited came")


async def until(running: dsec.Exec, wanted: str) -> str:
    """Read from the beginning until the screen shows this."""
    shown = bytearray()
    async for event in running.events():
        assert not isinstance(event, Exited | Stderr | Gap), (event, bytes(shown))
        shown += event.data
        if re.search(wanted, shown.decode(errors="replace")):
            return shown.decode(errors="replace")
    raise AssertionError(f"{wanted!r} never came: {bytes(shown)!r}")


async def test_it_is_a_terminal_of_that_size(sandbox: dsec.Sandbox) -> None:
    """All three descriptors are it, it is the controlling one, it has the size, and lines end as there."""
    script = (
        "tty; test -t 0 && test -t 1 && test -t 2 && echo all; stty size; echo here >/dev/tty; readlink /proc/$$/fd/2"
    )
    running = await sandbox.spawn(shell=script, pty=SIZE)
    shown, end = await screen(running)
    name, *rest = shown.split("\r\n")
    assert re.fullmatch(r"/dev/pts/\d+", name)
    assert rest == ["all", "31 97", "here", name, ""]
    assert end.exit_code == 0
    result = await running.wait()
    assert result.merged and result.output == shown
    info = await running.info()
    assert (info.pty, info.stdin, info.merge_stderr) == (True, True, True)


@pytest.mark.parametrize("user", ["root", "nobody", "33:33"])
async def test_it_belongs_to_the_user(sandbox: dsec.Sandbox, user: str) -> None:
    """Owner is the exec's user, group tty, mode 0620; and the user can open it by its name."""
    running = await sandbox.spawn(shell='stat -c "%u %g %a" $(tty); id -u; echo anew > $(tty)', pty=SIZE, user=user)
    shown, _ = await screen(running)
    facts, uid, anew, _ = shown.split("\r\n")
    assert facts == f"{uid} 5 620" and anew == "anew"


async def test_environment(sandbox: dsec.Sandbox) -> None:
    """TERM is set only with a terminal, and only where nobody has said otherwise; the image's own locale stays."""
    script = 'echo "$(env | grep -E "^(TERM|LANG|LC_ALL)=" | sort | tr "\\n" " ")"'
    assert (await sandbox.run_shell(script)).stdout == "LANG=C.UTF-8 \n"
    for env, wanted in (
        ({}, "LANG=C.UTF-8 TERM=xterm-256color "),
        ({"TERM": "vt100"}, "LANG=C.UTF-8 TERM=vt100 "),
        ({"LANG": "de_DE.UTF-8"}, "LANG=de_DE.UTF-8 TERM=xterm-256color "),
    ):
        shown, _ = await screen(await sandbox.spawn(shell=script, pty=SIZE, env=env))
        assert shown == wanted + "\r\n"


async def test_echo_and_line_editing(sandbox: dsec.Sandbox) -> None:
    """What is typed is shown, erased a character at a time (UTF-8), and handed over by the line."""
    running = await sandbox.spawn("cat", pty=SIZE)
    await running.stdin.write("grüßx\x7f\x7fz\n")
    await until(running, r"grüz\r\n")
    await running.stdin.close()
    shown, end = await screen(running)
    assert shown.startswith("grüßx") and shown.endswith("\r\ngrüz\r\n")
    assert (end.exit_code, end.signal) == (0, None)


@pytest.mark.parametrize("typed", ["", "whole line\n", "half a line"])
async def test_closing_is_end_of_file(sandbox: dsec.Sandbox, typed: str) -> None:
    """Closing the input sends Ctrl-D, twice in the middle of a line: the program sees its end in any case."""
    running = await sandbox.spawn(shell="stty -echo; echo ready; cat; echo over", pty=SIZE)
    await until(running, "ready")
    if typed:
        await running.stdin.write(typed)
    await running.stdin.close()
    shown, end = await screen(running)
    assert shown == "ready\r\n" + typed.replace("\n", "\r\n") + "over\r\n"
    assert end.exit_code == 0


async def test_resize_reaches_the_program(sandbox: dsec.Sandbox) -> None:
    """The new size is there and SIGWINCH with it; a size that no terminal has is refused."""
    running = await sandbox.spawn(
        shell='trap "stty size" WINCH; echo ready; while :; do read -t 0.05 line && break; done', pty=SIZE
    )
    await until(running, "ready")
    await running.resize(50, 132)
    await until(running, "50 132")
    with pytest.raises(dsec.InvalidArgument):
        await running.resize(0, 80)
    await running.stdin.write("\n")
    _, end = await screen(running)
    assert end.exit_code == 0
    await running.resize(10, 10)  # over: nothing happens


async def test_keys_that_signal(sandbox: dsec.Sandbox) -> None:
    """Ctrl-C interrupts what is in front, not the shell behind it; Ctrl-\\ quits."""
    running = await sandbox.spawn("bash", "--norc", "-i", pty=SIZE, env={"PS1": "ready> "})
    await until(running, "ready> ")
    # Said by what is in front: the shell, which echoes the line, still has keys of its own then.
    await running.stdin.write("sh -c 'echo in-$((1 + 1)); exec sleep 100'\n")
    await until(running, "in-2")
    await running.stdin.write("\x03")
    await running.stdin.write('echo "code $?"\n')
    await until(running, "code 130")
    await running.stdin.write("exit 5\n")
    _, end = await screen(running)
    assert end.exit_code == 5


@pytest.mark.parametrize("size", [0, 1, 4096, 70_000, 3_000_000])
async def test_no_lost_tail(sandbox: dsec.Sandbox, size: int) -> None:
    """A program that writes and exits at once, its terminal hung up by its end, loses no byte."""
    program = (
        "import os, tty; tty.setraw(1)\n"
        f"rest = b''.join(b'%07d\\n' % each for each in range({size} // 8 + 1))[:{size}]\n"
        "while rest: rest = rest[os.write(1, rest):]\n"
        "os._exit(3)"
    )
    running = await sandbox.spawn("python3", "-c", program, pty=SIZE)
    shown, end = await screen(running)
    assert shown == "".join(f"{each:07d}\n" for each in range(size // 8 + 1))[:size]
    assert end.exit_code == 3


async def test_input_of_any_size_with_back_pressure(sandbox: dsec.Sandbox) -> None:
    """A raw terminal passes 2 MiB of every byte there is, although the program reads slowly."""
    count = 2 << 20
    program = (
        "import os, tty, hashlib; tty.setraw(0); os.write(1, b'ready'); left, total = 2 << 20, hashlib.sha256()\n"
        "while left:\n data = os.read(0, 1000); left -= len(data); total.update(data)\n"
        "print(total.hexdigest(), end='')"
    )
    running = await sandbox.spawn("python3", "-c", program, pty=SIZE)
    await until(running, "ready")
    data = bytes(range(256)) * (count // 256)
    await running.stdin.write(data)
    shown, _ = await screen(running)
    assert shown == "ready" + hashlib.sha256(data).hexdigest()


async def test_kill_and_timeout(sandbox: dsec.Sandbox) -> None:
    """A program at a terminal is killed, and times out, as any other."""
    running = await sandbox.spawn("sleep", "100", pty=SIZE)
    await running.kill(grace_s=0)
    assert (await running.wait()).ended is dsec.Ended.CANCELLED
    running = await sandbox.spawn(shell="echo begun; sleep 100", pty=SIZE, timeout_s=0.3, grace_s=0)
    result = await running.wait()
    assert (result.ended, result.output) == (dsec.Ended.TIMEOUT, "begun\r\n")
    running = await sandbox.spawn("cat", pty=SIZE)
    await running.signal("SIGHUP")
    assert (await running.wait()).signal == 1


async def test_a_terminal_that_is_let_go_and_opened_again(sandbox: dsec.Sandbox) -> None:
    """A program that closes all three descriptors can still write to /dev/tty later."""
    script = "exec </dev/null >/dev/null 2>&1; sleep 0.3; echo later > /dev/tty; sleep 0.2; echo last > /dev/tty"
    shown, end = await screen(await sandbox.spawn(shell=script, pty=SIZE))
    assert (shown, end.exit_code) == ("later\r\nlast\r\n", 0)


async def test_a_background_process_keeps_nothing_open(sandbox: dsec.Sandbox) -> None:
    """The program's end is the terminal's: what it left behind does not hold up its result."""
    running = await sandbox.spawn(shell="trap '' HUP; sleep 100 & echo gone", pty=SIZE)
    result = await asyncio.wait_for(running.wait(), 30)
    assert (result.output, result.exit_code) == ("gone\r\n", 0)


async def test_without_a_terminal_nothing_is_resized(sandbox: dsec.Sandbox) -> None:
    """InvalidArgument for an exec without one, NotFound for none."""
    running = await sandbox.spawn("cat", stdin=dsec.PIPE)
    with pytest.raises(dsec.InvalidArgument):
        await running.resize(10, 10)
    await running.kill(grace_s=0)
    with pytest.raises(dsec.NotFound):
        await sandbox.attach("a" * 26).resize(10, 10)


async def test_many_terminals_and_none_left(sandbox: dsec.Sandbox) -> None:
    """Forty at once have forty names, and afterwards the sandbox has none."""
    spawned = await asyncio.gather(*(sandbox.spawn(shell="tty; read line", pty=SIZE) for _ in range(40)))
    names = {(await until(each, "\n")).split()[0] for each in spawned}
    assert len(names) == 40
    for each in spawned:
        await each.stdin.write("\n")
    assert all([(await each.wait()).ok for each in spawned])
    script = "for i in $(seq 200); do test $(ls /dev/pts) = ptmx && echo none && exit; sleep 0.05; done; ls /dev/pts"
    assert (await sandbox.run_shell(script)).stdout == "none\n"
