"""Bytes that cannot be decoded are one thing, however they are wrong."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dsec.decoding import MALFORMED

SOURCE = Path(__file__).parents[2] / "src" / "dsec"


@pytest.mark.parametrize("document", [b"[" * 100_000, b"{", b"", b'"\xff"'], ids=["deep", "half", "none", "text"])
def test_malformed_json(document: bytes) -> None:
    """No document, half a one, and one that nests without end, which msgspec says by another error."""
    with pytest.raises(MALFORMED):
        msgspec.json.decode(document)


@pytest.mark.parametrize("packet", [b"\x91" * 100_000, b"\x91", b"", b"\xc1"], ids=["deep", "half", "none", "kind"])
def test_malformed_messages(packet: bytes) -> None:
    """The same of messages."""
    with pytest.raises(MALFORMED):
        msgspec.msgpack.decode(packet)


def test_it_is_named_in_one_place() -> None:
    """Who decodes what is not its own catches both: nobody lists them again, and forgets one."""
    named = [path.name for path in SOURCE.rglob("*.py") if "RecursionError" in path.read_text()]
    assert named == ["decoding.py"]
