"""Two ways to wait: for what must be done although we are cancelled, and between attempts at a silent node."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from dsec.client.retry import delay_before
from dsec.errors import DSecError, NodeError

__all__ = ["Patience", "shielded"]

_REFUSED_S = 3.0
"""A refused connection means that nobody holds the listening socket: the node is down, not restarting."""


async def shielded(work: Coroutine[Any, Any, object], limit_s: float) -> bool:
    """Run ``work`` to its end even if we are cancelled meanwhile, for at most ``limit_s``; True if it succeeded.

    Errors of ``work`` are its own affair: it is the last thing done for a call that ends with another error.
    """
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    end = loop.time() + limit_s
    while not task.done() and loop.time() < end:
        try:
            await asyncio.wait({task}, timeout=end - loop.time())
        except asyncio.CancelledError:
            continue
    if not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=0.5)
    return task.done() and not task.cancelled() and task.exception() is None


_SILENT = ("connect", "stream", "edge", "runtime")
"""Phases of errors that mean: somebody on the way does not answer, and may when it has restarted."""
_TOLD_S = 5.0
"""Any other NodeError is the node's own word that it cannot; a few more attempts are enough."""


class Patience:
    """How long to go on asking a node that does not answer."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._since: float | None = None
        self._attempts = 0

    def answered(self) -> None:
        """It answered: the next failure starts anew."""
        self._since = None
        self._attempts = 0

    async def before_retry(self, error: DSecError) -> None:
        """Wait a while, or raise ``error`` when it has lasted too long (or can never get better)."""
        now = asyncio.get_running_loop().time()
        if self._since is None:
            self._since = now
        self._attempts += 1
        limit = self._limit_s
        if error.details.get("refused"):
            limit = min(limit, _REFUSED_S)
        elif error.phase not in _SILENT:
            limit = min(limit, _TOLD_S)
        wait = delay_before(self._attempts, error, self._since + limit - now)
        if wait is None or not (isinstance(error, NodeError) and error.retryable):
            raise error
        await asyncio.sleep(wait)
