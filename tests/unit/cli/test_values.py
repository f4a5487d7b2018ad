"""What users type, as values."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsec.cli.values import age, duration_s, environment, labels, mib, size
from dsec.errors import InvalidArgument


@pytest.mark.parametrize(
    ("text", "value"), [("512m", 512), ("2g", 2048), ("1.5G", 1536), ("1048576", 1), ("64MiB", 64), ("1024k", 1)]
)
def test_sizes_are_dockers(text: str, value: float) -> None:
    """Units as Docker reads them, powers of 1,024, bytes without one."""
    assert mib(text) == value


@pytest.mark.parametrize("text", ["", "m", "-1m", "0", "nan", "512q", "1e9"])
def test_bad_sizes_are_refused(text: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(InvalidArgument):
        mib(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("1.5", 1.5), ("90s", 90), ("15m", 900), ("1h30m", 5400), ("2d", 172800)]
)
def test_times(text: str, seconds: float) -> None:
    """Seconds without a unit."""
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "-1", "inf", "nan", "5x", "m5"])
def test_bad_times_are_refused(text: str) -> None:
    """Infinite is not a time."""
    with pytest.raises(InvalidArgument):
        duration_s(text)


def test_environment_as_in_docker(tmp_path: Path) -> None:
    """Files first, flags over them; a bare name takes the caller's value, or nothing."""
    file = tmp_path / "env"
    file.write_text("# note\nA=1\nB=two words\n\nC\n")
    found = environment(["A=2", "D", "E"], [file], own={"C": "3", "D": "4"})
    assert found == {"A": "2", "B": "two words", "C": "3", "D": "4"}


def test_labels_may_be_bare() -> None:
    """``-l gpu`` is an empty label; a value may hold '='."""
    assert labels(["gpu", "task=a=b"]) == {"gpu": "", "task": "a=b"}


def test_label_without_a_name_is_refused() -> None:
    """'=x' names nothing."""
    with pytest.raises(InvalidArgument):
        labels(["=x"])


def test_amounts_for_people() -> None:
    """Three digits and a unit."""
    assert [size(0), size(1536), size(200 * 1024**2), size(3 * 1024**4)] == ["0 B", "1.5 KiB", "200 MiB", "3.0 TiB"]
    assert [age(-1), age(42), age(600), age(3 * 3600), age(5 * 86400)] == ["0 s", "42 s", "10 min", "3 h", "5 d"]
