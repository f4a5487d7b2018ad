"""A process that has given up root and calls: what it still has, and that the rest is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dsec.errors import Unsupported
from dsec.node.landlock import landlock_version
from dsec.node.syscall_filter import REFUSED, program

UID = 0x3FFFFDFF
_GIVEN_UP = f"""
import ctypes, encodings.idna, os, socket, threading
from dsec.node.unprivileged import become_user, refuse_syscalls
from dsec.node.syscall_filter import REFUSED
libc = ctypes.CDLL(None, use_errno=True)
become_user({UID})
refuse_syscalls()
def call(number, *arguments):
    return ctypes.get_errno() if libc.syscall(number, *arguments) < 0 else 0
"""


def given_up(program: str) -> str:
    """What a program prints that has given up what it can."""
    done = subprocess.run(
        [sys.executable, "-c", _GIVEN_UP + program], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has something to give up")
needs_x86 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of x86-64")


@needs_root
def test_no_user_no_capability_no_way_back() -> None:
    """Users, groups, all five sets and the bounding set are gone, new privileges and dumps refused."""
    lines = dict(
        line.split(":\t", 1)
        for line in given_up("print(open('/proc/self/status').read())").splitlines()
        if ":\t" in line
    )
    assert lines["Uid"].split() == lines["Gid"].split() == [str(UID)] * 4
    assert lines["Groups"].strip() == ""
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(lines[name], 16) == 0, name
    assert lines["NoNewPrivs"] == "1"
    assert lines["Seccomp"] == "2"
    assert given_up(
        "print(libc.prctl(3, 0, 0, 0, 0), libc.prctl(2, ctypes.byref(n := ctypes.c_int()), 0, 0, 0), n.value)"
    ) == ("0 0 15")


@needs_root
@needs_x86
def test_calls_that_are_refused() -> None:
    """Each of the list, programs and processes, odd sockets, and whatever has no number yet."""
    # Called with arguments that do nothing where a call were let through.
    printed = given_up(
        "print({name: call(numbers[0], -1, -1, -1, -1) for name, numbers in REFUSED.items()})\n"
        "print([call(number) for number in (435, 457, 1000, 0x40000000 + 59)])\n"
        "print([call(90, 0, mode) for mode in (0o644, 0o4755, 0o2755, 0o666, 0o620)])\n"
        "print(call(56, 17, 0, 0, 0, 0), call(41, 17, 3, 0), call(41, 40, 1, 0), call(41, 38, 5, 0))"
    ).splitlines()
    assert eval(printed[0]) == dict.fromkeys(REFUSED, 1)
    assert printed[1] == "[38, 38, 38, 38]"
    assert printed[2] == "[14, 1, 1, 1, 1]"
    assert printed[3] == "1 1 1 1"


@needs_root
def test_what_a_server_needs_is_left() -> None:
    """Files, threads, sockets, names."""
    printed = given_up(
        "thread = threading.Thread(target=lambda: print('thread')); thread.start(); thread.join()\n"
        "server = socket.create_server(('127.0.0.1', 0)); socket.create_connection(server.getsockname())\n"
        "a, b = socket.socketpair(); a.send(b'x'); print(b.recv(1), socket.getaddrinfo('localhost', 1)[0][4][1])\n"
    )
    assert printed.split("\n") == ["thread", "b'x' 1"]


@needs_root
def test_only_a_single_thread_gives_up() -> None:
    """What is given up is each thread's own: with two it is refused, and nothing is given up."""
    done = subprocess.run(
        [
            sys.executable, "-c",
            "import os, threading; from dsec.node.unprivileged import become_user\n"
            "over = threading.Event(); threading.Thread(target=over.wait).start()\n"
            f"try: become_user({UID})\nexcept RuntimeError: print(os.getuid())\nover.set()",
        ],
        capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "0"


_CONFINED = f"""
import os, sys, tempfile
from pathlib import Path
from dsec.node.landlock import confine_writes
from dsec.node.unprivileged import become_user_with_files
root = Path(sys.argv[1])
def attempt(work):
    try:
        work()
    except OSError as error:
        return type(error).__name__
    return "done"
become_user_with_files({UID})
print(confine_writes([root / "own", root / "absent"], [root / "named"]))
"""


@needs_root
@pytest.mark.skipif(landlock_version() < 3, reason="this kernel has no Landlock")
def test_files_are_written_where_it_was_said_and_nowhere_else(tmp_path: Path) -> None:
    """Below a directory and in a file that are named, whoever they belong to, as root; all else stays as it is."""
    for name in ("own", "other"):
        (tmp_path / name).mkdir(mode=0o700)
        os.chown(tmp_path / name, 12345, 12345)
        (tmp_path / name / "there").write_text("before")
    (tmp_path / "named").write_text("before")
    done = subprocess.run(
        [
            sys.executable, "-c",
            _CONFINED
            + "print(attempt(lambda: (root / 'own/new').write_text('x')), (root / 'own/new').stat().st_uid)\n"
            "print(attempt((root / 'own/there').unlink), attempt(lambda: (root / 'named').write_text('after')))\n"
            "print((root / 'other/there').read_text())\n"
            "print([attempt(each) for each in (\n"
            " lambda: (root / 'other/new').write_text('x'), (root / 'other/there').unlink,\n"
            " lambda: (root / 'other/there').open('r+'), lambda: os.truncate(root / 'other/there', 0),\n"
            " lambda: (root / 'own/new').rename(root / 'other/new'), lambda: os.link(root / 'own/new', root / 'l'),\n"
            " (root / 'named').unlink, (root / 'd').mkdir, lambda: os.mkfifo(root / 'own/fifo'),\n"
            " lambda: os.mknod(root / 'own/dev', 0o60644, os.makedev(7, 0)),\n"
            " lambda: (root / 'own/s').symlink_to('/'),\n"
            " lambda: Path('/proc/sys/kernel/core_pattern').open('r+'), lambda: os.execv('/bin/true', ['true']),\n"
            " lambda: os.kill(os.getppid(), 0), lambda: os.setuid(0), lambda: os.chroot('/'))])\n",
            str(tmp_path),
        ],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[:4] == ["True", "done 0", "done done", "before"]
    assert set(said[4].strip("[]").replace("'", "").split(", ")) == {"PermissionError"}, said[4]
    assert (tmp_path / "other/there").read_text() == "before" and (tmp_path / "named").read_text() == "after"


def test_programs_of_both_architectures() -> None:
    """There is one for each, whose jumps stay inside; none for another."""
    for machine in ("x86_64", "aarch64"):
        steps = program(machine)
        assert len(steps) % 8 == 0
        count = len(steps) // 8
        for at in range(count):
            code, true, false = (
                int.from_bytes(steps[8 * at : 8 * at + 2], sys.byteorder),
                *steps[8 * at + 2 : 8 * at + 4],
            )
            assert code & 7 != 5 or at + 1 + max(true, false) < count
    with pytest.raises(Unsupported):
        program("vax")
