"""A program at a terminal in the sandbox, and waiting for what it says."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Self

import dsec
from dsec.errors import CommandError

__all__ = ["ShellEnded", "Terminal"]

_SIZE = dsec.Pty(24, 80)
"""As SWE-ReX's own terminals have it."""
_LONGEST_PROMPT = 80


class ShellEnded(Exception):
    """The program at the terminal has ended."""


class Terminal:
    """Keeps what was said and not yet taken. Its reader is its only task, ended by ``close``."""

    def __init__(self, program: dsec.Exec) -> None:
        self._program = program
        self._text = ""
        self._news = asyncio.Event()
        self._over: BaseException | None = None
        self._reader = asyncio.get_running_loop().create_task(self._read())

    @classmethod
    async def open(cls, sandbox: dsec.Sandbox, argv: Sequence[str], env: Mapping[str, str]) -> Self:
        """Start a program at a terminal of its own."""
        return cls(await sandbox.spawn(*argv, env=env, pty=_SIZE))

    async def _read(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        try:
            async for event in self._program.events():
                if isinstance(event, dsec.Stdout):
                    self._text += decoder.decode(event.data)
                    self._news.set()
            self._over = ShellEnded("the shell has ended")
        except dsec.DSecError as error:
            self._over = error
        finally:
            self._news.set()

    async def type(self, text: str) -> None:
        """Type. What is typed at a program that has ended is lost, which ``expect`` tells."""
        with contextlib.suppress(CommandError):
            await self._program.stdin.write(text)

    async def expect(self, patterns: Sequence[str], timeout_s: float | None) -> tuple[int, str, re.Match[str]]:
        """Wait for the first match of any pattern: (its index, what came before it, the match).

        Takes all that up to the match's end; of two that begin at the same place the earlier in the list counts, as
        pexpect has it. The last pattern matches at most ``_LONGEST_PROMPT`` characters. Raises TimeoutError,
        ShellEnded, SandboxGone, OutcomeUnknown, NodeError.
        """
        *others, prompt = [re.compile(pattern, re.DOTALL) for pattern in patterns]
        searched = 0
        async with asyncio.timeout(timeout_s):
            while True:
                self._news.clear()
                text = self._text
                tried = [*(one.search(text) for one in others), prompt.search(text, searched)]
                matches = [(found.start(), index, found) for index, found in enumerate(tried) if found]
                if matches:
                    _, index, found = min(matches, key=lambda match: match[:2])
                    self._text = text[found.end() :]
                    return index, text[: found.start()], found
                if self._over is not None:
                    raise self._over
                searched = max(0, len(text) - _LONGEST_PROMPT)
                await self._news.wait()

    async def close(self) -> None:
        """Kill it, with all that it started."""
        self._reader.cancel()
        await asyncio.wait({self._reader})
        with contextlib.suppress(dsec.SandboxGone, dsec.NotFound):
            await self._program.kill(grace_s=0)
