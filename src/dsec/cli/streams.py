"""A program's output to our own, byte for byte, and our input to it."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING

from dsec.cli.failures import program_code
from dsec.cli.printing import say
from dsec.errors import DSecError

if TYPE_CHECKING:
    from dsec.client.execs import Exec
    from dsec.client.results import ExecStarted, Exited, Gap, Stderr, Stdout

__all__ = ["copy_input", "copy_output"]

_CHUNK = 64 * 1024


async def copy_output(
    events: AsyncIterator[Stdout | Stderr | Exited | Gap] | AsyncIterator[Stdout | Stderr | Gap | ExecStarted],
) -> int | None:
    """Write what comes to standard output and error at once; the code of the last end, None if there was none."""
    from dsec.client.results import Exited, Gap, Stderr, Stdout

    code = None
    async for event in events:
        if isinstance(event, Stdout):
            sys.stdout.buffer.write(event.data)
            sys.stdout.buffer.flush()
        elif isinstance(event, Stderr):
            sys.stderr.buffer.write(event.data)
            sys.stderr.buffer.flush()
        elif isinstance(event, Gap):
            say(f"dsec: {event.end - event.start} bytes of {event.stream} are not kept any more")
        elif isinstance(event, Exited):
            code = program_code(event.exit_code, event.signal)
    return code


async def copy_input(program: Exec) -> None:
    """Standard input to the program's, until it ends."""
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes] = asyncio.Queue(maxsize=16)

    def read() -> None:
        while True:
            chunk = os.read(0, _CHUNK)
            asyncio.run_coroutine_threadsafe(chunks.put(chunk), loop).result()
            if not chunk:
                return

    # A daemon thread, because a read of a terminal cannot be taken back when the program ends first.
    threading.Thread(target=read, daemon=True, name="stdin").start()
    with suppress(DSecError):  # a program that has ended takes no more, and says so where its end is waited for
        while chunk := await chunks.get():
            await program.stdin.write(chunk)
        await program.stdin.close()
