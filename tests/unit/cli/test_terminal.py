"""Keys that detach, in Docker's notation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.cli.terminal import Keys, detach_keys
from dsec.errors import InvalidArgument


def test_dockers_notation() -> None:
    """Control keys, their punctuation, and single characters."""
    assert detach_keys("ctrl-p,ctrl-q") == b"\x10\x11"
    assert detach_keys("ctrl-@,ctrl-[,ctrl-\\,ctrl-],ctrl-^,ctrl-_") == b"\x00\x1b\x1c\x1d\x1e\x1f"
    assert detach_keys("a,CTRL-A,~") == b"a\x01~"


@pytest.mark.parametrize("text", ["", "ctrl-", "ctrl-1", "ctrl-pq", "pq", "a,,b", "ü"])
def test_what_is_no_key(text: str) -> None:
    """Refused, not ignored."""
    with pytest.raises(InvalidArgument):
        detach_keys(text)


@pytest.mark.parametrize("cuts", [[], [1], [2], [1, 2], [3]])
def test_found_however_it_is_cut(cuts: list[int]) -> None:
    """The sequence may come in pieces; what was typed before it is the program's, what follows nobody's."""
    typed, keys, passed, found = b"ab\x10\x11rest", Keys(b"\x10\x11"), b"", False
    for start, end in zip([0, *cuts], [*cuts, len(typed)], strict=True):
        if not found:
            piece, found = keys.take(typed[start:end])
            passed += piece
    assert found and passed == b"ab"


def test_a_beginning_that_goes_on_otherwise() -> None:
    """It is held back until it is certain, then passed; a second beginning is one."""
    keys = Keys(b"\x10\x11")
    assert keys.take(b"\x10") == (b"", False)
    assert keys.take(b"x") == (b"\x10x", False)
    assert keys.take(b"\x10\x10\x11") == (b"\x10", True)


@given(st.binary(max_size=30), st.binary(min_size=1, max_size=3))
def test_nothing_is_lost_or_made_up(typed: bytes, sequence: bytes) -> None:
    """What comes out is what was typed before the first occurrence, but for a beginning that is still held back."""
    keys = Keys(sequence)
    passed, found = b"", False
    for byte in typed:
        if not found:
            piece, found = keys.take(bytes([byte]))
            passed += piece
    if found:
        assert passed == typed[: typed.index(sequence)]
    else:
        assert sequence not in typed
        held = typed[len(passed) :]
        assert typed.startswith(passed) and sequence.startswith(held)
