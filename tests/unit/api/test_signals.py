"""Signals by name, with Linux's numbers."""

from __future__ import annotations

import signal
import sys

import pytest

from dsec.api.signals import signal_number
from dsec.errors import InvalidArgument


@pytest.mark.parametrize("text", ["9", "KILL", "SIGKILL", "kill", 9])
def test_signals_by_name_and_number(text: str | int) -> None:
    """All of Docker's spellings, and numbers."""
    assert signal_number(text) == 9


@pytest.mark.parametrize("text", ["0", "99", "NOPE", "", "SIG", -1, "-1", "RTMIN-1", "RTMIN+31", "RTMAX+1"])
def test_unknown_signals_are_refused(text: str | int) -> None:
    """No default is taken."""
    with pytest.raises(InvalidArgument):
        signal_number(text)


def test_real_time_signals() -> None:
    """By distance from the first and the last."""
    assert [signal_number(each) for each in ("RTMIN", "SIGRTMIN+3", "RTMAX-1", "RTMAX")] == [34, 37, 63, 64]


@pytest.mark.skipif(sys.platform != "linux", reason="the table is Linux's")
def test_numbers_are_those_of_linux() -> None:
    """Every name that this machine knows has the number that it has there."""
    for each in signal.Signals:
        assert signal_number(each.name) == each.value
