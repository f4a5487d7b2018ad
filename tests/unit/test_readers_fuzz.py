"""Readers of hostile archives, documents and layers under mutations of good ones; ``make fuzz`` goes on for longer.

Bounded and the same each time: what must hold is said in ``tests/fuzz/readers.py``.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from tests.fuzz.readers import CORPUS, TARGETS

from dsec.apiserver.own import _token_request
from dsec.errors import ImageCorrupt, InvalidArgument
from dsec.stores.layout import decode_tag

pytestmark = pytest.mark.timeout(0)

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "200"))
WORDS = [
    b"\0" * 8, b"\xff" * 8, b"\r\n", b"[" * 2000, b'{"a":' * 500, b"@NEXT", b"sha256:", b"..", b"/", b"../",
    b"18446744073709551616", b"-1", b"99999999999", b"\x80" + b"\xff" * 11, b"30 mtime=1e999\n",
    b"GNU.sparse.major=1\n",
    b"\x1f\x8b\x08\x00", b"\x28\xb5\x2f\xfd", b"\xe2\xe1\xf5\xe0",
]  # fmt: skip


@st.composite
def mutations(draw: Any, seeds: list[bytes]) -> bytes:
    """A seed with some of it changed, taken out, doubled, or replaced by what means something to a reader."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(0, len(data)))
        how = draw(st.integers(0, 5))
        if how == 0:
            data[at : at + 1] = bytes([draw(st.integers(0, 255))])
        elif how == 1:
            del data[at : at + draw(st.integers(1, 600))]
        elif how == 2:
            data[at:at] = data[at : at + draw(st.integers(1, 600))]
        elif how == 3:
            other = draw(st.sampled_from(seeds))
            data[at:] = other[at:]
        else:
            word = draw(st.sampled_from(WORDS))
            data[at : at + (len(word) if how == 4 else 0)] = word
    return bytes(data)


def seeds_of(name: str) -> list[bytes]:
    """What the corpus of a target holds."""
    found = [each.read_bytes() for each in sorted((CORPUS / name).iterdir())]
    assert found, name
    return found


@pytest.mark.parametrize("name", TARGETS)
def test_hostile_bytes(name: str) -> None:
    """Every seed, nothing at all, and mutations: refused in dsec's words, or read as it would be read again."""
    target, seeds = TARGETS[name], seeds_of(name)
    for seed in [*seeds, b""]:
        target(seed)

    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, derandomize="FUZZ_EXAMPLES" not in os.environ,
        suppress_health_check=list(HealthCheck), phases=(Phase.explicit, Phase.generate),
    )  # fmt: skip
    @given(mutations(seeds))
    @example(b"[" * 100_000)
    @example(b'{"a":' * 100_000)
    def mutated(data: bytes) -> None:
        target(data)

    mutated()


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_are_good(name: str) -> None:
    """Some seed of a target is taken: else mutations would only ever look at its first check."""
    assert any(TARGETS[name](seed) for seed in seeds_of(name))


def test_documents_nested_without_end() -> None:
    """JSON deeper than anybody reads is refused as other nonsense is, also where a token is asked for."""
    deep = b'{"x":' * 100_000
    with pytest.raises(ImageCorrupt):
        decode_tag(deep, "tags/workspace/a/1")
    with pytest.raises(InvalidArgument):
        _token_request(b'{"name":' + b"[" * 100_000)
