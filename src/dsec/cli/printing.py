"""Answers on standard output: a table for people, or one JSON document with ``--json``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["print_facts", "print_json", "print_table", "say"]


def print_json(value: Any) -> None:
    """One JSON document, indented for a terminal and on one line for a pipe."""
    import msgspec

    encoded = msgspec.json.encode(value)
    if sys.stdout.isatty():
        encoded = msgspec.json.format(encoded, indent=2)
    sys.stdout.write(encoded.decode() + "\n")


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Columns as Docker prints them: no frame, two spaces at least between, nothing cut."""
    lines = [list(head), *([_visible(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for line in lines:
        print("   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Names and values, one a line."""
    listed = list(facts)
    width = max((len(name) for name, _ in listed), default=0)
    for name, value in listed:
        print(f"{name.ljust(width)}   {_visible(value)}")


def say(text: str) -> None:
    """A word on what goes on, to standard error."""
    print(text, file=sys.stderr)


def _visible(text: str) -> str:
    """Names and commands come from sandboxes: nothing of them may steer the terminal."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
