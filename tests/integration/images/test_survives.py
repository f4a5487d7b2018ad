"""Every kind of file goes through a layer unharmed, and equal trees make equal layers wherever they come from."""

from __future__ import annotations

import io
import json
import os
import random
import socket
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.unit.layering.laid import from_archive, from_directory, from_layers

from dsec.errors import ImageCorrupt, Unsupported
from dsec.layering import scan as scanning

pytestmark = pytest.mark.node
Mounted = Callable[[Path, str], str]


def everything(tree: Path) -> Path:
    """A directory with all that a file system can hold."""
    (tree / "deep" / "er").mkdir(parents=True)
    (tree / "deep" / "big").write_bytes(random.Random(1).randbytes(700_001))
    (tree / "copy").write_bytes(random.Random(1).randbytes(700_001))
    os.link(tree / "deep" / "big", tree / "linked")
    (tree / "one-block").write_bytes(b"b" * 4096)
    (tree / "nothing").touch()
    (tree / "zeros").write_bytes(bytes(300_000))
    with (tree / "huge").open("wb") as file:
        for at in (0, 1 << 30, (4 << 30) + 5):
            file.seek(at)
            file.write(b"data at %d" % at)
        file.truncate(5 << 30)
    (tree / "longest-link").symlink_to("x" * 4095)
    (tree / "block-link").symlink_to("y" * 4032)
    os.mkfifo(tree / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        where = os.open(tree, os.O_DIRECTORY)
        listener.bind(f"/proc/self/fd/{where}/socket")
        os.close(where)
    os.mknod(tree / "disk", stat.S_IFBLK | 0o660, os.makedev(259, 70_000))
    os.mknod(tree / "console", stat.S_IFCHR | 0o600, os.makedev(5, 1))
    capability = b"\x01\x00\x00\x02\x00\x20\x00\x00" + bytes(12)
    (tree / "ping").write_bytes(b"p")
    os.setxattr(tree / "ping", "security.capability", capability)
    os.setxattr(tree / "ping", "user.many", os.urandom(1) * 2_000)
    os.setxattr(tree / "deep", "trusted.note", b"t")
    os.setxattr(tree / "deep" / "er", "trusted.overlay.opaque", b"y")
    (tree / "su").write_bytes(b"s")
    os.chown(tree / "su", 70_000, 4_000_000_000)
    (tree / "su").chmod(0o6755)
    many = tree / "many"
    many.mkdir()
    for number in range(3_000):
        (many / f"{number:06}-{'n' * (number % 200)}").touch()
    (many / "000000-").write_bytes(b"first")
    odd = os.fsencode(tree) + b"/\xff\xfe\x01 \n"
    with open(odd, "wb") as file:  # noqa: PTH123 - no text is its name
        file.write(b"odd")
    os.utime(tree / "su", ns=(0, -1_500_000_001))
    os.utime(tree / "ping", ns=(0, 1_600_000_000_123_456_789))
    for base, _, _ in os.walk(os.fsencode(tree)):
        os.utime(base, ns=(0, 1_700_000_000_000_000_007))
    return tree


_LIST = """
import hashlib, json, stat
def content(p, s):
    if stat.S_ISLNK(s.st_mode):
        return os.readlink(p).hex()
    if not stat.S_ISREG(s.st_mode):
        return ''
    if s.st_size < 1 << 30:
        return hashlib.sha256(open(p, 'rb').read()).hexdigest()
    with open(p, 'rb') as f:
        return [os.pread(f.fileno(), 4096, at).hex() for at in (0, 4096, 1 << 30, 4 << 30, s.st_size - 9)]
def info(p):
    s = os.lstat(p)
    names = [n for n in os.listxattr(p, follow_symlinks=False)]
    attributes = {n: os.getxattr(p, n, follow_symlinks=False).hex() for n in names}
    size = 0 if stat.S_ISDIR(s.st_mode) else s.st_size
    return [s.st_mode, s.st_uid, s.st_gid, s.st_mtime_ns, s.st_rdev, size, content(p, s), attributes]
found = {}
for root, dirs, files in os.walk(b'.'):
    found[root.hex()] = info(root)
    for name in files + [d for d in dirs if os.path.islink(os.path.join(root, d))]:
        found[os.path.join(root, name).hex()] = info(os.path.join(root, name))
print(json.dumps(found))
"""


def test_every_kind_of_file_survives(tmp_path: Path, mounted: Mounted) -> None:
    """The kernel shows of the mounted layer what the directory was, to the nanosecond and the last attribute."""
    tree = everything(tmp_path / "tree")
    made = from_directory(tmp_path / "layer", tree)
    script = f"import os; os.chdir({str(tree)!r})\n{_LIST}"
    wanted = json.loads(subprocess.check_output(["python3", "-c", script], text=True))
    assert json.loads(mounted(made.directory, _LIST)) == wanted
    assert made[b"linked"].nid == made[b"deep/big"].nid
    # 5 GiB with three pieces of data, and what two files have in common once.
    assert made.made.data_size < 4 << 20


@contextmanager
def shuffled(seed: int) -> Iterator[None]:
    """Directories give their entries in another order."""
    real = os.scandir

    class Entries:
        def __init__(self, path: bytes) -> None:
            with real(path) as entries:
                self._entries = list(entries)
            random.Random(seed).shuffle(self._entries)

        def __enter__(self) -> Iterator[Any]:
            return iter(self._entries)

        def __exit__(self, *_: object) -> None:
            pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "scandir", Entries)
        yield


def test_equal_trees_make_equal_layers(tmp_path: Path) -> None:
    """Bit for bit: whatever order directories have, in another process, through tar in any order, through a layer."""
    tree = everything(tmp_path / "tree")
    first = from_directory(tmp_path / "first", tree)
    for seed in (1, 2):
        with shuffled(seed):
            assert from_directory(tmp_path / f"shuffled-{seed}", tree).made == first.made
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-a", tree, copy], check=True)
    assert from_directory(tmp_path / "of-copy", copy).made == first.made
    assert from_layers(tmp_path / "of-layer", first.directory).made == first.made
    job = {"source": {"type": "FromDirectory", "directory": str(tree), "max_entries": 10_000}}
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "job").write_text(json.dumps(job))
    argv = [sys.executable, "-P", "-m", "dsec.layering", str(tmp_path / "program")]
    answer = json.loads(subprocess.check_output(argv))
    assert answer["metadata_sha256"] == first.made.metadata_sha256
    assert answer["data_sha256"] == first.made.data_sha256


def test_the_order_of_an_archive_does_not_matter(tmp_path: Path) -> None:
    """The same members in another order, and with or without holes, are the same layer."""
    contents = {f"d{i % 3}/f{i}": random.Random(i).randbytes(i * 9_000) for i in range(40)}
    contents["zeros"] = bytes(1_000_000)

    def archive(names: list[str]) -> bytes:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            for name in names:
                info = tarfile.TarInfo(name)
                info.size = len(contents[name])
                tar.addfile(info, io.BytesIO(contents[name]))
        return out.getvalue()

    names = list(contents)
    first = from_archive(tmp_path / "first", archive(names))
    random.Random(5).shuffle(names)
    assert from_archive(tmp_path / "second", archive(names)).made == first.made
    tree = tmp_path / "tree"
    for name, data in contents.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        with (tree / name).open("wb") as file:
            if name == "zeros":
                file.truncate(len(data))
            else:
                file.write(data)
        (tree / name).chmod(0o644)
        os.utime(tree / name, ns=(0, 0))
    for base, _, _ in os.walk(tree):
        Path(base).chmod(0o755)
        os.utime(base, ns=(0, 0))
    assert from_directory(tmp_path / "third", tree).made == first.made


@pytest.mark.parametrize("attribute", ["redirect", "metacopy"])
def test_a_file_whose_content_lies_elsewhere_is_refused(tmp_path: Path, attribute: str) -> None:
    """An overlay's upper layer that only points into a lower one cannot become a layer by itself."""
    tree = tmp_path / "tree"
    (tree / "d").mkdir(parents=True)
    os.setxattr(tree / "d", f"trusted.overlay.{attribute}", b"/elsewhere")
    with pytest.raises(Unsupported):
        from_directory(tmp_path / "layer", tree)


def test_what_an_upper_layer_notes_for_itself_stays_out(tmp_path: Path) -> None:
    """Overlay's marks of copies are no part of a layer made of it; whiteouts are alike, whenever they were made."""
    tree = tmp_path / "tree"
    (tree / "d").mkdir(parents=True)
    os.setxattr(tree / "d", "trusted.overlay.impure", b"y")
    os.setxattr(tree / "d", "trusted.overlay.origin", b"\0\xfb\x1d")
    os.mknod(tree / "gone", stat.S_IFCHR | 0o644, 0)
    made = from_directory(tmp_path / "layer", tree)
    assert made.attributes[b"d"] == {}
    assert made.attributes[b""] == {b"trusted.overlay.origin": b""}
    assert (made[b"gone"].mode, made[b"gone"].mtime_ns) == (stat.S_IFCHR, 0)


def test_too_many_files(tmp_path: Path) -> None:
    """A directory with more entries than the node allows is refused before it is read to its end."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for number in range(20):
        (tree / str(number)).touch()
    with pytest.raises(ImageCorrupt, match="more files"):
        scanning.scan(os.fsencode(tree), max_entries=10)
