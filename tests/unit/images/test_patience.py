"""When a pull is tried again: as the registry asks, a few times, and within the time that somebody has."""

from __future__ import annotations

import math

import pytest

from dsec.errors import ImageCorrupt, RegistryRateLimited, RegistryUnreachable
from dsec.images.patience import TRIES, delay_s, retry_after_s

DATE = "Mon, 30 Nov 2026 11:00:00 GMT"
NOW = 1796036400.0


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Retry-After": "17"}, 17.0),
        ({"Retry-After": " 0 "}, 0.0),
        ({"Retry-After": "9" * 400}, math.inf),
        ({"Retry-After": "Mon, 30 Nov 2026 11:00:30 GMT", "Date": DATE}, 30.0),
        ({"Retry-After": "Mon, 30 Nov 2026 11:00:30 -0000", "Date": DATE}, 30.0),
        ({"Retry-After": "Mon, 30 Nov 2026 10:59:00 GMT", "Date": DATE}, 0.0),
        ({"Retry-After": "Mon, 30 Nov 2026 11:00:30 GMT"}, 30.0),
        ({"Retry-After": "Mon, 30 Nov 2026 11:00:30 GMT", "Date": "yesterday"}, 30.0),
        ({"Retry-After": "Mon, 99 Foo 99999 25:00:30 GMT"}, None),
        ({"Retry-After": "-3"}, None),
        ({"Retry-After": "soon"}, None),
        ({}, None),
    ],
)
def test_what_a_registry_asks_for(headers: dict[str, str], expected: float | None) -> None:
    """Seconds or a date, the date by the registry's own clock; what is neither says nothing."""
    assert retry_after_s(headers, NOW) == expected


def test_a_clock_that_is_wrong_changes_nothing() -> None:
    """A node whose clock is a year ahead or behind waits as long as the registry means."""
    headers = {"Retry-After": "Mon, 30 Nov 2026 11:00:30 GMT", "Date": DATE}
    assert {retry_after_s(headers, NOW + jump) for jump in (-3e7, 0.0, 3e7)} == {30.0}


def test_as_the_registry_asks_and_no_longer_than_somebody_waits() -> None:
    """The delay is the registry's where that is longer; what outlasts patience or deadline is told at once."""
    limited = RegistryRateLimited("x", retry_after_s=17.0)
    assert delay_s(limited, failed=1, left_s=60.0) == 17.0
    assert delay_s(limited, failed=1, left_s=16.9) is None
    assert delay_s(RegistryRateLimited("x", retry_after_s=math.inf), failed=1, left_s=3600.0) is None


def test_a_few_times_each_later() -> None:
    """Short delays grow; after the last try the error is told."""
    broken = RegistryUnreachable("x", retry_after_s=0.0)
    delays = [delay_s(broken, failed=each, left_s=60.0) for each in range(1, TRIES + 1)]
    assert delays == [0.5, 1.0, 2.0, 4.0, None]


def test_what_does_not_pass_is_told_at_once() -> None:
    """Wrong bytes, and a registry that was never there."""
    for error in (ImageCorrupt("x"), RegistryUnreachable("x")):
        assert delay_s(error, failed=1, left_s=60.0) is None
