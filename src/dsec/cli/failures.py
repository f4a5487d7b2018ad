"""Errors as one line, a remedy and an exit code.

A program's own code is passed on; 128 + n for signal n. dsec's own: 125 for ``run`` and ``exec`` (as Docker), 126 and
127 for a program that cannot be executed or found, 3 for a machine that cannot hold a node, 130 after Ctrl-C, 2 for
misuse of the command line, else 1.
"""

from __future__ import annotations

import sys
from typing import Any

from dsec.errors import DSecError, ExecutableNotFound, NotExecutable

__all__ = ["INTERRUPTED", "OWN_FAULT", "exit_code_of", "program_code", "report"]

INTERRUPTED = 130
OWN_FAULT = 125
_MACHINE = 3
_DOCKERS = ("run", "exec")


def exit_code_of(error: DSecError, command: str) -> int:
    """The exit code for an error of a command."""
    if isinstance(error, ExecutableNotFound):
        return 127
    if isinstance(error, NotExecutable):
        return 126
    if error.phase == "machine":
        return _MACHINE
    if error.phase == "terminal":
        return 1
    return OWN_FAULT if command in _DOCKERS else 1


def program_code(exit_code: int | None, signal: int | None) -> int:
    """The exit code that a shell would give for how a program ended."""
    if exit_code is not None:
        return exit_code
    return OWN_FAULT if signal is None else 128 + signal


def report(error: DSecError, *, as_json: bool) -> None:
    """The error on standard error: one line and, if there is one, the remedy; or its wire form as JSON."""
    if as_json:
        import msgspec

        wire: dict[str, Any] = {"error": error.to_wire()}
        print(msgspec.json.encode(wire).decode(), file=sys.stderr)
        return
    print(f"dsec: {_one_line(error.message)}", file=sys.stderr)
    if error.remedy:
        print(f"  → {_one_line(error.remedy)}", file=sys.stderr)


def _one_line(text: str) -> str:
    return " ".join(text.split())
