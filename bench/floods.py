"""Exec latency in one sandbox while another floods everything that it is given."""

from __future__ import annotations

import time

import dsec
from bench.targets import DsecTarget

__all__ = ["FLOOD", "measure_flood"]

FLOOD = """
import os, socket, sys, threading
def output():
    while True: os.write(1, b"x" * 65536)
def log():
    while True: os.write(2, b"a line\\n")
def disk():
    while True:
        with open("/tmp/big", "wb", 0) as file:
            try:
                while True: file.write(os.urandom(1 << 20))
            except OSError: pass
def files():
    number = 0
    while True:
        number += 1
        try: open(f"/tmp/file-{number % 5000}", "w").close()
        except OSError: pass
def forks():
    while True:
        try:
            if os.fork() == 0: os._exit(0)
            os.waitpid(-1, os.WNOHANG)
        except OSError: pass
def memory():
    while True:
        if (child := os.fork()) == 0:
            kept = []
            while True: kept.append(bytearray(b"x" * (1 << 20)))
        os.waitpid(child, 0)
def connections():
    server = socket.create_server(("127.0.0.1", 7000), backlog=4096)
    while True:
        try: socket.create_connection(("127.0.0.1", 7000)); server.accept()
        except OSError: pass
for one in (output, log, disk, files, forks, connections):
    if os.fork() == 0: one(); os._exit(0)
print("flooding", flush=True)
memory()
"""
"""Output, log lines, bytes and files on disk, processes, memory and connections, all at once, for ever."""


async def measure_flood(target: DsecTarget, count: int) -> dict[str, list[float]]:
    """Seconds of each ``true`` in a sandbox, alone and then beside another that floods, both of the same limits."""
    args = target.args.replace(cpu=1, memory_mib=256, disk_mib=256, pids=512)
    async with target.client.sandbox(args) as quiet, target.client.sandbox(args) as loud:
        taken = {"quiet_s": await _execs(quiet, count)}
        flood = await loud.spawn("python3", "-c", FLOOD)
        async for event in flood.events():
            if isinstance(event, dsec.Stdout):
                break
        taken["samples_s"] = await _execs(quiet, count)
        await flood.kill()
    return taken


async def _execs(sandbox: dsec.Sandbox, count: int) -> list[float]:
    taken = []
    for _ in range(count):
        begun = time.perf_counter()
        await sandbox.exec("true", check=True)
        taken.append(time.perf_counter() - begun)
    return taken
