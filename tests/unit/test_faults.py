"""Fault points: SPECIFICATION.md says how many are walked, and the list that it counts is the source itself."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from dsec.testing.faults import fault_names

CHECKOUT = Path(__file__).parents[2]


def test_the_specification_counts_them() -> None:
    """A point more or less changes the promise too."""
    of = Counter(name.split(".")[0] for name in fault_names(CHECKOUT))
    promises = (CHECKOUT / "SPECIFICATION.md").read_text()
    assert f"At each of the {of['runtime'] + of['edge']} steps that runtime and edge name" in promises
    assert f"The proxy dies at each of its {of['proxy']} own steps" in promises
    assert f"The keeper dies at each of its {of['keeper']} own steps" in promises
