"""A directory with a known latency and bandwidth: FUSE over another one, as a distributed file system's mount is.

Every question to it is answered one latency later, and what is read and written comes over one line that all share.
The server is a process of its own (``python -m dsec.testing.slow_directory``): it may be killed, and the directory
mounted again, as happens to real ones.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dsec.errors import NodeError
from dsec.testing.bucket_server import Line
from dsec.testing.fuse_server import FuseServer

__all__ = ["SlowDirectory", "slow_directory"]

_THREADS = 32
_READ_AHEAD_KIB = 8192
"""As clients of distributed file systems set it; the kernel's own 128 would cut every large read into such pieces."""


class SlowDirectory:
    """A mount of ``source`` at ``point``, which is begun and ended as often as one likes."""

    def __init__(self, source: Path, point: Path, latency_s: float, bytes_per_s: float) -> None:
        self.point = point
        self._argv = [sys.executable, "-m", "dsec.testing.slow_directory", str(source), str(point)]
        self._argv += ["--latency-s", str(latency_s), "--bytes-per-s", str(bytes_per_s)]
        self._process: subprocess.Popen[bytes] | None = None

    def mount(self) -> None:
        """Return when it is mounted."""
        self._process = subprocess.Popen(self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if not self._said():
            raise NodeError(f"the slow directory did not start: exit code {self._process.wait()}")
        device = self.point.stat().st_dev
        ahead = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
        ahead.write_text(str(_READ_AHEAD_KIB))

    def kill(self) -> None:
        """SIGKILL the server: whoever has the mount open gets errors from now on, as does whoever comes."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process = None

    def unmount(self) -> None:
        """Take the mount away, whoever uses it."""
        self.kill()
        subprocess.run(["umount", "-l", str(self.point)], check=False, capture_output=True)

    def counts(self) -> dict[str, int]:
        """Since it was mounted: ``reads`` and ``read_bytes``."""
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        found: dict[str, int] = json.loads(self._said())
        return found

    def _said(self) -> bytes:
        assert self._process is not None and self._process.stdout is not None
        return self._process.stdout.readline()


@contextmanager
def slow_directory(source: Path, point: Path, *, latency_s: float, bytes_per_s: float) -> Iterator[SlowDirectory]:
    """Mount ``source`` at the directory ``point`` until the block ends."""
    mounted = SlowDirectory(source, point, latency_s, bytes_per_s)
    mounted.mount()
    try:
        yield mounted
    finally:
        mounted.unmount()


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m dsec.testing.slow_directory")
    parser.add_argument("source", type=Path)
    parser.add_argument("point", type=Path)
    parser.add_argument("--latency-s", type=float, default=0.001)
    parser.add_argument("--bytes-per-s", type=float, default=1e9)
    asked = parser.parse_args()
    server = FuseServer(
        asked.source, asked.point, Line(asked.latency_s, asked.bytes_per_s, time.monotonic, time.sleep)
    )
    for _ in range(_THREADS):
        threading.Thread(target=server.serve, daemon=True).start()
    os.write(sys.stdout.fileno(), b"mounted\n")
    # Each line is a question for the counts; the end of them that of the mount's owner.
    for _ in sys.stdin:
        os.write(sys.stdout.fileno(), json.dumps(server.counts()).encode() + b"\n")


if __name__ == "__main__":
    _main()
