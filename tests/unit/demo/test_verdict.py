"""Verdicts read from a test run's own output."""

from __future__ import annotations

import pytest

from dsec.demo.verdict import Truth, Verdict, judge, passed_tests, truth_of

SUMMARY = "=========================== short test summary info ============================"
TRUTH = Truth(
    fail_to_pass=frozenset({"t.py::fixed"}), pass_to_pass=frozenset({"t.py::kept[a - b]", "t.py::also kept"})
)


def run(*lines: str, last: str = "3 passed in 0.12s", before: str = "...  [100%]") -> str:
    """The output of a pytest run with these summary lines."""
    return "\n".join([before, SUMMARY, *lines, last, ""])


GOOD = ("PASSED t.py::fixed", "PASSED t.py::kept[a - b]", "PASSED t.py::also kept")


def test_all_expected_tests_passed() -> None:
    """Pass needs every test of both lists, with IDs that hold spaces and dashes."""
    assert judge(TRUTH, 0, run(*GOOD)).verdict is Verdict.PASS


def test_other_tests_may_fail() -> None:
    """A test that fails on both releases is in neither list and does not matter."""
    output = run(*GOOD, "FAILED t.py::needs_network - OSError", last="1 failed, 3 passed in 1.50s")
    assert judge(TRUTH, 1, output).verdict is Verdict.PASS


@pytest.mark.parametrize("missing", range(3))
def test_each_expected_test_counts(missing: int) -> None:
    """Take any one expected test away and the verdict is fail."""
    lines = [line for index, line in enumerate(GOOD) if index != missing]
    assert judge(TRUTH, 0, run(*lines)).verdict is Verdict.FAIL


def test_the_reason_counts_both_lists() -> None:
    """The reason tells what was not fixed from what was broken."""
    assert judge(TRUTH, 1, run("PASSED t.py::also kept")).reason == "1 of 1 not fixed, 1 of 2 broken"


@pytest.mark.parametrize("exit_code", [2, 3, 4, 5, 137, None])
def test_a_run_that_did_not_end_normally_fails(exit_code: int | None) -> None:
    """Interrupted, internal error, misuse, nothing collected, killed: whatever was printed, it is no pass."""
    assert judge(TRUTH, exit_code, run(*GOOD)).verdict is Verdict.FAIL


def test_a_run_without_its_last_line_fails() -> None:
    """A run that dies (or leaves by os._exit) in its summary has no result."""
    assert judge(TRUTH, 0, run(*GOOD, last="")).verdict is Verdict.FAIL


@pytest.mark.parametrize("output", ["", "PASSED t.py::fixed\n3 passed in 0.1s", SUMMARY])
def test_output_without_a_summary_is_no_result(output: str) -> None:
    """Lines that look right count only after the summary's head."""
    assert passed_tests(output) is None


def test_only_the_last_summary_counts() -> None:
    """A summary that a test printed itself comes before the real one and is not believed."""
    forged = run(*GOOD)
    assert passed_tests(run("PASSED t.py::also kept", before=forged)) == frozenset({"t.py::also kept"})


@pytest.mark.parametrize(
    "line", ["ERROR t.py::fixed", "ERROR t.py::fixed - RuntimeError: x - y", "FAILED t.py::fixed - x"]
)
def test_a_pass_with_an_error_in_tear_down_is_no_pass(line: str) -> None:
    """pytest reports such a test twice."""
    assert judge(TRUTH, 1, run(*GOOD, line, last="3 passed, 1 error in 0.12s")).verdict is Verdict.FAIL


def test_an_error_in_another_test_of_similar_name_does_not_count() -> None:
    """``kept[a`` is a prefix of ``kept[a - b]`` and another test."""
    output = run(*GOOD, "FAILED t.py::kept[a", last="1 failed, 3 passed in 0.12s")
    assert judge(TRUTH, 1, output).verdict is Verdict.PASS


def test_truth_leaves_out_what_measures_time() -> None:
    """FAIL_TO_PASS and PASS_TO_PASS follow from both runs, without the unstable tests and without regressions."""
    truth = truth_of({"kept", "gone", "slow"}, {"kept", "new", "slow", "slower"}, {"slow", "slower"})
    assert truth == Truth(frozenset({"new"}), frozenset({"kept"}))
