"""Reads of 4 KiB through EROFS and overlay, from inside a sandbox, beside the local file system, in three states."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import dsec
from bench.environments.contents import Contents
from bench.environments.world import IMAGE, SMALL, World
from bench.record import Record
from dsec.testing.node import RunningNode

__all__ = ["measure_reads"]

_BYTES = 1 << 30
_UNFILLED = 400
_UNCACHED = 4_000
_ROUNDS = 5
_FILE, _READER = "/data/file", "/tmp/reader"
_TAGS = ("workspace/reads-random:1", "workspace/reads-forwards:1")
_LOOK_S = 0.05
_ROOMY = SMALL.replace(memory_mib=(4, 4096))
"""Who reads first pays for the pages: a limit below the file's size would measure how they are given up."""
Read = Callable[..., Awaitable[list[float]]]


async def measure_reads(world: World, record: Record) -> None:
    """Bytes a second of each way of reading, in each state; the reader's sums have to agree."""
    size = world.scale.of(_BYTES, 32 << 20) // 4096 * 4096
    for number, tag in enumerate(_TAGS):

        def write(folder: Path, number: int = number) -> None:
            _write(folder / "file", number, size)

        await world.publisher.layer(write, tag=tag, at="/data")
    async with world.node(on_demand=True) as (node, client):
        await client.images.fetch(IMAGE, store="slow")
        for tag in _TAGS:
            await client.layers.pull(tag)
        program = await _compiled(client, world.scratch)
        local = world.scratch / "local"
        await asyncio.to_thread(_write, local, 1, size)
        os.sync()
        async with client.sandbox(_ROOMY.replace(workspace=_TAGS[0])) as sandbox:
            rates = await _prepared(sandbox, program)
            record.add("dsec", "random unfilled", [], bytes_per_s=[await rates("random", _UNFILLED)], bytes=size)
        async with client.sandbox(_ROOMY.replace(workspace=_TAGS[1])) as sandbox:
            rates = await _prepared(sandbox, program)
            record.add("dsec", "forwards unfilled", [], bytes_per_s=[await rates("seq", 0)], bytes=size)
            data = await _whole(node, client, _TAGS[1])
            await _both(record, rates, _beside(program, local), data, size)
    local.unlink()


def _write(file: Path, number: int, size: int) -> None:
    contents = Contents(3)
    with file.open("wb") as out:
        # A number whose file is half noise: what is read has to be unpacked, as most of what images hold.
        for piece in contents.pieces(10 * number + 9, size):
            out.write(piece)


async def _compiled(client: dsec.DSecClient, scratch: Path) -> Path:
    """The reader, by the compiler of the image: the same program inside and outside."""
    program = scratch / "reader"
    async with client.sandbox(SMALL) as sandbox:
        await sandbox.files.upload(Path(__file__).with_name("reader.c"), "/tmp/reader.c")
        result = await sandbox.exec("gcc", "-O2", "-static", "-o", _READER, "/tmp/reader.c")
        if not result.ok:
            raise RuntimeError(f"the reader could not be compiled: {result.stderr}")
        await sandbox.files.download(_READER, program)
    program.chmod(0o755)
    return program


async def _prepared(sandbox: dsec.Sandbox, program: Path) -> Read:
    await sandbox.files.upload(program, _READER)

    async def rates(kind: str, count: int, cache: str = "keep") -> list[float]:
        result = await sandbox.exec(_READER, _FILE, kind, str(count), "1", cache)
        if not result.ok:
            raise RuntimeError(f"reading failed: {result}")
        return _told(result.stdout)

    return rates


def _beside(program: Path, file: Path) -> Read:
    async def rates(kind: str, count: int, cache: str = "keep") -> list[float]:
        argv = [str(program), str(file), kind, str(count), "1", cache]
        done = await asyncio.to_thread(subprocess.run, argv, check=True, capture_output=True, text=True)
        return _told(done.stdout)

    return rates


def _told(line: str) -> list[float]:
    """Bytes a second; p50, p99 and the longest read in ns; the sum of what was read."""
    total, seconds, p50, p99, longest, found = line.split()
    return [float(total) / float(seconds), float(p50), float(p99), float(longest), float(found)]


async def _whole(node: RunningNode, client: dsec.DSecClient, tag: str) -> Path:
    """Return the layer's data file once all of it is here, on disk, and nobody is in the way any more."""
    layer = node.paths.layers / (await client.layers.get(tag)).digest
    while (layer / "filled").exists():  # noqa: ASYNC110  (there is no event to wait for)
        await asyncio.sleep(_LOOK_S)
    return layer / "data"


async def _both(record: Record, inside: Read, outside: Read, data: Path, size: int) -> None:
    """One after the other, so that whatever else the machine does meets both alike."""
    states = (("filled", "drop", _UNCACHED), ("cached", "keep", size // 4096))
    for state, cache, count in states:
        for kind, name in (("seq", "forwards"), ("random", "random")):
            rows: dict[str, list[list[float]]] = {"dsec": [], "local": []}
            for turn in range(_ROUNDS + 1):
                if state == "filled":
                    _drop(data)
                reads = 0 if kind == "seq" else count
                pair = (await inside(kind, reads, cache), await outside(kind, reads, cache))
                if pair[0][-1] != pair[1][-1]:
                    raise RuntimeError(f"{name} {state}: other bytes than those of the local file")
                if turn:
                    for target, row in zip(rows, pair, strict=True):
                        rows[target].append(row)
            for target, found in rows.items():
                record.add(target, f"{name} {state}", [], bytes_per_s=found, bytes=size)
    # What a call costs that reads nothing: inside it passes the sandbox's filter.
    for target, read in (("dsec", inside), ("local", outside)):
        record.add(target, "empty read", [], nanoseconds=[(await read("empty", 0))[1] for _ in range(_ROUNDS)])


def _drop(file: Path) -> None:
    """The host's own cache of a file goes."""
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
