"""The session's messages are those that the runtime's tests have written down."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from dsec.backends.wire import RunEnd

GOLDEN = Path(__file__).parents[2] / "golden" / "sessions.json"


def test_a_run_end_has_every_field() -> None:
    """The runtime's end, field by field, and nothing that it does not say."""
    vectors = {each["name"]: bytes.fromhex(each["msgpack"]) for each in json.loads(GOLDEN.read_text())}
    raw = msgspec.msgpack.decode(vectors["end"])
    end = msgspec.convert(raw, RunEnd)
    assert msgspec.to_builtins(end) == raw
    assert msgspec.msgpack.decode(vectors["session.runs"]) == {"runs": [raw]}
