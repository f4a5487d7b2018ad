"""Which layers go, and when: the marks and the order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dsec.edge.eviction import Cached, in_order, marks_of

GIB = 1 << 30
CACHED = st.builds(Cached, digest=st.text("abcdef", min_size=4), bytes=st.integers(0, GIB), used_at=st.floats(0, 1e9))


def test_marks_follow_the_disk() -> None:
    """Nine and eight tenths of what layers have and could have; a setting stands, within what stays free."""
    marks = marks_of(cache_mib=None, cached_bytes=40 * GIB, free_bytes=60 * GIB)
    assert (round(marks.high / GIB), round(marks.low / GIB)) == (90, 80)
    marks = marks_of(cache_mib=9 * 1024, cached_bytes=40 * GIB, free_bytes=60 * GIB)
    assert (marks.high, round(marks.low / GIB)) == (9 * GIB, 8)
    full = marks_of(cache_mib=1 << 30, cached_bytes=40 * GIB, free_bytes=0)
    assert full.high == 38 * GIB
    assert marks_of(cache_mib=0, cached_bytes=GIB, free_bytes=GIB).high == 0


@given(cache=st.none() | st.integers(0, 1 << 24), cached=st.integers(0, 1 << 50), free=st.integers(0, 1 << 50))
def test_marks_always_leave_something_free(cache: int | None, cached: int, free: int) -> None:
    """Whatever is set, at the high mark a twentieth of the disk (or 2 GiB) is free; low is never above high."""
    marks = marks_of(cache_mib=cache, cached_bytes=cached, free_bytes=free)
    assert 0 <= marks.low <= marks.high <= cached + free
    assert cached + free - marks.high >= min(2 * GIB, (cached + free) // 20)


def test_the_longest_unused_go_first() -> None:
    """All that could go, in the order of their last uses; what has no bytes here never."""
    layers = [
        Cached(digest=name, bytes=size, used_at=at)
        for name, size, at in (("new", 10, 9.0), ("old", 10, 1.0), ("never", 10, 0.0), ("empty", 0, 0.0))
    ]
    assert in_order(layers) == ["never", "old", "new"]


@given(layers=st.lists(CACHED, unique_by=lambda one: one.digest))
def test_nobody_is_passed_over(layers: list[Cached]) -> None:
    """Every layer that has bytes here has its place, whatever order they are given in."""
    order = in_order(layers)
    assert set(order) == {each.digest for each in layers if each.bytes}
    assert in_order(reversed(layers)) == order
