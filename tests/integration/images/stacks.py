"""Stacks of layers mounted as sandboxes have them, and everything that can be seen of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

__all__ = ["Stacks"]

_SERVER = r"""
import ctypes, hashlib, json, os, stat, sys
libc = ctypes.CDLL(None, use_errno=True)
root = sys.argv[1].encode()

def mount(source, target, kind, options):
    os.makedirs(target, exist_ok=True)
    if libc.mount(source, target, kind, 1, options) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), source)

def unmount(target):
    if libc.umount2(target, 2) != 0:
        raise OSError(ctypes.get_errno(), "umount", target)

def info(path):
    try:
        s = os.lstat(path)
    except OSError as error:
        return ["listed but not there", error.errno]
    what = b""
    if stat.S_ISREG(s.st_mode):
        with open(path, "rb") as file:
            what = hashlib.sha256(file.read()).digest()
    elif stat.S_ISLNK(s.st_mode):
        what = os.readlink(path)
    names = sorted(os.listxattr(path, follow_symlinks=False))
    attributes = [[n, os.getxattr(path, n, follow_symlinks=False).hex()] for n in names]
    return [s.st_mode, s.st_uid, s.st_gid, s.st_mtime_ns, s.st_rdev, s.st_size if not stat.S_ISDIR(s.st_mode) else 0,
            what.hex(), attributes]

def look(top):
    found, files = {"": info(top)}, {}
    todo = [b""]
    while todo:
        at = todo.pop()
        for name in sorted(os.listdir(top + b"/" + at)):
            path = at + b"/" + name
            found[path.hex()] = seen = info(top + path)
            if isinstance(seen[0], int):
                if stat.S_ISDIR(seen[0]):
                    todo.append(path)
                else:
                    at_once = os.lstat(top + path)
                    files.setdefault((at_once.st_dev, at_once.st_ino), []).append(path.hex())
    return [found, sorted(sorted(each) for each in files.values() if len(each) > 1)]

def show(layers):
    os.makedirs(root + b"/empty", exist_ok=True)
    points = []
    try:
        lowers = [root + b"/empty"]
        for number, layer in enumerate(layers):
            point = root + b"/%d" % number
            layer = layer.encode()
            mount(layer + b"/metadata", point, b"erofs", b"device=" + layer + b"/data")
            points.append(point)
            lowers.insert(0, point)
        top = root + b"/top"
        mount(b"overlay", top, b"overlay", b"lowerdir=" + b":".join(lowers))
        points.append(top)
        return look(top)
    finally:
        for point in reversed(points):
            unmount(point)

for line in sys.stdin:
    print(json.dumps([show(layers) for layers in json.loads(line)]), flush=True)
"""


class Stacks:
    """Mounts stacks in a mount namespace of its own; a context manager, with a directory for mount points."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        argv = ["unshare", "--mount", sys.executable, "-c", _SERVER, str(directory)]
        self._server = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.communicate(timeout=30)

    def seen(self, *stacks: Sequence[Path]) -> list[object]:
        """What each stack of layers, the lowest first, shows: every file with all that is known of it, and links."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        asked = [[str(layer) for layer in stack] for stack in stacks]
        self._server.stdin.write(json.dumps(asked) + "\n")
        self._server.stdin.flush()
        answer = self._server.stdout.readline()
        assert answer, f"the mounts failed with {self._server.wait(30)}"
        found: list[object] = json.loads(answer)
        return found
