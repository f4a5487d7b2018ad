"""When a pull that failed is tried again, and after how long; without I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime

from dsec.errors import DSecError

__all__ = ["TRIES", "delay_s", "retry_after_s"]

TRIES = 5
"""How often at most a pull is begun."""
_FIRST_S = 0.5
_LONGEST_S = 8.0


def delay_s(error: DSecError, *, failed: int, left_s: float) -> float | None:
    """Seconds to wait before the next try; None when the error is to be told now.

    Only what passes is tried again: errors that say when (``retry_after_s``). ``failed`` tries were made, the last
    one included; ``left_s`` is how long somebody would wait still. What would outlast that is told at once.
    """
    if error.retry_after_s is None or failed >= TRIES:
        return None
    wait = max(error.retry_after_s, min(_FIRST_S * 2.0 ** (failed - 1), _LONGEST_S))
    return wait if wait <= left_s else None


def retry_after_s(headers: Mapping[str, str], now: float) -> float | None:
    """What ``Retry-After`` asks for, in seconds from now on: a number or a date; None where it says nothing.

    A date is held against the answer's own ``Date``, so that a wrong clock here or there changes nothing; without one
    against ``now``, seconds since 1970.
    """
    told = headers.get("Retry-After", "").strip()
    if told.isascii() and told.isdigit():
        return float(told) if len(told) < 10 else math.inf
    until = _seconds(told)
    if until is None:
        return None
    since = _seconds(headers.get("Date", ""))
    return max(0.0, until - (now if since is None else since))


def _seconds(date: str) -> float | None:
    try:
        found = parsedate_to_datetime(date)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    # A date without a zone, "-0000", is UTC by the rules of HTTP.
    return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()
