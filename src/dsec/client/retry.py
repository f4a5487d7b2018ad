"""When to ask again: pure decisions about time."""

from __future__ import annotations

import random
from collections.abc import Callable

from dsec.errors import CapacityError, DSecError

__all__ = ["delay_before", "may_retry"]

_FIRST_S = 0.05
_LONGEST_S = 5.0


def delay_before(
    attempt: int, error: DSecError, left_s: float, draw: Callable[[], float] = random.random
) -> float | None:
    """Seconds to wait before attempt number ``attempt`` (1: the first retry); None when no time is left for it.

    Honours ``retry_after_s``; else doubles from 50 ms up to 5 s. Jitter: between half of that and all of it, or,
    where the server said when, up to a quarter more.
    """
    if error.retry_after_s is not None:
        wait = error.retry_after_s * (1 + draw() / 4)
    else:
        wait = min(_LONGEST_S, _FIRST_S * 2.0 ** min(attempt - 1, 10)) * (0.5 + draw() / 2)
    return wait if wait < left_s else None


def may_retry(error: DSecError, *, on_full: str) -> bool:
    """Whether the same create may succeed when asked again."""
    if isinstance(error, CapacityError):
        return on_full == "wait"
    return error.retryable
