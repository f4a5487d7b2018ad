"""One at a time for each layer, and those who must not wait see who would be before them."""

from __future__ import annotations

import asyncio

import pytest

from dsec.edge.turns import Turns

pytestmark = pytest.mark.anyio


async def test_whoever_sees_a_free_turn_has_it_at_once() -> None:
    """Also between one's end and the next one's beginning the turn is taken: its waiter comes first."""
    turns, order = Turns(), list[str]()

    async def waiting() -> None:
        async with turns.of("x"):
            order.append("waiter")

    async with turns.of("x"):
        waiter = asyncio.create_task(waiting())
        await asyncio.sleep(0)
        assert turns.taken("x") and not turns.taken("y")
    assert order == []
    assert turns.taken("x")
    await waiter
    assert not turns.taken("x")


async def test_a_waiter_that_is_cancelled_leaves_nothing() -> None:
    """Neither a turn that is never given back nor an entry."""
    turns = Turns()

    async def waiting() -> None:
        async with turns.of("x"):
            raise AssertionError("it was not free")

    with pytest.raises(RuntimeError):
        async with turns.of("x"):
            waiter = asyncio.create_task(waiting())
            await asyncio.sleep(0)
            waiter.cancel()
            await asyncio.gather(waiter, return_exceptions=True)
            assert turns.taken("x")
            raise RuntimeError("also a failure")
    assert not turns.taken("x")
    assert (turns._locks, turns._wanted) == ({}, {})
