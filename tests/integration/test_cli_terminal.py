"""``dsec`` at a terminal: the command runs at one of ours, so that what a person would see and type is compared."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import dsec
from dsec.testing.node import RunningNode, wait_until

pytestmark = [pytest.mark.node, pytest.mark.anyio]

IMAGE = "dsec/debian:12"
DSEC = [sys.executable, "-m", "dsec.cli"]
LIMIT_S = 60.0
DETACH = b"\x10\x11"


class Person:
    """Somebody at a terminal of 30 × 100 characters at which ``dsec`` was called."""

    def __init__(self, node: RunningNode, *words: str) -> None:
        self.master, terminal = pty.openpty()
        self.size(30, 100)
        self.before = termios.tcgetattr(terminal)
        self.terminal = terminal

        def controlling() -> None:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            [*DSEC, *words],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env=node.environment | {"TERM": "xterm-256color"},
            preexec_fn=controlling,
        )
        self.seen = b""

    def size(self, rows: int, cols: int) -> None:
        """Drag the window."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def type(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self.master, keys)

    def sees(self, wanted: str) -> str:
        """Wait until the screen shows this; it is then read, and looked at no more."""
        deadline = time.monotonic() + LIMIT_S
        while (found := re.search(wanted.encode(), self.seen)) is None:
            ready, _, _ = select.select([self.master], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{wanted!r} never came: {self.seen!r}"
            self.seen += os.read(self.master, 65536)
        shown, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return shown.decode(errors="replace")

    def leaves_with(self) -> int:
        """The command's exit code; the terminal is as it was before."""
        code = self.process.wait(LIMIT_S)
        assert termios.tcgetattr(self.terminal) == self.before
        return code

    def close(self) -> None:
        """Go away."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self.terminal)


@contextmanager
def person(node: RunningNode, *words: str) -> Iterator[Person]:
    """A person, gone at the end."""
    somebody = Person(node, *words)
    try:
        yield somebody
    finally:
        somebody.close()


def run(node: RunningNode, *words: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """``dsec`` without a terminal."""
    return subprocess.run([*DSEC, *words], input=given, capture_output=True, env=node.environment, timeout=LIMIT_S)


async def test_exec_at_a_terminal(node: RunningNode, sandbox: dsec.Sandbox) -> None:
    """Its size, a window that is dragged, Ctrl-C for the program inside, its exit code, the terminal restored."""
    with person(node, "exec", "-it", sandbox.id, "bash", "--norc") as somebody:
        somebody.type(b"stty size; echo ready-$((1+1))\r")
        assert "30 100" in somebody.sees("ready-2")
        somebody.size(41, 77)
        somebody.type(b"until [ \"$(stty size)\" = '41 77' ]; do sleep 0.05; done; echo dragged-$((1+2))\r")
        somebody.sees("dragged-3")
        # Who says that it has begun is who is in the foreground.
        somebody.type(b"sh -c 'echo begun-$((2+2)); exec sleep 100'\r")
        somebody.sees("begun-4")
        somebody.type(b"\x03")
        somebody.type(b"echo code-$?\r")
        somebody.sees("code-130")
        somebody.type(b"exit 7\r")
        assert somebody.leaves_with() == 7


async def test_shell(node: RunningNode, sandbox: dsec.Sandbox) -> None:
    """An interactive bash, whose end of file is Ctrl-D."""
    with person(node, "shell", sandbox.id) as somebody:
        somebody.type(b"echo $0-$-; test -t 0 && echo at-$((1+1)) $TERM\r")
        assert re.search(r"bash-\w*i", somebody.sees("at-2 xterm-256color"))
        somebody.sees("[#$] ")  # its line editor is ready: before that, the key would mean something else
        somebody.type(b"\x04")
        assert somebody.leaves_with() == 0


async def test_run_at_a_terminal(node: RunningNode, client: dsec.DSecClient) -> None:
    """The terminal is the main process's; its code is the command's, and with --rm nothing is left."""
    with person(node, "run", "-it", "--rm", "--name", "seen", IMAGE, "bash", "--norc") as somebody:
        somebody.type(b"tty; stty size; echo pid-$$-$((1+1))\r")
        shown = somebody.sees(r"pid-\d+-2")
        assert "/dev/pts/0" in shown and "30 100" in shown
        somebody.type(b"exit 9\r")
        assert somebody.leaves_with() == 9
    assert [one async for one in client.find(state="running")] == []
    with pytest.raises(dsec.NotFound):
        await client.get("seen")


async def test_detach_and_attach(node: RunningNode, client: dsec.DSecClient) -> None:
    """The keys leave it running and the terminal as it was; attach comes back with all that was shown."""
    with person(node, "run", "-it", "--name", "kept", IMAGE, "bash", "--norc") as somebody:
        somebody.type(b"echo first-$((1+1))\r")
        somebody.sees("first-2")
        somebody.type(DETACH)
        somebody.sees("detached")
        assert somebody.leaves_with() == 0
    assert (await (await client.get("kept")).info()).state == "running"
    with person(node, "attach", "kept") as somebody:
        somebody.sees("first-2")
        somebody.type(b"stty size; echo second-$((2+2))\r")
        assert "30 100" in somebody.sees("second-4")
        somebody.type(b"exit 3\r")
        assert somebody.leaves_with() == 3
    await (await client.get("kept")).remove(force=True)


async def test_keys_of_ones_own(node: RunningNode, sandbox: dsec.Sandbox) -> None:
    """--detach-keys replaces the default, which then goes in as any other key."""
    with person(node, "exec", "-it", "--detach-keys", "ctrl-a,d", sandbox.id, "cat", "-v") as somebody:
        somebody.type(DETACH + b"x\r")
        somebody.sees(r"\^P\^Qx|\^Px")
        somebody.type(b"\x01d")
        somebody.sees("detached")
        assert somebody.leaves_with() == 0
    running = [one for one in await sandbox.execs() if one.ended is None]
    assert len(running) == 1
    await sandbox.kill(running[0].id, grace_s=0)


async def test_a_terminal_that_goes_away(node: RunningNode, sandbox: dsec.Sandbox) -> None:
    """SIGTERM to the command kills the program inside and restores the terminal."""
    with person(node, "exec", "-it", sandbox.id, "sh", "-c", "echo begun; exec sleep 100") as somebody:
        somebody.sees("begun")
        somebody.process.send_signal(signal.SIGTERM)
        assert somebody.leaves_with() == 130
    assert [one.id for one in await sandbox.execs() if one.ended is None] == []


async def test_a_copy_shows_how_far_it_is(node: RunningNode, sandbox: dsec.Sandbox, tmp_path: Path) -> None:
    """At a terminal there is a bar with what has arrived, gone at the end; the one line about it stays."""
    folder = tmp_path / ("long" * 20)
    folder.mkdir()
    (folder / "big").write_bytes(bytes(64 << 20))
    with person(node, "cp", str(folder / "big"), f"{sandbox.id}:/tmp/") as somebody:
        assert "MiB" in somebody.sees("Copied 1 entry, 64.0 MiB, to ").split("Copied")[0]
        assert somebody.leaves_with() == 0
    assert (await sandbox.files.stat("/tmp/big")).size == 64 << 20


async def test_output_at_a_terminal_without_input(node: RunningNode, sandbox: dsec.Sandbox) -> None:
    """-t alone gives the program a terminal, and needs none here."""
    done = run(node, "exec", "-t", sandbox.id, "sh", "-c", "test -t 1 && echo yes")
    assert (done.returncode, done.stdout) == (0, b"yes\r\n")


async def test_no_terminal_for_one(node: RunningNode, sandbox: dsec.Sandbox) -> None:
    """Docker's words, its code, and nothing is made."""
    for words in (["exec", "-it", sandbox.id, "sh"], ["run", "-it", IMAGE, "sh"], ["shell", sandbox.id]):
        done = run(node, *words)
        assert done.returncode == 1
        assert b"the input device is not a TTY" in done.stderr
    assert await sandbox.execs() == []


async def test_input_without_a_terminal(node: RunningNode, client: dsec.DSecClient) -> None:
    """-i streams bytes to ``run`` and ``exec``: exact, any amount, ended with our own input."""
    data = bytes(range(256)) * 8192
    done = run(node, "run", "-i", "--rm", IMAGE, "sh", "-c", "cat; exit 5", given=data)
    assert (done.returncode, len(done.stdout), done.stdout == data) == (5, len(data), True)
    async with client.sandbox(IMAGE) as sandbox:
        done = run(node, "exec", "-i", sandbox.id, "cat", given=data)
        assert (done.returncode, done.stdout == data) == (0, True)


async def test_attach_to_an_exec(node: RunningNode, sandbox: dsec.Sandbox) -> None:
    """By its ID or as the only one that runs, with its input; several that run are not guessed among."""
    running = await sandbox.spawn(
        shell="while read x; do echo got $x; test $x = end && exit 6; done", stdin=dsec.PIPE
    )
    done = run(node, "attach", sandbox.id, given=b"a\nb\nend\n")
    assert (done.returncode, done.stdout) == (6, b"got a\ngot b\ngot end\n")
    done = run(node, "attach", sandbox.id, running.id)
    assert (done.returncode, done.stdout) == (6, b"got a\ngot b\ngot end\n")
    for _ in range(2):
        await sandbox.spawn("sleep", "100")
    done = run(node, "attach", sandbox.id)
    assert done.returncode == 1 and b"2 running execs" in done.stderr


async def test_kill_by_name(node: RunningNode, client: dsec.DSecClient) -> None:
    """``dsec kill -s INT`` reaches the main process."""
    args = dsec.SandboxArgs(
        IMAGE, command=["bash", "-c", "trap 'exit 44' INT; echo ready; while :; do sleep 0.05; done"]
    )
    async with client.sandbox(args) as sandbox:
        main = (await sandbox.info()).main_exec_id
        assert main is not None
        assert await anext(sandbox.attach(main).lines()) == "ready"
        assert run(node, "kill", "-s", "INT", sandbox.id).returncode == 0
        assert (await sandbox.attach(main).wait()).exit_code == 44
    wait_until(lambda: sandbox.id not in node.live_sandboxes(), "the sandbox ends with its main process")
