"""Errors as one line, a remedy and an exit code."""

from __future__ import annotations

import json

import pytest

from dsec.cli.failures import exit_code_of, program_code, report
from dsec.errors import DSecError, ExecutableNotFound, NotExecutable, NotFound, Unsupported


@pytest.mark.parametrize(
    ("error", "command", "code"),
    [
        (ExecutableNotFound("x"), "run", 127),
        (NotExecutable("x"), "exec", 126),
        (NotFound("x"), "run", 125),
        (NotFound("x"), "exec", 125),
        (NotFound("x"), "ps", 1),
        (Unsupported("x", phase="machine"), "up", 3),
    ],
)
def test_exit_codes(error: DSecError, command: str, code: int) -> None:
    """Docker's codes where Docker has the command; 3 when the machine must change."""
    assert exit_code_of(error, command) == code


def test_program_codes_are_a_shells() -> None:
    """The program's own code, or 128 + the signal."""
    assert [program_code(3, None), program_code(0, None), program_code(None, 9)] == [3, 0, 137]


def test_error_is_one_line_and_a_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    """A message with line breaks stays one line; standard output stays clean."""
    report(NotFound("no such\nsandbox", remedy="`dsec ps` lists them"), as_json=False)
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "dsec: no such sandbox\n  → `dsec ps` lists them\n"


def test_error_as_json_is_the_wire_form(capsys: pytest.CaptureFixture[str]) -> None:
    """With --json a script reads code and remedy as data."""
    report(NotFound("gone", remedy="look"), as_json=True)
    wire = json.loads(capsys.readouterr().err)["error"]
    assert (wire["code"], wire["remedy"]) == ("not_found", "look")
