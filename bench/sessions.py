"""Sessions: opening one, and running ``true`` in it; beside them one exec, and the same of SWE-ReX."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

from bench.targets import DsecTarget

__all__ = ["measure_sessions", "measure_swerex"]

Samples = dict[str, list[float]]
_SWEREX = Path(__file__).with_name("swerex_local.py")


async def measure_sessions(target: DsecTarget, count: int) -> Samples:
    """``count`` times each, in one sandbox; the first of each is not counted. Sessions are closed untimed."""
    sandbox = await target.create()
    taken: Samples = {"execute": [], "open": [], "run": []}
    try:
        for _ in range(count + 1):
            begun = time.perf_counter()
            await target.true(sandbox)
            taken["execute"].append(time.perf_counter() - begun)
        for _ in range(count // 10 + 1):
            begun = time.perf_counter()
            opened = await sandbox.open_session()
            taken["open"].append(time.perf_counter() - begun)
            await opened.close()
        async with sandbox.open_session() as session:
            for _ in range(count + 1):
                begun = time.perf_counter()
                result = await session.run("true")
                taken["run"].append(time.perf_counter() - begun)
                if not result.ok:
                    raise RuntimeError(f"`true` failed: {result}")
    finally:
        await target.stop(sandbox)
    return {name: samples[1:] for name, samples in taken.items()}


def measure_swerex(python: Path, count: int) -> tuple[str, Samples]:
    """The same of SWE-ReX, local and without isolation, by an interpreter that has it: version, samples."""
    done = subprocess.run([python, _SWEREX, str(count)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"SWE-ReX could not be measured: {done.stderr[-400:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found["version"], {name: found[name] for name in ("execute", "open", "run")}
