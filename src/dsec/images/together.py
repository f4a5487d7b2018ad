"""Several things at once, with one error to tell."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

__all__ = ["first_error", "together"]

T = TypeVar("T")


async def together(works: Iterable[Callable[[], Awaitable[T]]], *, at_once: int) -> list[T]:
    """Do all, so many at a time; their results in order. The first error ends the others, and is raised."""
    slots = asyncio.Semaphore(at_once)

    async def one(work: Callable[[], Awaitable[T]]) -> T:
        async with slots:
            return await work()

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(each)) for each in works]
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None
    return [task.result() for task in tasks]


def first_error(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one error to tell the caller: the first that is no group and no cancellation."""
    flat: list[BaseException] = []
    todo: list[BaseException] = [errors]
    while todo:
        each = todo.pop(0)
        if isinstance(each, BaseExceptionGroup):
            todo += each.exceptions
        else:
            flat.append(each)
    return next((each for each in flat if not isinstance(each, asyncio.CancelledError)), flat[0])
