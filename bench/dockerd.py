"""A Docker daemon for the length of a benchmark, with directories and a socket of its own."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from dsec.demo.docker_api import DockerApi
from dsec.errors import NodeError

__all__ = ["running_daemon"]

_START_S = 60.0
_STOP_S = 60.0


@contextlib.asynccontextmanager
async def running_daemon() -> AsyncIterator[Path]:
    """Start dockerd (which touches no network settings of the machine) and give its socket; end it by its PID."""
    program = shutil.which("dockerd")
    if program is None:
        raise NodeError("there is no dockerd here", remedy="Install it (Debian: `apt-get install docker.io`)")
    with tempfile.TemporaryDirectory(prefix="dsec-bench-", ignore_cleanup_errors=True) as scratch:
        root = Path(scratch)
        socket = root / "docker.sock"
        with (root / "log").open("wb") as log:
            daemon = await asyncio.create_subprocess_exec(
                program,
                f"--data-root={root / 'data'}",
                f"--exec-root={root / 'exec'}",
                f"--pidfile={root / 'pid'}",
                f"--host=unix://{socket}",
                "--bridge=none",
                "--iptables=false",
                "--ip6tables=false",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            await _answering(daemon, socket, root / "log")
            yield socket
        finally:
            await _end(daemon)


async def _answering(daemon: asyncio.subprocess.Process, socket: Path, log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and daemon.returncode is None:
        with contextlib.suppress(NodeError):
            async with DockerApi(socket):
                return
        await asyncio.sleep(0.2)
    said = (await asyncio.to_thread(log.read_text, errors="replace"))[-500:]
    raise NodeError(f"dockerd did not come up: {said}")


async def _end(daemon: asyncio.subprocess.Process) -> None:
    if daemon.returncode is None:
        daemon.terminate()
    try:
        async with asyncio.timeout(_STOP_S):
            await daemon.wait()
    except TimeoutError:
        daemon.kill()
        await daemon.wait()
