"""A layer's files read without mounting it, and layers held against each other."""

from __future__ import annotations

import json
import os
import random
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from dsec.errors import ImageCorrupt, Unsupported
from dsec.images.compare import Named, differences, hidden_files
from dsec.layering.erofs_tree import LayerTree
from dsec.layering.making import FromDirectory, make

pytestmark = pytest.mark.node
Mounted = Callable[[Path, str], str]

_LIST = """
import json, stat
def info(p):
    s = os.lstat(p)
    content = open(p, 'rb').read().hex() if stat.S_ISREG(s.st_mode) else ''
    target = os.readlink(p).hex() if stat.S_ISLNK(s.st_mode) else ''
    device = s.st_rdev if stat.S_ISCHR(s.st_mode) or stat.S_ISBLK(s.st_mode) else 0
    names = os.listxattr(p, follow_symlinks=False)
    attributes = {name: os.getxattr(p, name, follow_symlinks=False).hex() for name in names}
    return [s.st_mode, s.st_uid, s.st_gid, content, target, device, s.st_mtime_ns, attributes]
found = {'': info(b'.')}
for root, dirs, files in os.walk(b'.'):
    for name in dirs + files:
        path = os.path.join(root, name)
        found[path[2:].hex()] = info(path)
print(json.dumps(found))
"""


def layer(tree: Path, out: Path) -> Path:
    """A layer of a directory."""
    out.mkdir()
    make(FromDirectory(directory=str(tree), max_entries=10_000), out)
    return out


def earlier_layer(tree: Path, out: Path) -> Path:
    """A layer as dsec made them before it had a writer of its own."""
    out.mkdir()
    argv = [
        "mkfs.erofs",
        "--quiet",
        "--chunksize=4096",
        f"--blobdev={out / 'data'}",
        str(out / "metadata"),
        str(tree),
    ]
    subprocess.run(argv, check=True, capture_output=True)
    return out


def everything(tree: Path) -> Path:
    """A directory with every kind of file."""
    (tree / "deep" / "er").mkdir(parents=True)
    (tree / "large").write_bytes(random.Random(1).randbytes(700_000))
    (tree / "small").write_bytes(b"x")
    (tree / "nothing").touch()
    os.link(tree / "large", tree / "deep" / "linked")
    (tree / "link").symlink_to("deep/er")
    (tree / "long-link").symlink_to("x/" * 1_000)
    os.mkfifo(tree / "fifo")
    os.mknod(tree / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(tree / "gone", stat.S_IFCHR, 0)
    os.mknod(tree / "disk", stat.S_IFBLK | 0o600, os.makedev(259, 300))
    os.setxattr(tree / "deep", "trusted.overlay.opaque", b"y")
    os.setxattr(tree / "small", "user.note", b"n" * 100)
    with (tree / "sparse").open("wb") as file:
        file.seek(3 << 20)
        file.write(b"end")
    os.chown(tree / "small", 12_345, 54_321)
    (tree / "small").chmod(0o4755)
    many = tree / "many"
    many.mkdir()
    for number in range(2_000):
        (many / f"file-with-a-long-name-{number:06}").touch()
    Path(os.fsdecode(os.fsencode(tree) + b"/no\xffutf8")).write_bytes(b"odd")
    return tree


@pytest.mark.parametrize("make_layer", [layer, earlier_layer])
def test_the_reader_sees_what_the_kernel_sees(
    tmp_path: Path, mounted: Mounted, make_layer: Callable[[Path, Path], Path]
) -> None:
    """Kinds, modes, owners, targets, devices, attributes, contents of every file are those of the mounted layer."""
    made = make_layer(everything(tmp_path / "tree"), tmp_path / "layer")
    kernel = json.loads(mounted(made, _LIST))
    with LayerTree(made) as tree:
        nodes = list(tree.walk())
        ours = {
            node.path.hex(): [
                node.mode, node.uid, node.gid,
                b"".join(tree.content(node.nid)).hex() if stat.S_ISREG(node.mode) else "",
                node.target.hex(), _device(node.rdev), node.mtime_ns,
                {name.decode(): value.hex() for name, value in tree.attributes(node.nid).items()},
            ]
            for node in nodes
        }  # fmt: skip
    assert ours == kernel
    assert [node.path for node in nodes if node.opaque] == [b"deep"]
    assert [node.path for node in nodes if node.is_whiteout] == [b"gone"]
    assert len({node.nid for node in nodes if node.path in (b"large", b"deep/linked")}) == 1


def _device(encoded: int) -> int:
    return os.makedev(encoded >> 8 & 0xFFF, encoded & 0xFF | encoded >> 12 & ~0xFF)


def test_damaged_metadata_is_refused_or_read(tmp_path: Path) -> None:
    """Bytes changed anywhere: an answer or a typed error, never another exception or a loop."""
    made = layer(everything(tmp_path / "tree"), tmp_path / "layer")
    whole = (made / "metadata").read_bytes()
    chance = random.Random(7)
    refused = 0
    for _ in range(150):
        raw = bytearray(whole)
        for _ in range(chance.choice([1, 4, 40])):
            at = chance.randrange(1024, len(raw))
            raw[at] = chance.randrange(256)
        (made / "metadata").unlink()
        (made / "metadata").write_bytes(raw[: chance.choice([len(raw), len(raw), chance.randrange(len(raw))])])
        try:
            with LayerTree(made) as tree:
                for number, node in enumerate(tree.walk()):
                    assert number <= len(whole)
                    if stat.S_ISREG(node.mode) and node.size < 1 << 24:
                        sum(map(len, tree.content(node.nid)))
                    tree.attributes(node.nid)
        except (ImageCorrupt, Unsupported):
            refused += 1
    assert refused > 10


def _tree(tmp_path: Path, name: str, files: dict[str, str]) -> Named:
    root = tmp_path / name
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        if text == "whiteout":
            os.mknod(root / path, stat.S_IFCHR, 0)
        elif text == "opaque":
            (root / path).mkdir()
            os.setxattr(root / path, "trusted.overlay.opaque", b"y")
        else:
            (root / path).write_text(text)
    return Named(name, layer(root, tmp_path / f"{name}.layer"))


def test_what_layers_hide(tmp_path: Path) -> None:
    """Replaced, removed, emptied, once each; not what merges, nor what an image does to itself."""
    base = _tree(
        tmp_path, "one", {"etc/a": "1", "etc/b": "1", "usr/x/1": "", "usr/x/2": "", "lib/f": "", "opt/o": ""}
    )
    again = _tree(tmp_path, "two", {"etc/a": "2", "own": ""})
    image = [Named("image", base.directory), Named("image", again.directory)]
    work = _tree(tmp_path, "work", {"etc/b": "3", "usr/x": "whiteout", "new/file": "", "shared": "w"})
    tool = _tree(tmp_path, "tool", {"lib": "opaque", "shared": "t", "etc/a": "4", "opt/mine": ""})
    found = {(each.path, each.upper, each.lower, each.how) for each in hidden_files([*image, work, tool])}
    assert found == {
        (b"etc/b", "work", "image", "replaced"),
        (b"usr/x", "work", "image", "removed"),
        (b"lib", "tool", "image", "emptied"),
        (b"shared", "tool", "work", "replaced"),
        (b"etc/a", "tool", "image", "replaced"),
    }


def test_what_three_toolkits_hide(tmp_path: Path) -> None:
    """Of base, workspace and three toolkits each conflict is said once for each layer that loses."""
    base = _tree(tmp_path, "base", {"bin/sh": "1", "etc/path": "1"})
    work = _tree(tmp_path, "work", {"etc/path": "2", "src/x": ""})
    one = _tree(tmp_path, "one", {"opt/bin/cc": "a", "opt/lib/x": ""})
    two = _tree(tmp_path, "two", {"opt/bin/cc": "b", "src/x": "whiteout"})
    three = _tree(tmp_path, "three", {"opt/bin/cc": "c", "bin/sh": "3"})
    found = {(each.path, each.upper, each.lower, each.how) for each in hidden_files([base, work, one, two, three])}
    assert found == {
        (b"etc/path", "work", "base", "replaced"),
        (b"src/x", "two", "work", "removed"),
        (b"opt/bin/cc", "three", "one", "replaced"),
        (b"opt/bin/cc", "three", "two", "replaced"),
        (b"bin/sh", "three", "base", "replaced"),
    }


def test_what_differs(tmp_path: Path) -> None:
    """Added, removed, changed and in what; times and equal contents are no difference."""
    old = _tree(tmp_path, "old", {"same": "same", "gone": "", "text": "one", "longer": "a", "mode": "m", "kind": "k"})
    new_root = tmp_path / "new"
    new = _tree(tmp_path, "new", {"same": "same", "added/file": "", "text": "two", "longer": "ab", "kind/dir": ""})
    assert new_root.is_dir()
    (new_root / "mode").write_text("m")
    (new_root / "mode").chmod(0o600)
    os.chown(new_root / "mode", 5, 6)
    os.utime(new_root / "same", (1, 1))
    changed = layer(new_root, tmp_path / "changed")
    found = {each.path: (each.how, each.fields) for each in differences(old.directory, changed)}
    assert found == {
        b"gone": ("removed", ()),
        b"added": ("added", ()),
        b"added/file": ("added", ()),
        b"text": ("changed", ("content",)),
        b"longer": ("changed", ("size",)),
        b"mode": ("changed", ("mode", "owner")),
        b"kind": ("changed", ("kind",)),
        b"kind/dir": ("added", ()),
    }
    assert list(differences(new.directory, new.directory)) == []
