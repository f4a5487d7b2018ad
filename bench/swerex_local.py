"""Run by ``bench.sessions`` with an interpreter that has ``swe-rex``; imports nothing of dsec.

SWE-ReX's own local runtime: no sandbox, no server in between. Prints the samples as one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version


async def _timed(count: int, step: Callable[[], Awaitable[object]]) -> list[float]:
    taken = []
    for _ in range(count + 1):
        begun = time.perf_counter()
        await step()
        taken.append(time.perf_counter() - begun)
    return taken[1:]


async def _main(count: int) -> dict[str, object]:
    from swerex.runtime.abstract import BashAction, CloseBashSessionRequest, Command, CreateBashSessionRequest
    from swerex.runtime.local import LocalRuntime

    runtime = LocalRuntime()
    opened = 0.0

    async def open_and_close() -> None:
        nonlocal opened
        begun = time.perf_counter()
        await runtime.create_session(CreateBashSessionRequest(session="one"))
        opened = time.perf_counter() - begun
        await runtime.close_session(CloseBashSessionRequest(session="one"))

    opens = []
    for _ in range(max(2, count // 10)):
        await open_and_close()
        opens.append(opened)
    executed = await _timed(count, lambda: runtime.execute(Command(command=["true"])))
    await runtime.create_session(CreateBashSessionRequest(session="two"))
    ran = await _timed(count, lambda: runtime.run_in_session(BashAction(command="true", session="two")))
    await runtime.close()
    return {"version": version("swe-rex"), "execute": executed, "open": opens, "run": ran}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_main(int(sys.argv[1])))))
