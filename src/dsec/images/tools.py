"""External programs (skopeo, mmdebstrap, …) behind one narrow seam.

``Tools`` is the contract. ``SubprocessTools`` runs them as children of this process; a node has the keeper run them
(``dsec.edge.keeper_tools``). ``dsec.images.fakes`` has the one for tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from dsec.errors import NodeError

__all__ = ["NOT_FOUND", "STDERR_TAIL", "STDOUT_LIMIT", "SubprocessTools", "ToolResult", "Tools", "not_installed"]

STDOUT_LIMIT = 16 << 20
STDERR_TAIL = 64 << 10
NOT_FOUND = 127
"""Exit code of ``env``, ``prlimit`` and shells when there is no such program."""


class ToolResult(msgspec.Struct, frozen=True):
    """How a program ended."""

    exit_code: int
    """Exit code; minus the signal number if a signal ended it."""
    stdout: bytes = b""
    """Standard output, up to 16 MiB."""
    stderr: str = ""
    """The last 64 KiB of standard error."""


class Tools(Protocol):
    """Runs one external program to its end."""

    async def run(
        self,
        name: str,
        argv: Sequence[str],
        *,
        timeout_s: float,
        log: Callable[[str], None] | None = None,
        tool_id: str | None = None,
    ) -> ToolResult:
        """Run ``argv`` and wait for it; ``name`` labels the run (``pull``, ``mkfs``, …).

        ``log`` gets each line of standard error as it comes; an exception that it raises ends the program and the
        call. Cancellation and ``timeout_s`` (TimeoutError) kill the program with all its descendants in its
        process group. A program that is not installed is a NodeError (see ``not_installed``).

        ``tool_id`` names the run where tools outlive this process: a run of that ID which goes on, or has ended
        meanwhile, is joined.
        """
        ...


_PACKAGES = {"prlimit": "util-linux", "apt-config": "apt"}


class SubprocessTools:
    """Programs as child processes, each in a session of its own and in the given cgroups.

    ``cgroup_procs_files`` are the ``cgroup.procs`` (v2) or ``tasks`` (v1) files that the program joins before it
    runs its first instruction.
    """

    def __init__(self, cgroup_procs_files: Sequence[Path] = ()) -> None:
        self._cgroups = tuple(cgroup_procs_files)

    async def run(
        self,
        name: str,
        argv: Sequence[str],
        *,
        timeout_s: float,
        log: Callable[[str], None] | None = None,
        tool_id: str | None = None,
    ) -> ToolResult:
        """See ``Tools.run``; a child does not outlive its parent here, so there is nothing to join."""
        process = await self._start(name, argv)
        try:
            async with asyncio.timeout(timeout_s):
                result = await _collect(process, log)
        except TimeoutError:
            raise TimeoutError(f"{argv[0]} ({name}) did not end within {timeout_s:g} s") from None
        finally:
            # Descendants that outlive the leader keep the group's number taken.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            _close(process)
        if result.exit_code == NOT_FOUND:
            raise not_installed(name, argv)
        return result

    async def _start(self, name: str, argv: Sequence[str]) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                *self._command(argv),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except FileNotFoundError:
            raise not_installed(name, argv) from None

    def _command(self, argv: Sequence[str]) -> list[str]:
        if not self._cgroups:
            return list(argv)
        # A shell joins the cgroups and becomes the program: no code between fork and exec in this process.
        count = len(self._cgroups)
        joins = "".join(f'echo 0 > "${{{i + 1}}}" && ' for i in range(count))
        script = f'{joins}shift {count} && exec "$@"'
        return ["/bin/sh", "-c", script, "sh", *map(str, self._cgroups), *argv]


def not_installed(name: str, argv: Sequence[str]) -> NodeError:
    """The error for a program that does not exist (exit code 127 when ``env`` or a shell starts it)."""
    words = [each for each in argv if "=" not in each and not each.startswith("-")]
    program = words[1] if words[0] in ("env", "prlimit") and len(words) > 1 else words[0]
    package = _PACKAGES.get(program, program)
    return NodeError(f"{program} is not installed on the node", phase=name, remedy=f"Install the package {package}")


async def _collect(process: asyncio.subprocess.Process, log: Callable[[str], None] | None) -> ToolResult:
    assert process.stdout is not None
    assert process.stderr is not None
    stdout = asyncio.ensure_future(_read_bounded(process.stdout))
    stderr = asyncio.ensure_future(_read_lines(process.stderr, log))
    try:
        out, err = await asyncio.gather(stdout, stderr)
    finally:
        for task in (stdout, stderr):
            task.cancel()
        await asyncio.gather(stdout, stderr, return_exceptions=True)
    return ToolResult(await process.wait(), out, err)


async def _read_bounded(stream: asyncio.StreamReader) -> bytes:
    parts, total = [], 0
    while chunk := await stream.read(1 << 16):
        total += len(chunk)
        if total > STDOUT_LIMIT:
            raise NodeError("a program printed more than 16 MiB")
        parts.append(chunk)
    return b"".join(parts)


async def _read_lines(stream: asyncio.StreamReader, log: Callable[[str], None] | None) -> str:
    tail, line = b"", b""
    while chunk := await stream.read(1 << 14):
        tail = (tail + chunk)[-STDERR_TAIL:]
        *whole, line = (line + chunk).split(b"\n")
        line = line[-STDERR_TAIL:]
        if log is not None:
            for each in whole:
                log(each.decode(errors="replace"))
    return tail.decode(errors="replace")


def _close(process: asyncio.subprocess.Process) -> None:
    # A killed program's pipes are otherwise closed by the garbage collector, with a ResourceWarning.
    transport = getattr(process, "_transport", None)
    if transport is not None:
        transport.close()
