"""What a program that makes a layer answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from dsec.decoding import MALFORMED
from dsec.errors import DeadlineExceeded, NodeError
from dsec.images.tools import ToolResult

__all__ = ["answered"]

A = TypeVar("A")


async def answered(
    running: Awaitable[ToolResult], decode: Callable[[bytes], A], doing: str, *, timeout_s: float, phase: str
) -> A:
    """Its answer; raises DeadlineExceeded (it ran for ``timeout_s``), NodeError (it ended without one)."""
    try:
        result = await running
    except TimeoutError:
        raise DeadlineExceeded(f"{doing} did not end within {timeout_s:g} s", phase=phase) from None
    try:
        return decode(result.stdout)
    except MALFORMED:
        raise NodeError(
            f"{doing} ended with status {result.exit_code}: {result.stderr.strip()[-500:]}", phase=phase
        ) from None
