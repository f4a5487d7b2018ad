"""A kind of sandbox that is only memory, for tests of what stands on a backend; needs no root."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from dsec.backends.container import ContainerBackend
from dsec.backends.link import RuntimeLink
from dsec.testing.fake_runtime import FakeRuntime

__all__ = ["FakeBackend"]


class FakeBackend(ContainerBackend):
    """``async with FakeBackend() as backend``; ``backend.runtime`` can be held, cut off, restarted and robbed.

    The programs in its sandboxes are those of ``FakeExec``. It passes the contract group of the conformance suite.
    """

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="dsec-")
        socket = Path(self._directory.name) / "runtime.sock"
        self.runtime = FakeRuntime(socket)
        super().__init__(RuntimeLink(socket, _nothing))
        self._running: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.runtime.start()
        self._running = asyncio.get_running_loop().create_task(self._link.run())
        await self._link.wait_up(5.0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running
        await self.runtime.stop()
        self._directory.cleanup()


async def _nothing() -> None:
    """There is no edge that has to compare."""
