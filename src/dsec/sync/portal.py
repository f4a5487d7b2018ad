"""The background thread and its event loop, one for each process."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import TypeVar

__all__ = ["apart", "iterate", "run"]

T = TypeVar("T")
_UNWIND_S = 10.0
"""How long an interrupted call may take to kill and confirm what it had begun."""


class _Portal:
    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._over: asyncio.Event | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="dsec-sync", daemon=True)
        self._thread.start()
        self._ready.wait()

    async def _main(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._ready.set()
        await self._over.wait()

    def stop(self) -> None:
        """End the loop, and with it the connections that belong to it."""
        if self.pid == os.getpid() and self.loop is not None and self._over is not None:
            self.loop.call_soon_threadsafe(self._over.set)
            self._thread.join(2.0)


_starting = threading.Lock()
_portal: _Portal | None = None


def _loop() -> asyncio.AbstractEventLoop:
    global _portal
    portal = _portal
    if portal is None or portal.pid != os.getpid():
        with _starting:
            portal = _portal
            if portal is None or portal.pid != os.getpid():
                portal = _portal = _Portal()
    assert portal.loop is not None
    return portal.loop


def _after_fork() -> None:
    global _starting
    _starting = threading.Lock()


def _at_exit() -> None:
    if _portal is not None:
        _portal.stop()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def run(work: Awaitable[T]) -> T:
    """Run ``work`` in the background loop and wait for it.

    Ctrl-C cancels it there, which ends what it had begun, and waits for that; a second Ctrl-C does not wait.
    """
    over = threading.Event()

    async def awaited() -> T:
        try:
            return await work
        finally:
            over.set()

    future = asyncio.run_coroutine_threadsafe(awaited(), _loop())
    try:
        return future.result()
    except BaseException:
        if not future.done():
            future.cancel()
            over.wait(_UNWIND_S)
        raise


async def apart(work: Awaitable[T]) -> T:
    """Run ``work`` in the background loop, from a coroutine of another: for what outlives the loop of its caller.

    Cancelling this cancels it there.
    """

    async def awaited() -> T:
        return await work

    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(awaited(), _loop()))


def iterate(items: AsyncIterator[T]) -> Iterator[T]:
    """The items one by one; leaving the loop early closes the source."""
    try:
        while True:
            item = run(_next(items))
            if item is _END:
                return
            yield item  # type: ignore[misc]
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            run(close())


_END = object()


async def _next(items: AsyncIterator[T]) -> T | object:
    return await anext(items, _END)
