"""Fuzz every reader, each for some seconds: ``python -m tests.fuzz [--seconds N] [--out FILE] [LANGUAGE:TARGET …]``.

Each target is a process of its own. What it executed and reached is one JSON line; the first defect ends the run,
with the input that shows it in ``build/fuzz``. Without the tools for a language it says what is missing, and fails.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
from tests.fuzz import rust
from tests.fuzz.running import run


def _one(name: str, arguments: list[str]) -> None:
    import atheris

    with atheris.instrument_imports(include=["dsec.layering", "dsec.images", "dsec.stores"]):
        from tests.fuzz.readers import TARGETS

    def one(data: bytes) -> None:
        TARGETS[name](data)

    atheris.Setup([sys.argv[0], *arguments], one)
    atheris.Fuzz()


def _python_names() -> list[str]:
    from tests.fuzz.readers import TARGETS

    return list(TARGETS)


def _missing(languages: set[str]) -> Iterator[str]:
    if "rust" in languages:
        yield from rust.missing()
    if "python" in languages and importlib.util.find_spec("atheris") is None:
        yield f"atheris ({sys.executable} -m pip install atheris)"


def main() -> int:
    """Run what the command line says; 1 when there is a defect, or when something is missing."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--out", type=Path, help="where the lines are kept as well")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("targets", nargs="*", help="rust:NAME, python:NAME; all of them unless said")
    arguments = parser.parse_args()
    if arguments.one:
        _one(arguments.one, arguments.targets)
        return 0
    every = [("rust", name) for name in rust.names()] + [("python", name) for name in _python_names()]
    if unknown := set(arguments.targets) - {":".join(each) for each in every}:
        parser.error(f"no targets: {', '.join(sorted(unknown))}")
    wanted = [each for each in every if not arguments.targets or ":".join(each) in arguments.targets]
    languages = {language for language, _ in wanted}
    if lacks := list(_missing(languages)):
        print(f"nothing is fuzzed, for this is missing: {'; '.join(lacks)}.", file=sys.stderr)
        return 1
    program = rust.build() if "rust" in languages else []
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(arguments.out.open("a")) if arguments.out else None
        for language, name in wanted:
            python = [sys.executable, "-m", "tests.fuzz", "--one", name, "--"]
            command = program if language == "rust" else python
            outcome = run(language, name, command, arguments.seconds, {"DSEC_FUZZ_TARGET": name})
            line = msgspec.json.encode(outcome).decode()
            print(line, flush=True)
            if out is not None:
                print(line, file=out, flush=True)
            if outcome.defects:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
