"""Which stores have a layer, what is claimed, when it was used: over restarts."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsec.images.catalogue import Catalogue
from dsec.images.copies import Copies

A, B = "a" * 64, "b" * 64


@pytest.fixture
def copies(tmp_path: Path) -> Copies:
    """A catalogue that knows layer A."""
    Catalogue(tmp_path / "catalogue.db").put_layer(A, 1)
    return Copies(tmp_path / "catalogue.db")


def test_claims_outlive_what_is_known_of_the_layer(copies: Copies, tmp_path: Path) -> None:
    """Forgetting a layer forgets its copies and not its claims; claims of layers that nobody knows are stale."""
    copies.note(A, "one")
    copies.intend_claim(A, "two")
    copies.intend_claim(B, "two")
    assert copies.stores(A) == ["one", "two"]
    assert copies.all() == {A: ["one", "two"], B: ["two"]}
    copies.forget(A)
    copies.lost(A, "two")
    again = Copies(tmp_path / "catalogue.db")
    assert (again.stores(A), again.claims(A), again.stale()) == (["two"], ["two"], [B])
    again.unclaimed(B, "two")
    again.lost(B, "two")
    assert (again.stale(), again.stores(B)) == ([], [])


def test_a_copy_that_is_noted_again_keeps_its_claim(copies: Copies) -> None:
    """A push or pull beside it takes no claim away."""
    copies.intend_claim(A, "one")
    copies.note(A, "one")
    assert copies.claims(A) == ["one"]


def test_uses_never_go_back(copies: Copies) -> None:
    """A clock that jumps back makes no layer older than it was."""
    copies.note_uses({A: 5.0, B: 1.0})
    copies.note_uses({A: 3.0, B: 2.0})
    assert copies.uses() == {A: 5.0, B: 2.0}
    copies.forget(B)
    assert copies.uses() == {A: 5.0}
