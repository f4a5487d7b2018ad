"""Several things at once, with one error to tell."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from dsec.images.together import first_error, together

pytestmark = pytest.mark.anyio


async def test_results_come_in_order_and_few_at_a_time() -> None:
    """However they end, and never more than allowed."""
    running = most = 0
    turns = [asyncio.Event() for _ in range(6)]

    async def work(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if number:
            turns[number - 1].set()
        if number % 2 == 0:
            await turns[number].wait()
        running -= 1
        return number

    works: list[Callable[[], Awaitable[int]]] = [partial(work, number) for number in range(6)]
    async with asyncio.timeout(30):
        assert await together(works, at_once=2) == list(range(6))
    assert most == 2


async def test_the_first_error_ends_the_others() -> None:
    """What was running is cancelled, what waited never begins, and the error is no group."""
    began: list[str] = []
    ended: list[str] = []

    async def fails() -> None:
        began.append("fails")
        raise ValueError("it")

    async def waits() -> None:
        began.append("waits")
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("waits")

    with pytest.raises(ValueError, match="it"):
        await together([waits, fails, waits, waits], at_once=2)
    assert ended == ["waits"] * began.count("waits")
    assert began.count("waits") < 3


def test_cancellations_are_not_what_is_told() -> None:
    """Unless there is nothing else."""
    inner = BaseExceptionGroup("in", [asyncio.CancelledError(), KeyError("k")])
    assert isinstance(first_error(BaseExceptionGroup("out", [asyncio.CancelledError(), inner])), KeyError)
    assert isinstance(first_error(BaseExceptionGroup("out", [asyncio.CancelledError()])), asyncio.CancelledError)
