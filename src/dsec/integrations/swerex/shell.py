"""A session: an interactive bash at a terminal.

SWE-ReX's sessions are shells that programs like a debugger can take over, so there is a terminal, and the end of a
command is seen by the prompt. The prompt has a word of its own for each command, which nobody can guess, and the exit
code: a late prompt of a command that was given up is never taken for the next one's, and no output is.
"""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Sequence

from swerex.exceptions import CommandTimeoutError, NoExitCodeError, SessionNotInitializedError
from swerex.runtime.abstract import BashAction, BashObservation

import dsec
from dsec.integrations.swerex.terminal import ShellEnded, Terminal

__all__ = ["Shell"]

_PROMPT_NAME = "SHELLPS1PREFIX"
"""What SWE-ReX calls its prompt, and says it has matched."""
_START_S = 60.0
_SETTLE_S = 10.0
_LONGEST_LINE = 1024
_ESCAPES = re.compile(r"\x1B[@-_][0-?]*[ -/]*[@-~]")


class Shell:
    """One session. Not for several callers at once: what they type would be one text."""

    def __init__(self, sandbox: dsec.Sandbox) -> None:
        self._sandbox = sandbox
        self._terminal: Terminal | None = None
        self._word = secrets.token_hex(8)
        self._number = 0
        self._left = ""
        """Output that belongs to the next observation."""

    @property
    def terminal(self) -> Terminal:
        """The terminal. Raises SessionNotInitializedError before ``start`` and after ``close``."""
        if self._terminal is None:
            raise SessionNotInitializedError("shell not initialized")
        return self._terminal

    async def start(self, sources: Sequence[str], timeout_s: float) -> str:
        """Start it and source files; returns what they say. Raises CommandTimeoutError."""
        self._terminal = await Terminal.open(self._sandbox, ["/usr/bin/env", "bash"], {"TERM": "dumb"})
        quiet = "stty -echo; unset PROMPT_COMMAND; PS0= PS2=; bind 'set enable-bracketed-paste off' 2>/dev/null; true"
        await self._finish(quiet, _START_S)
        if not sources:
            return ""
        output, _ = await self._finish(" ; ".join(f"source {shlex.quote(path)}" for path in sources), timeout_s)
        return output

    async def run(self, command: str, expect: Sequence[str], timeout_s: float | None) -> BashObservation:
        """Run a command to its end, or until a pattern of ``expect`` comes.

        Raises CommandTimeoutError (it goes on) and NoExitCodeError (the shell has ended).
        """
        line, own = await self._line_of(command)
        index, before, found = await self._typed(line, [*expect, own], timeout_s, command)
        output = self._taken(before)
        if index < len(expect):
            return BashObservation(output=output, exit_code=None, expect_string=expect[index])
        return BashObservation(output=output, exit_code=int(found[1]), expect_string=_PROMPT_NAME)

    async def interact(self, action: BashAction) -> BashObservation:
        """Type at an interactive program, until a pattern of ``expect`` or a prompt of the shell comes."""
        patterns = [*action.expect, self._any_prompt()]
        index, before, _ = await self._typed(f"{action.command}\n", patterns, action.timeout, action.command)
        output = self._taken(before)
        if action.is_interactive_quit:
            await self._finish("stty -echo", _SETTLE_S)
        else:
            output = output.lstrip().removeprefix(action.command).strip()
        return BashObservation(output=output, exit_code=0, expect_string=_name_of(action.expect, index))

    async def interrupt(self, expect: Sequence[str], timeout_s: float, tries: int) -> BashObservation:
        """Ctrl-C until the shell answers; what does not listen is stopped with Ctrl-Z and killed."""
        patterns = [*expect, self._any_prompt()]
        for _ in range(tries):
            try:
                index, before, _ = await self._typed("\x03", patterns, timeout_s, "^C")
            except CommandTimeoutError:
                continue
            more, _ = await self._finish("true", _SETTLE_S)
            return self._interrupted(before + more, expect, index)
        index, before, _ = await self._typed("\x1a", patterns, max(timeout_s, _SETTLE_S), "^Z")
        self._left, _ = await self._finish("kill -9 %1; wait %1", _SETTLE_S)  # told with the next, as in SWE-ReX
        return self._interrupted(before, expect, index)

    def _interrupted(self, output: str, expect: Sequence[str], index: int) -> BashObservation:
        text = self._clean(output).strip()
        return BashObservation(output=text, exit_code=0, expect_string=_name_of(expect, index))

    async def close(self) -> None:
        """Hang up: the shell and what it runs are killed."""
        terminal, self._terminal = self._terminal, None
        if terminal is not None:
            await terminal.close()

    # Lines and prompts

    async def _line_of(self, command: str) -> tuple[str, str]:
        """What to type for a command, in one line, and the pattern of the prompt that ends it."""
        if len(command) <= _LONGEST_LINE:
            script = _ansi_c_quoted(command)
        else:
            file = f"/tmp/.dsec-{secrets.token_hex(8)}"
            await self._sandbox.files.write(file, command, mode=0o600)
            script = f'"$(cat {file}; rm -f {file})"'
        return self._with_prompt(f"eval {script}")

    def _with_prompt(self, line: str) -> tuple[str, str]:
        self._number += 1
        word = f"{self._word}-{self._number}"
        return f'{line}; PS1="{word}:$? "\n', rf"{word}:(\d+) "

    def _any_prompt(self) -> str:
        return rf"{self._word}-\d+:(\d+) "

    async def _finish(self, line: str, timeout_s: float) -> tuple[str, int]:
        """Run a line of our own: (what came until its prompt, its exit code)."""
        typed, prompt = self._with_prompt(line)
        _, before, found = await self._typed(typed, [prompt], timeout_s, line)
        return self._clean(before), int(found[1])

    async def _typed(
        self, text: str, patterns: Sequence[str], timeout_s: float | None, what: str
    ) -> tuple[int, str, re.Match[str]]:
        """Type, and wait for one of the patterns; the failures are SWE-ReX's."""
        await self.terminal.type(text)
        try:
            return await self.terminal.expect(patterns, timeout_s)
        except TimeoutError:
            raise CommandTimeoutError(f"timeout after {timeout_s} seconds while running command {what!r}") from None
        except ShellEnded as error:
            raise NoExitCodeError(f"{error} while running command {what!r}") from None

    def _taken(self, text: str) -> str:
        left, self._left = self._left, ""
        return left + self._clean(text)

    def _clean(self, text: str) -> str:
        return re.sub(self._any_prompt(), "", _ESCAPES.sub("", text).replace("\r\n", "\n"))


def _name_of(expect: Sequence[str], index: int) -> str:
    return expect[index] if index < len(expect) else _PROMPT_NAME


def _ansi_c_quoted(text: str) -> str:
    """``text`` as one word of bash in one line without control characters."""
    plain = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t"}
    return "$'" + "".join(plain.get(one, one if one.isprintable() else _escaped(one)) for one in text) + "'"


def _escaped(one: str) -> str:
    return "".join(f"\\{byte:03o}" for byte in one.encode("utf-8", "surrogateescape"))
