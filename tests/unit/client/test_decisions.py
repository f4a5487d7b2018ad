"""Pure parts of the SDK: delays, pieces of output, addresses."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.client.discovery import Address, find_address
from dsec.client.results import Kept
from dsec.client.retry import delay_before, may_retry
from dsec.client.streams import Pieces
from dsec.errors import CapacityError, Conflict, Denied, InvalidArgument, NodeError


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True), st.floats(0, 1e6))
def test_delays_grow_are_jittered_and_stay_within_the_time_left(attempt: int, draw: float, left: float) -> None:
    """Without the server's word the delay is 25 ms to 5 s, and None exactly when it does not fit."""
    delay = delay_before(attempt, NodeError("x"), left, lambda: draw)
    whole = delay_before(attempt, NodeError("x"), 1e9, lambda: draw)
    assert whole is not None and 0.025 <= whole <= 5
    assert delay == (whole if whole < left else None)


@given(st.floats(0, 100), st.floats(0, 1, exclude_max=True))
def test_the_servers_word_is_honoured(after: float, draw: float) -> None:
    """The client never comes back earlier than retry_after_s, nor more than a quarter later."""
    delay = delay_before(1, CapacityError("x", retry_after_s=after), 1e9, lambda: draw)
    assert delay is not None and after <= delay <= after * 1.25


def test_what_is_retried() -> None:
    """Capacity only when the caller waits; a node's failure always; the caller's own mistakes never."""
    assert may_retry(CapacityError("x"), on_full="wait") and not may_retry(CapacityError("x"), on_full="raise")
    assert may_retry(NodeError("x"), on_full="raise") and not may_retry(Conflict("x"), on_full="wait")


@given(st.binary(max_size=200), st.lists(st.integers(1, 50), max_size=20), st.integers(0, 100), st.integers(0, 100))
def test_pieces_are_put_together(data: bytes, sizes: list[int], head: int, tail: int) -> None:
    """Frames of any size give back the bytes; head and tail give two pieces and the right count of missing bytes."""
    pieces, at = Pieces(), 0
    for size in [*sizes, len(data)]:
        if data[at : at + size]:
            pieces.add(at, data[at : at + size])
        at += size
    kept = pieces.kept(len(data))
    assert kept.kept_bytes == data and not kept.truncated
    cut = Pieces()
    head, tail = min(head, len(data)), min(tail, len(data))
    if head:
        cut.add(0, data[:head])
    if tail > 0 and len(data) - tail >= head:
        cut.add(len(data) - tail, data[len(data) - tail :])
        missing = len(data) - head - tail
        assert cut.kept(len(data)).truncated == (missing > 0)
        assert (f"[… {missing} bytes cut here …]" in cut.kept(len(data)).text()) == (missing > 0)


def test_the_text_says_what_is_missing_at_either_end() -> None:
    """Of an output of which only the tail was kept, the text begins with what was cut."""
    assert Kept(((90, b"end"),), 93).text() == "\n[… 90 bytes cut here …]\nend"
    assert Kept((), 5).text() == "\n[… 5 bytes cut here …]\n" and Kept((), 0).text() == ""


def test_addresses(tmp_path: Path) -> None:
    """Arguments win over the environment, that over node.json; a token of one node is not sent to another URL."""
    node = tmp_path / "run/dsec/local/node.json"
    node.parent.mkdir(parents=True)
    (tmp_path / "token").write_text("secret\n")
    node.write_text(f'{{"url": "http://127.0.0.1:7373", "token_path": "{tmp_path / "token"}", "node": "local"}}')
    here = {"DSEC_ROOT": str(tmp_path)}
    assert find_address(None, None, here) == Address("http://127.0.0.1:7373", "secret")
    assert find_address("http://127.0.0.1:7373/", None, here).token == "secret"
    environment = here | {"DSEC_URL": "https://far:1", "DSEC_TOKEN": "t"}
    assert find_address(None, None, environment) == Address("https://far:1", "t")
    assert find_address("http://arg:1", "a", environment) == Address("http://arg:1", "a")
    with pytest.raises(Denied):
        find_address("https://far:1", None, here)
    with pytest.raises(InvalidArgument):
        find_address("far:1", "t", {})
    assert "secret" not in repr(find_address(None, None, here))
    node.write_text("{")
    with pytest.raises(NodeError, match="damaged"):
        find_address(None, None, here)
