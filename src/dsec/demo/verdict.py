"""Read a test run's own output, outside of the sandbox, and judge it."""

from __future__ import annotations

import re
from collections.abc import Set
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["PYTEST_OPTIONS", "Judgement", "Truth", "Verdict", "judge", "passed_tests"]

PYTEST_OPTIONS = ("-q", "-rfEp", "--tb=no", "--color=no", "-p", "no:cacheprovider", "-o", "addopts=")
"""What makes pytest end with one line for each test that passed or failed, without what the tests printed."""

_SUMMARY = re.compile(r"^=+ short test summary info =+$", re.MULTILINE)
_LAST_LINE = re.compile(r"^(?:=+ )?\d+ (?:passed|failed|error).* in [\d.]+s", re.MULTILINE)


class Verdict(StrEnum):
    """``masked``: the platform failed, so there is nothing to score."""

    PASS = "pass"  # noqa: S105
    FAIL = "fail"
    MASKED = "masked"


@dataclass(frozen=True)
class Truth:
    """A task's tests by what they say of releases N and N+1, both with the tests of N+1."""

    fail_to_pass: frozenset[str]
    pass_to_pass: frozenset[str]


@dataclass(frozen=True)
class Judgement:
    """A verdict, and why."""

    verdict: Verdict
    reason: str


def passed_tests(output: str) -> frozenset[str] | None:
    """IDs of the tests that passed and did not fail in set-up or tear-down; None when the run did not finish.

    Only the last summary counts, so nothing that a test printed before can pretend to be it.
    """
    summaries = list(_SUMMARY.finditer(output))
    if not summaries:
        return None
    section = output[summaries[-1].end() :]
    if not _LAST_LINE.search(section):
        return None
    passed: set[str] = set()
    failed: list[str] = []
    for line in section.splitlines():
        word, _, rest = line.partition(" ")
        if word == "PASSED":
            passed.add(rest)
        elif word in ("FAILED", "ERROR"):
            failed.append(rest)
    contradicted = {name for line in failed for name in _prefixes(line) if name in passed}
    return frozenset(passed - contradicted)


def judge(truth: Truth, exit_code: int | None, output: str) -> Judgement:
    """Pass when all of FAIL_TO_PASS and PASS_TO_PASS passed in a run that finished."""
    passed = passed_tests(output)
    if exit_code not in (0, 1) or passed is None:
        ending = "was killed" if exit_code is None else f"ended with {exit_code}"
        return Judgement(Verdict.FAIL, f"the test run {ending} and gave no result")
    unsolved = truth.fail_to_pass - passed
    broken = truth.pass_to_pass - passed
    if not unsolved and not broken:
        return Judgement(Verdict.PASS, f"{len(truth.fail_to_pass)} fixed, {len(truth.pass_to_pass)} kept")
    said = [f"{len(unsolved)} of {len(truth.fail_to_pass)} not fixed"] if unsolved else []
    said += [f"{len(broken)} of {len(truth.pass_to_pass)} broken"] if broken else []
    return Judgement(Verdict.FAIL, ", ".join(said))


def truth_of(passed_broken: Set[str], passed_golden: Set[str], unstable: Set[str]) -> Truth:
    """FAIL_TO_PASS and PASS_TO_PASS from the tests that passed on N and on N+1."""
    return Truth(
        fail_to_pass=frozenset(passed_golden - passed_broken - unstable),
        pass_to_pass=frozenset((passed_golden & passed_broken) - unstable),
    )


def _prefixes(line: str) -> list[str]:
    """What the test's ID may be in ``ID - message``: an ID can hold " - " as well."""
    pieces = line.split(" - ")
    return [" - ".join(pieces[: count + 1]) for count in range(len(pieces))]
