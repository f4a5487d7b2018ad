"""What an upload keeps to be sent again: exactly what was not confirmed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.api import frames
from dsec.client.bulk import WINDOW, _data_frame, _Sending
from dsec.errors import ProtocolError


@given(
    pieces=st.lists(st.binary(min_size=1, max_size=50), max_size=20),
    breaks=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 100)), max_size=8),
)
def test_every_byte_arrives_once_and_in_order(pieces: list[bytes], breaks: list[tuple[int, int]]) -> None:
    """The connection breaks anywhere, the other side has taken any part of what was sent: the rest follows."""
    sending = _Sending(iter(pieces), lambda _: None)
    taken = bytearray()
    sending.rewind(0)
    for sent, percent in breaks:
        on_the_way = bytearray()
        for _ in range(sent):
            piece = sending.next()
            on_the_way += piece
            sending.sent += len(piece)
        taken += on_the_way[: len(on_the_way) * percent // 100]
        sending.rewind(len(taken))
    while piece := sending.next():
        taken += piece
        sending.sent += len(piece)
    assert bytes(taken) == b"".join(pieces)


def test_what_was_confirmed_is_let_go() -> None:
    """Beyond one window nothing is kept, and an offset that is not kept any more is refused."""
    sending = _Sending(iter([b"x" * 1000] * 20_000), lambda _: None)
    sending.rewind(0)
    while sending.sent < WINDOW:
        sending.sent += len(sending.next())
    sending.granted(2 * WINDOW)
    assert sending.confirmed == WINDOW and sum(len(piece) for _, piece in sending._kept) <= 1000
    with pytest.raises(ProtocolError):
        sending.rewind(1000)


@given(offset=st.integers(0, 2**63), data=st.binary(max_size=70_000))
def test_a_data_frame_is_read_without_a_copy(offset: int, data: bytes) -> None:
    """As the general decoder reads it, whatever widths its numbers have."""
    frame = frames.data_frame(1, 1, offset, data)
    found = _data_frame(memoryview(frame))
    assert found is not None or len(frame) < 9 or not data
    assert found is None or (found[:4] == frames.decode(frame)[:4] and bytes(found[4]) == data)
    assert _data_frame(memoryview(frames.end_frame(1, {"bytes": 1}))) is None
