"""A bucket with a known latency and bandwidth: the S3 calls that stores use, over a directory, on loopback.

It takes any credentials. Its objects are files, so a ``DirectoryStore`` of the same directory is the same store
without the delay: benchmarks publish through that one and read through this.

Each answer begins one latency after its request, and its bytes come as over one line that all requests share. It runs
as a process of its own (``python -m dsec.testing.slow_bucket``) and may be killed and started again.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsec.errors import NodeError
from dsec.testing.bucket_server import COUNTS, BucketServer, Line

__all__ = ["SlowBucket", "slow_bucket"]

_START_S = 30.0
_BUCKET = "slow"


@dataclass(frozen=True)
class SlowBucket:
    """A running one."""

    port: int

    @property
    def endpoint(self) -> str:
        """URL for a store's ``endpoint``."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def settings(self) -> str:
        """Lines of a node's settings below ``[stores.NAME]``."""
        return f'url = "s3://{_BUCKET}"\nendpoint = "{self.endpoint}"\n'

    @property
    def environment(self) -> dict[str, str]:
        """Credentials: without any a client would ask the machine for some."""
        return {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}

    def counts(self) -> dict[str, int]:
        """Since it began: ``gets``, ``sent_bytes`` of objects, and ``largest`` and ``smallest`` of the answers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", COUNTS)
            found: dict[str, int] = json.loads(connection.getresponse().read())
            return found
        finally:
            connection.close()


@contextmanager
def slow_bucket(directory: Path, *, latency_s: float, bytes_per_s: float, port: int = 0) -> Iterator[SlowBucket]:
    """Serve the directory as one bucket until the block ends."""
    argv = [sys.executable, "-m", "dsec.testing.slow_bucket", str(directory)]
    argv += ["--latency-s", str(latency_s), "--bytes-per-s", str(bytes_per_s), "--port", str(port)]
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    try:
        yield SlowBucket(_announced(process))
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _announced(process: subprocess.Popen[Any]) -> int:
    """It says its port once it listens, and an early end is the end of what it says."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise NodeError(f"the slow bucket did not start: exit code {process.wait(_START_S)}")
    return int(line)


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m dsec.testing.slow_bucket")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--latency-s", type=float, default=0.001)
    parser.add_argument("--bytes-per-s", type=float, default=1e9)
    parser.add_argument("--port", type=int, default=0)
    asked = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line = Line(asked.latency_s, asked.bytes_per_s, time.monotonic, time.sleep)
    server = BucketServer(asked.directory, _BUCKET, line, asked.port)
    os.write(sys.stdout.fileno(), f"{server.port}\n".encode())
    server.serve()


if __name__ == "__main__":
    _main()
