"""This process's own terminal: raw while it shows another, its size, and the keys that leave it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

from dsec.api.types import Pty
from dsec.errors import DSecError, InvalidArgument

__all__ = [
    "DEFAULT_DETACH_KEYS",
    "Keys",
    "detach_keys",
    "following_size",
    "raw",
    "require_terminal",
    "say_detached",
    "size",
]

DEFAULT_DETACH_KEYS = "ctrl-p,ctrl-q"
_NAMED = {"@": 0, "[": 27, "\\": 28, "]": 29, "^": 30, "_": 31}


def require_terminal() -> None:
    """Raise InvalidArgument, in Docker's words, when standard input is no terminal."""
    if not os.isatty(0):
        raise InvalidArgument(
            "the input device is not a TTY", phase="terminal", remedy="Leave -t out; -i alone passes any input on"
        )


def size() -> Pty:
    """The size of this terminal, or 24 × 80 where there is none."""
    for descriptor in (1, 0, 2):
        with suppress(OSError):
            found = os.get_terminal_size(descriptor)
            if found.lines > 0 and found.columns > 0:
                return Pty(found.lines, found.columns)
    return Pty()


@contextmanager
def raw() -> Iterator[None]:
    """Keys go through as bytes, Ctrl-C too; the settings come back however the block is left."""
    before = termios.tcgetattr(0)
    try:
        tty.setraw(0, termios.TCSADRAIN)
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


@contextmanager
def following_size(resize: Callable[[int, int], Awaitable[None]]) -> Iterator[None]:
    """Tell every change of this terminal's size, the last one for certain."""
    loop = asyncio.get_running_loop()
    changed = asyncio.Event()

    async def follow() -> None:
        told = size()
        while True:
            await changed.wait()
            changed.clear()
            now = size()
            if now != told:
                with suppress(DSecError):  # a program that has ended has no terminal any more
                    await resize(now.rows, now.cols)
                told = now

    task = loop.create_task(follow())
    loop.add_signal_handler(signal.SIGWINCH, changed.set)
    changed.set()
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
        task.cancel()


def detach_keys(text: str) -> bytes:
    """Docker's notation, ``ctrl-p,ctrl-q`` or single characters; raises InvalidArgument."""
    keys = bytearray()
    for word in text.split(","):
        name = word.lower().removeprefix("ctrl-")
        if len(word) == 1 and word.isascii():
            keys.append(ord(word))
        elif name != word.lower() and len(name) == 1 and "a" <= name <= "z":
            keys.append(ord(name) - ord("a") + 1)
        elif name != word.lower() and name in _NAMED:
            keys.append(_NAMED[name])
        else:
            raise InvalidArgument(
                f"no such key: {word!r}", remedy="Write --detach-keys as ctrl-p,ctrl-q, or a character"
            )
    return bytes(keys)


class Keys:
    """Looks for the sequence that detaches in what is typed. What may begin it is held back until it does not."""

    def __init__(self, sequence: bytes) -> None:
        self._sequence = sequence
        self._held = b""

    def take(self, typed: bytes) -> tuple[bytes, bool]:
        """(what is for the program, whether the sequence is complete); what follows that is nobody's."""
        out = bytearray()
        for key in typed:
            self._held += bytes([key])
            while not self._sequence.startswith(self._held):
                out += self._held[:1]
                self._held = self._held[1:]
            if self._held == self._sequence:
                return bytes(out), True
        return bytes(out), False


def say_detached(sandbox_id: str, exec_id: str) -> None:
    """How to come back, on standard error."""
    print(f"\r\ndsec: detached; `dsec attach {sandbox_id} {exec_id}` comes back", file=sys.stderr)
