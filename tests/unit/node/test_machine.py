"""Machines that cannot hold a node are refused in one sentence, with what to do."""

from __future__ import annotations

import pytest

from dsec.errors import Denied, Unsupported
from dsec.node.machine import check_machine, is_machine_fault, kernel_version


def test_good_machine_passes() -> None:
    """Linux, root and a new kernel are all that is asked."""
    check_machine(system="linux", uid=0, release="6.15.0")


@pytest.mark.parametrize(
    ("system", "uid", "release", "kind", "word"),
    [
        ("darwin", 0, "23.1.0", Unsupported, "Linux only"),
        ("linux", 1000, "6.18.1", Denied, "needs root"),
        ("linux", 0, "6.14.9-amd64", Unsupported, "too old"),
        ("linux", 0, "5.15.0", Unsupported, "too old"),
    ],
)
def test_other_machines_are_refused(system: str, uid: int, release: str, kind: type[Exception], word: str) -> None:
    """Each refusal says its reason and a remedy, and counts as the machine's fault (exit code 3)."""
    with pytest.raises(kind, match=word) as caught:
        check_machine(system=system, uid=uid, release=release)
    assert isinstance(caught.value, Unsupported | Denied)
    assert caught.value.remedy
    assert is_machine_fault(caught.value)


@pytest.mark.parametrize(
    ("release", "version"),
    [("6.18.3-amd64", (6, 18)), ("6.8.0-1021-aws", (6, 8)), ("10.2", (10, 2)), ("odd", (0, 0))],
)
def test_kernel_version(release: str, version: tuple[int, int]) -> None:
    """Only the first two numbers count, compared as numbers."""
    assert kernel_version(release) == version
