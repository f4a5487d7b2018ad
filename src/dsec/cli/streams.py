"""A program's output to our own, byte for byte, and our input to it."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING

from dsec.cli.failures import OWN_FAULT, program_code
from dsec.cli.printing import say
from dsec.errors import DSecError

if TYPE_CHECKING:
    from dsec.cli.terminal import Keys
    from dsec.client.execs import Exec
    from dsec.client.results import ExecStarted, Exited, Gap, Stderr, Stdout

__all__ = ["at_terminal", "converse", "copy_input", "copy_output"]

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


async def copy_input(program: Exec, keys: Keys | None = None) -> bool:
    """Standard input to the program's, until it ends; True as soon as the keys that detach were typed."""
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes] = asyncio.Queue(maxsize=16)

    def read() -> None:
        while True:
            try:
                chunk = os.read(0, _CHUNK)
            except OSError:
                chunk = b""  # a terminal that was hung up
            asyncio.run_coroutine_threadsafe(chunks.put(chunk), loop).result()
            if not chunk:
                return

    # A daemon thread, because a read of a terminal cannot be taken back when the program ends first.
    threading.Thread(target=read, daemon=True, name="stdin").start()
    with suppress(DSecError):  # a program that has ended takes no more, and says so where its end is waited for
        while chunk := await chunks.get():
            chunk, detached = (chunk, False) if keys is None else keys.take(chunk)
            if chunk:
                await program.stdin.write(chunk)
            if detached:
                return True
        await program.stdin.close()
    return False


async def converse(program: Exec, *, interactive: bool, keys: Keys | None) -> int | None:
    """Pass output and, if wanted, input on until the program ends: its code; None when the user has detached."""
    showing = asyncio.create_task(copy_output(program.events()))
    feeding = asyncio.create_task(copy_input(program, keys)) if interactive else None
    try:
        while feeding is not None and not showing.done():
            await asyncio.wait({showing, feeding}, return_when=asyncio.FIRST_COMPLETED)
            if feeding.done():
                if feeding.result():
                    return None
                break
        code = await showing
        return OWN_FAULT if code is None else code
    finally:
        for task in (showing, feeding):
            if task is not None:
                task.cancel()
        await asyncio.wait({task for task in (showing, feeding) if task is not None})


async def at_terminal(program: Exec, sandbox_id: str, keys: bytes) -> int | None:
    """Converse with a program at a terminal: ours becomes raw, follows it in size, and is restored at the end."""
    from dsec.cli import terminal

    with terminal.raw(), terminal.following_size(program.resize):
        code = await converse(program, interactive=True, keys=terminal.Keys(keys) if keys else None)
    if code is None:
        terminal.say_detached(sandbox_id, program.id)
    return code
