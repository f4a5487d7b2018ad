"""Fuzz Python's readers with atheris, each for some seconds: ``python -m tests.fuzz [--seconds N] [TARGET …]``.

Each target is a process of its own. What it executed and reached is printed as one JSON line; a defect ends the run,
with the input that shows it in ``build/fuzz``.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

_BUILD = Path(__file__).parents[2] / "build" / "fuzz"


def _names() -> list[str]:
    from tests.fuzz.readers import TARGETS

    return list(TARGETS)


def _one(name: str, arguments: list[str]) -> None:
    import atheris

    with atheris.instrument_imports(include=["dsec.layering", "dsec.images", "dsec.stores"]):
        from tests.fuzz.readers import TARGETS

    def one(data: bytes) -> None:
        TARGETS[name](data)

    atheris.Setup([sys.argv[0], *arguments], one)
    atheris.Fuzz()


def _run(name: str, seconds: int) -> bool:
    from tests.fuzz.readers import CORPUS

    found = _BUILD / name
    found.mkdir(parents=True, exist_ok=True)
    options = [
        f"-max_total_time={seconds}", "-rss_limit_mb=1024", "-timeout=20", "-print_final_stats=1",
        f"-artifact_prefix={found}-", str(found), str(CORPUS / name),
    ]  # fmt: skip
    ran = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--one", name, "--", *options], stderr=subprocess.PIPE, text=True
    )
    executed = re.search(r"number_of_executed_units: (\d+)", ran.stderr)
    reached = re.findall(r" cov: (\d+)", ran.stderr)
    told = {
        "target": f"python:{name}",
        "seconds": seconds,
        "executions": int(executed[1]) if executed else None,
        "coverage": int(reached[-1]) if reached else None,
        "defects": int(ran.returncode != 0),
    }
    print(json.dumps(told), flush=True)
    if ran.returncode != 0:
        print(ran.stderr[-6000:], file=sys.stderr)
    return ran.returncode == 0


def main() -> int:
    """Run what the command line says; 1 if there is a defect."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("targets", nargs="*")
    arguments = parser.parse_args()
    if arguments.one:
        _one(arguments.one, arguments.targets)
        return 0
    try:
        import atheris  # noqa: F401
    except ImportError:
        print(
            f"Python's readers are not fuzzed: atheris is missing (pip install atheris, for {sys.executable}).",
            file=sys.stderr,
        )
        return 1
    passed = [_run(name, arguments.seconds) for name in arguments.targets or _names()]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
