"""``python -m bench.environments``: measure, keep the raw samples, print the table. Needs root, and no node."""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import shutil
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

from bench import record as records
from bench.dockerd import running_daemon
from bench.environments.burst import measure_burst
from bench.environments.docker import DockerLoad
from bench.environments.figures import markdown
from bench.environments.first import measure_first
from bench.environments.mounts import measure_mounts
from bench.environments.packing import measure_packing
from bench.environments.reads import measure_reads
from bench.environments.replacing import measure_replacing
from bench.environments.space import measure_space
from bench.environments.world import Scale, World, open_world
from dsec.demo.docker_api import DockerApi, socket_of
from dsec.errors import DSecError, Unsupported
from dsec.testing.store import ensure_store

_STORE = Path(__file__).parents[2] / "build" / "test-store"
SCENARIOS = ("mount", "first", "reads", "burst", "pack", "space", "replace")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.environments", description="Measure environments on nodes of their own."
    )
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, default=list(SCENARIOS), help="scenarios to run")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="1: 10 GB and 200,000 files, 40 GB of disk; 0.02: a look"
    )
    parser.add_argument("--latency-ms", type=float, default=1.0, help="of the store")
    parser.add_argument("--gb-per-s", type=float, default=1.0, help="of the store")
    parser.add_argument("--docker", choices=("auto", "start", "no"), default="no", help="docker load beside `first`")
    parser.add_argument("--scratch", type=Path, help="where everything lies that is made (a temporary directory)")
    parser.add_argument("--out", type=Path, default=Path("bench/results"), help="where the JSON goes")
    parser.add_argument("--table", type=Path, metavar="JSON", help="only print the table of an earlier run")
    return parser.parse_args()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def _docker(stack: AsyncExitStack, how: str) -> DockerLoad | None:
    if how == "no":
        return None
    socket = await stack.enter_async_context(running_daemon()) if how == "start" else socket_of(os.environ)
    return DockerLoad(await stack.enter_async_context(DockerApi(socket)))


async def _run(record: records.Record, asked: argparse.Namespace, scratch: Path) -> None:
    latency_s, bytes_per_s = asked.latency_ms / 1e3, asked.gb_per_s * 1e9
    record.add("setting", "setting", [], scale=asked.scale, latency_s=latency_s, bytes_per_s=bytes_per_s)
    store = ensure_store(_STORE)
    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(
            open_world(scratch, store, Scale(asked.scale), latency_s=latency_s, bytes_per_s=bytes_per_s)
        )
        docker = await _docker(stack, asked.docker)
        for name in SCENARIOS:
            if name in asked.only:
                _say(name)
                await _scenario(name, world, record, docker)


async def _scenario(name: str, world: World, record: records.Record, docker: DockerLoad | None) -> None:
    if name == "mount":
        await measure_mounts(world, record)
    elif name == "first":
        await measure_first(world, record, docker, _say)
    elif name == "reads":
        await measure_reads(world, record)
    elif name == "burst":
        await measure_burst(world, record, _say)
    elif name == "space":
        await measure_space(world, record)
    elif name == "replace":
        await measure_replacing(world, record)
    else:
        try:
            await measure_packing(world, record)
        except Unsupported as error:
            _say(f"pack: {error}")


def main() -> int:
    """The exit code: 0, or 1 when something could not be measured."""
    asked = _arguments()
    if asked.table is not None:
        print(markdown(records.load(asked.table)))
        return 0
    kept = records.start(shlex.join(["python", "-m", "bench.environments", *sys.argv[1:]]))
    scratch = Path(tempfile.mkdtemp(prefix="dsec-environments-", dir=asked.scratch))
    code = 0
    try:
        asyncio.run(_run(kept, asked, scratch))
    except (DSecError, RuntimeError) as error:
        _say(f"bench: {error}")
        code = 1
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    _say(f"raw samples: {kept.save(asked.out, prefix='environments-')}")
    print(markdown(kept))
    return code


if __name__ == "__main__":
    sys.exit(main())
