"""``dsec cp`` over a real node: Docker's rules, archives on standard streams with Python's tarfile as the oracle."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dsec.testing.node import RunningNode


def dsec(node: RunningNode, *words: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "dsec.cli", *words],
        env=node.environment, capture_output=True, timeout=60, check=False, **options,
    )  # fmt: skip


@pytest.fixture
def box(node: RunningNode) -> Iterator[str]:
    """A sandbox by name."""
    assert dsec(node, "run", "-d", "--name", "box", "dsec/debian:12", "sleep", "1h").returncode == 0
    yield "box"
    dsec(node, "rm", "-f", "box")


def inside(node: RunningNode, script: str) -> str:
    """What a script prints in the sandbox."""
    done = dsec(node, "exec", "box", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def test_files_by_dockers_rules(node: RunningNode, box: str, tmp_path: Path) -> None:
    """A file onto a new name, over a file, into a directory; out again; a missing directory is an error."""
    (tmp_path / "f").write_text("one")
    assert dsec(node, "cp", str(tmp_path / "f"), f"{box}:/new").returncode == 0
    (tmp_path / "f").write_text("two")
    assert dsec(node, "cp", str(tmp_path / "f"), f"{box}:/new").returncode == 0
    assert dsec(node, "cp", str(tmp_path / "f"), f"{box}:/tmp").returncode == 0
    assert inside(node, "cat /new /tmp/f; stat -c %u /new") == "twotwo0\n"
    missing = dsec(node, "cp", str(tmp_path / "f"), f"{box}:/none/")
    assert missing.returncode == 1 and b"does not exist" in missing.stderr
    assert dsec(node, "cp", f"{box}:/new", str(tmp_path / "back")).returncode == 0
    (tmp_path / "d").mkdir()
    assert dsec(node, "cp", f"{box}:/new", str(tmp_path / "d")).returncode == 0
    assert (tmp_path / "back").read_text() == (tmp_path / "d" / "new").read_text() == "two"
    none = dsec(node, "cp", f"{box}:/none", str(tmp_path / "x"))
    assert none.returncode == 1 and b"No such file" in none.stderr


def test_directories_by_dockers_rules(node: RunningNode, box: str, tmp_path: Path) -> None:
    """A new name gets what it holds, a directory that is there the directory itself, /. only what it holds."""
    (tmp_path / "src" / "in").mkdir(parents=True)
    (tmp_path / "src" / "in" / "f").write_text("x")
    source = str(tmp_path / "src")
    assert dsec(node, "cp", source, f"{box}:/one").returncode == 0
    assert dsec(node, "cp", source, f"{box}:/one").returncode == 0
    assert dsec(node, "cp", f"{source}/.", f"{box}:/tmp").returncode == 0
    assert inside(node, "cd /; find one tmp -type f | sort") == "one/in/f\none/src/in/f\ntmp/in/f\n"
    assert dsec(node, "cp", f"{box}:/one", str(tmp_path / "out")).returncode == 0
    assert dsec(node, "cp", f"{box}:/one", str(tmp_path / "out")).returncode == 0
    assert (tmp_path / "out" / "one" / "src" / "in" / "f").read_text() == "x"
    refused = dsec(node, "cp", source, f"{box}:/etc/passwd")
    assert refused.returncode == 1 and b"not a directory" in refused.stderr


def test_links_and_owners(node: RunningNode, box: str, tmp_path: Path) -> None:
    """SRC as a link is a link, with -L what it leads to; -a keeps owners, both ways."""
    inside(node, "echo t > /t; ln -s t /l; echo o > /o; chown 7:8 /o")
    dsec(node, "cp", f"{box}:/l", str(tmp_path / "link"))
    dsec(node, "cp", "-L", f"{box}:/l", str(tmp_path / "file"))
    assert (tmp_path / "link").readlink() == Path("t")
    assert (tmp_path / "file").read_text() == "t\n" and not (tmp_path / "file").is_symlink()
    dsec(node, "cp", "-a", f"{box}:/o", str(tmp_path / "o"))
    assert ((tmp_path / "o").stat().st_uid, (tmp_path / "o").stat().st_gid) == (7, 8)
    dsec(node, "cp", "-a", str(tmp_path / "o"), f"{box}:/o2")
    dsec(node, "cp", "-u", "nobody", str(tmp_path / "o"), f"{box}:/tmp/o3")
    assert inside(node, "stat -c '%u %g' /o2 /tmp/o3") == "7 8\n65534 65534\n"


def test_words_and_json(node: RunningNode, box: str, tmp_path: Path) -> None:
    """One line on standard error, none with -q, facts with --json; exactly one side is a sandbox's."""
    (tmp_path / "f").write_bytes(b"x" * 2048)
    done = dsec(node, "cp", str(tmp_path / "f"), f"{box}:/f")
    assert done.stdout == b"" and done.stderr.startswith(b"Copied 1 entry, ")
    assert dsec(node, "cp", "-q", str(tmp_path / "f"), f"{box}:/f").stderr == b""
    told = json.loads(dsec(node, "cp", "--json", str(tmp_path / "f"), f"{box}:/f").stdout)
    assert told == {"bytes": 2048, "entries": 1, "skipped": 0}
    assert dsec(node, "cp", str(tmp_path / "f"), str(tmp_path / "g")).returncode == 1
    assert dsec(node, "cp", f"{box}:/f", f"{box}:/g").returncode == 1
    unknown = dsec(node, "cp", "nobody-here:/f", str(tmp_path / "g"))
    assert unknown.returncode == 1 and b"nobody-here" in unknown.stderr


def _archive(fmt: int) -> bytes:
    """An archive of Python's with what each format can say."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=fmt) as archive:
        for name, content in (("a", b"hello"), ("long/" + "n" * 180 + "/f", b"deep"), ("empty", b"")):
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.mtime, info.uid = len(content), 0o640, 1_500_000_000, 5
            archive.addfile(info, io.BytesIO(content))
        for name, kind, link in (
            ("l", tarfile.SYMTYPE, "a"),
            ("h", tarfile.LNKTYPE, "a"),
            ("d", tarfile.DIRTYPE, ""),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.mode = kind, link, 0o700
            archive.addfile(info)
    return stream.getvalue()


@pytest.mark.parametrize("fmt", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_an_archive_of_pythons_in(node: RunningNode, box: str, fmt: int) -> None:
    """What tarfile writes, in both formats, is unpacked as it says; -a gives the owners too."""
    inside(node, "mkdir /in")
    assert dsec(node, "cp", "-a", "-", f"{box}:/in", input=_archive(fmt)).returncode == 0
    seen = inside(node, "cd /in; cat a; stat -c '%a %u %Y %h' a; readlink l; cat h long/*/f; ls -A; stat -c %a d")
    assert seen == "hello640 5 1500000000 2\na\nhellodeep" + "a\nd\nempty\nh\nl\nlong\n700\n"
    refused = dsec(node, "cp", "-", f"{box}:/in/a", input=_archive(fmt))
    assert refused.returncode == 1 and b"no directory" in refused.stderr
    cut = dsec(node, "cp", "-", f"{box}:/in", input=_archive(fmt)[:1500])
    assert cut.returncode == 1 and b"cut short" in cut.stderr
    broken = dsec(node, "cp", "-", f"{box}:/in", input=b"x" * 20_000)
    assert broken.returncode == 1 and b"malformed" in broken.stderr


def test_an_archive_for_python_out(node: RunningNode, box: str) -> None:
    """What comes out is what tarfile (and GNU tar inside) reads: names, links, holes, modes, owners."""
    inside(
        node,
        "mkdir -p /src/sub; cd /src; printf hello > a; chown 7:8 a; chmod 4751 a; ln a h; ln -s ../x sub/l; "
        "mkfifo p; "
        f"printf n > sub/{'n' * 200}; truncate -s 3M holes; printf data | dd of=holes bs=1 seek=1048576 conv=notrunc",
    )
    done = dsec(node, "cp", "-q", f"{box}:/src", "-")
    assert done.returncode == 0 and len(done.stdout) < 100_000
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        members = {member.name: member for member in archive}
        assert set(members) == {"src", "src/a", "src/h", "src/sub", "src/sub/l", f"src/sub/{'n' * 200}", "src/holes"}
        first, second = sorted((members["src/a"], members["src/h"]), key=lambda member: member.islnk())
        assert (first.mode, first.uid, first.gid, first.size) == (0o4751, 7, 8, 5)
        assert second.islnk() and second.linkname == first.name
        assert members["src/sub/l"].linkname == "../x"
        holes = archive.extractfile(members["src/holes"])
        assert holes is not None and holes.read() == bytes(1 << 20) + b"data" + bytes((2 << 20) - 4)
    dsec(node, "exec", "-i", box, "tar", "-xf", "-", "-C", "/tmp", input=done.stdout)
    assert (
        inside(node, "diff -r --no-dereference /src/sub /tmp/src/sub && cmp /src/holes /tmp/src/holes && echo same")
        == "same\n"
    )
