"""Tasks by key: one for each, however many wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

__all__ = ["Running"]

T = TypeVar("T")


class Running(Generic[T]):
    """Owns the tasks. Whoever waits shields them: a caller that goes away leaves its task for who asks next."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._tasks: dict[str, asyncio.Task[T]] = {}

    def get(self, key: str) -> asyncio.Task[T] | None:
        """The task of that key, while it runs."""
        return self._tasks.get(key)

    def start(self, key: str, work: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """The task of that key, begun now if there is none."""
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.create_task(work(), name=f"{self._what} {key}")
            task.add_done_callback(lambda done: self._ended(key, done))
        return task

    def _ended(self, key: str, task: asyncio.Task[T]) -> None:
        del self._tasks[key]
        if not task.cancelled():
            task.exception()  # seen here, since nobody may be waiting any more

    async def aclose(self) -> None:
        """Cancel all and wait until their traces are gone."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
