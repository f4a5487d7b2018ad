"""Finding the Rust programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsec.errors import Unsupported
from dsec.node.binaries import find_binaries

NAMES = ("dsec-keeper", "dsec-runtime", "dsec-init", "dsec-proxy", "dsec-holder", "dsec-fetcher")


def test_first_complete_place_wins(tmp_path: Path) -> None:
    """A place that lacks one program is passed over whole: builds are never mixed."""
    partial, whole = tmp_path / "partial", tmp_path / "whole"
    for place, names in ((partial, NAMES[:2]), (whole, NAMES)):
        place.mkdir()
        for name in names:
            (place / name).touch()
    assert find_binaries([partial, whole]).keeper == whole / "dsec-keeper"


def test_missing_programs_say_how_to_get_them(tmp_path: Path) -> None:
    """The error is the machine's, with a remedy, and tells where it looked."""
    with pytest.raises(Unsupported) as caught:
        find_binaries([tmp_path])
    assert caught.value.phase == "machine"
    assert "make setup" in str(caught.value)
    assert caught.value.details["searched"] == [str(tmp_path)]
