"""The figures and the confusion matrix of a job."""

from __future__ import annotations

import dataclasses
import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from dsec.demo.report import JobResult, Sample, Timing, concurrent_peak, matrix, percentile, quantiles_ms
from dsec.demo.table import as_json, print_result
from dsec.demo.verdict import Verdict

BOX = Timing(
    created_at=0.0, create_s=0.004, exec_s=0.002, ended_at=10.0, cpu_s=1.5, memory_peak_mib=100.0, processes=0
)


def sample(expected: Verdict, observed: Verdict, *boxes: Timing) -> Sample:
    """A sample with these verdicts."""
    return Sample("task", "policy", expected, observed, "the reason", "empty", 1.0, boxes)


def result(*samples: Sample, left: int = 0) -> JobResult:
    """A job of these samples."""
    return JobResult("dsec", samples, wall_s=12.345, sandboxes_left=left, parallel=16)


RIGHT = sample(Verdict.PASS, Verdict.PASS, BOX, BOX)


def test_the_matrix_counts_every_pair() -> None:
    """All six cells are there, zero or not, and they add up to the samples."""
    counted = matrix([RIGHT, RIGHT, sample(Verdict.FAIL, Verdict.MASKED), sample(Verdict.FAIL, Verdict.PASS)])
    assert counted[(Verdict.PASS, Verdict.PASS)] == 2
    assert counted[(Verdict.FAIL, Verdict.MASKED)] == 1
    assert counted[(Verdict.FAIL, Verdict.PASS)] == 1
    assert len(counted) == 6
    assert sum(counted.values()) == 4


def test_a_clean_job_is_ok() -> None:
    """All verdicts right and nothing left."""
    assert result(RIGHT).ok


@pytest.mark.parametrize(
    "bad",
    [
        result(RIGHT, sample(Verdict.FAIL, Verdict.PASS)),
        result(RIGHT, sample(Verdict.FAIL, Verdict.MASKED)),
        result(RIGHT, left=1),
        result(sample(Verdict.PASS, Verdict.PASS, dataclasses.replace(BOX, processes=1))),
    ],
)
def test_what_fails_the_job(bad: JobResult) -> None:
    """A wrong verdict, a masked one, a sandbox left, a process left: each alone fails the demo."""
    assert not bad.ok


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.01, 1))
def test_a_percentile_is_a_value_that_enough_do_not_exceed(values: list[float], share: float) -> None:
    """It is one of the values, and at least that share of them lies at or below it."""
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9


def test_quantiles() -> None:
    """p50 and p99 of 1 to 100 ms; of nothing they are no number."""
    assert quantiles_ms([index / 1000 for index in range(1, 101)]) == (50.0, 99.0)
    assert all(math.isnan(each) for each in quantiles_ms([]))


def test_memory_together_counts_only_what_lived_together() -> None:
    """Two boxes that overlap add up; one that starts when another ends does not."""
    later = dataclasses.replace(BOX, created_at=10.0, ended_at=20.0)
    beside = dataclasses.replace(BOX, created_at=5.0, ended_at=6.0, memory_peak_mib=50.0)
    assert concurrent_peak([BOX, later]) == 100.0
    assert concurrent_peak([BOX, beside, later]) == 150.0


def test_what_is_printed_names_every_wrong_sample_and_the_limit_of_the_check() -> None:
    """The reason of a wrong verdict is shown, and so is what grading does not cover yet."""
    stream = io.StringIO()
    wrong = dataclasses.replace(sample(Verdict.FAIL, Verdict.PASS), task="sqlparse [x]")
    print_result(Console(file=stream, width=118), [result(RIGHT, wrong)])
    text = stream.getvalue()
    assert "sqlparse [x], policy: expected fail, observed pass: the reason" in text
    assert "1 of 2 verdicts as expected" in text
    assert "subverts its own test process" in text


def test_the_json_form_holds_facts_matrix_and_samples() -> None:
    """``--json`` gives what the tables give."""
    document = as_json([result(RIGHT)])
    platform = document["platforms"][0]
    assert document["ok"] is True
    assert platform["matrix"]["pass/pass"] == 1
    assert platform["facts"]["core_seconds"] == 3.0
    assert platform["facts"]["create_p50_ms"] == 4.0
    assert platform["samples"][0]["observed"] == "pass"
