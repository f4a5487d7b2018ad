"""``python -m bench``: measure, keep the raw samples, print the tables."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
from pathlib import Path

from bench import record
from bench.run import DEFAULT, SCENARIOS, Plan, run
from bench.table import markdown
from dsec.errors import DSecError


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure a node that is up.")
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, default=list(DEFAULT), help="scenarios to run")
    parser.add_argument("--quick", action="store_true", help="a look instead of a measurement")
    parser.add_argument("--docker", choices=("auto", "start", "no"), default="auto", help="Docker beside it")
    parser.add_argument("--swerex", type=Path, metavar="PYTHON", help="an interpreter with swe-rex, for `session`")
    parser.add_argument("--image", default="dsec/debian:12")
    parser.add_argument("--out", type=Path, default=Path("bench/results"), help="where the JSON goes")
    parser.add_argument("--table", type=Path, metavar="JSON", help="only print the tables of an earlier run")
    return parser.parse_args()


def main() -> int:
    """The exit code: 0, or 1 when something could not be measured."""
    asked = _arguments()
    if asked.table is not None:
        print(markdown(record.load(asked.table)))
        return 0
    kept = record.start(shlex.join(["python", "-m", "bench", *sys.argv[1:]]))
    only = frozenset(asked.only)
    plan = Plan.quick(only) if asked.quick else Plan.full(only)
    code = 0
    try:
        asyncio.run(run(kept, plan, image=asked.image, docker=asked.docker, swerex=asked.swerex))
    except (DSecError, RuntimeError) as error:
        print(f"bench: {error}", file=sys.stderr)
        code = 1
    print(f"raw samples: {kept.save(asked.out)}", file=sys.stderr)
    print(markdown(kept))
    return code


if __name__ == "__main__":
    sys.exit(main())
