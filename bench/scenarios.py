"""What is timed, on any target. All times are the client's own, in seconds."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from bench.targets import Target

__all__ = [
    "burst",
    "first_exec_parallel",
    "first_exec_serial",
    "staggered",
    "sustained",
    "together",
    "warm_exec",
    "warm_exec_while_creating",
]

H = TypeVar("H")
T = TypeVar("T")
_MOST_BEHIND = 50


async def together(*work: Coroutine[Any, Any, T]) -> list[T]:
    """Run all at once; when one fails the others are cancelled and waited for, and its error is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in work]
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


async def _first_exec(target: Target[H]) -> tuple[float, H]:
    """Create a sandbox and run ``true``: the time until its result, and the sandbox."""
    started = time.perf_counter()
    handle = await target.create()
    await target.true(handle)
    return time.perf_counter() - started, handle


async def first_exec_serial(target: Target[H], count: int) -> list[float]:
    """One after the other; each is stopped, untimed, before the next."""
    taken = []
    for _ in range(count):
        seconds, handle = await _first_exec(target)
        await target.stop(handle)
        taken.append(seconds)
    return taken


async def first_exec_parallel(target: Target[H], count: int, parallel: int) -> list[float]:
    """``parallel`` workers, each of which creates, runs, and stops before its next."""
    taken: list[float] = []
    left = iter(range(count))

    async def work() -> None:
        for _ in left:
            seconds, handle = await _first_exec(target)
            taken.append(seconds)
            await target.stop(handle)

    await together(*(work() for _ in range(parallel)))
    return taken


async def burst(target: Target[H], count: int) -> tuple[float, list[float]]:
    """All at once: the time until the last has its result, and that of each."""
    started = time.perf_counter()
    made = await together(*(_first_exec(target) for _ in range(count)))
    wall = time.perf_counter() - started
    await together(*(target.stop(handle) for _, handle in made))
    return wall, [seconds for seconds, _ in made]


async def staggered(target: Target[H], count: int, gap_s: float) -> list[float]:
    """One starts every ``gap_s``, whatever became of those before; all live until the end."""

    async def one(index: int) -> tuple[float, H]:
        await asyncio.sleep(index * gap_s)
        return await _first_exec(target)

    made = await together(*(one(index) for index in range(count)))
    await together(*(target.stop(handle) for _, handle in made))
    return [seconds for seconds, _ in made]


async def sustained(target: Target[H], seconds: float, parallel: int) -> tuple[float, list[float]]:
    """Create, run ``true``, stop, over and over by ``parallel`` workers: rounds a second, and each one's time."""
    taken: list[float] = []
    started = time.perf_counter()

    async def work() -> None:
        while time.perf_counter() - started < seconds:
            begun = time.perf_counter()
            _, handle = await _first_exec(target)
            await target.stop(handle)
            taken.append(time.perf_counter() - begun)

    await together(*(work() for _ in range(parallel)))
    return len(taken) / (time.perf_counter() - started), taken


async def warm_exec(target: Target[H], count: int) -> list[float]:
    """``true`` over and over in one sandbox; the first is not counted."""
    handle = await target.create()
    try:
        await target.true(handle)
        taken = []
        for _ in range(count):
            begun = time.perf_counter()
            await target.true(handle)
            taken.append(time.perf_counter() - begun)
        return taken
    finally:
        await target.stop(handle)


async def warm_exec_while_creating(target: Target[H], count: int, a_second: float) -> tuple[float, list[float]]:
    """As ``warm_exec`` with ``a_second`` sandboxes created and stopped beside it: the rate reached, and the times."""
    async with _creating(target, a_second) as made:
        begun, before = time.perf_counter(), len(made)
        taken = await warm_exec(target, count)
        rate = (len(made) - before) / (time.perf_counter() - begun)
    return rate, taken


@contextlib.asynccontextmanager
async def _creating(target: Target[H], a_second: float) -> AsyncIterator[list[None]]:
    """Creates begin at a fixed rate, whether or not those before are done; the list grows with each that is.

    A platform that cannot keep up gets no more than ``_MOST_BEHIND`` at once: it is measured, not buried.
    """
    made: list[None] = []
    running: set[asyncio.Task[None]] = set()
    halt = asyncio.Event()

    async def one() -> None:
        handle = await target.create()
        made.append(None)
        await target.stop(handle)

    async def pace() -> None:
        started, begun = time.perf_counter(), 0
        while not halt.is_set():
            if (time.perf_counter() - started) * a_second >= begun and len(running) < _MOST_BEHIND:
                task = asyncio.get_running_loop().create_task(one())
                running.add(task)
                task.add_done_callback(running.discard)
                begun += 1
            else:
                await asyncio.sleep(0.5 / a_second)

    async with asyncio.TaskGroup() as group:
        group.create_task(pace())
        try:
            yield made
        finally:
            halt.set()
    await asyncio.gather(*running)
