"""Two sockets whose bytes pass from each to the other inside the kernel.

For connections that carry gigabytes: ``splice`` moves them without a copy into this process. What a side does not
take holds the other back, as it does with transports.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Callable

__all__ = ["Joined", "descriptor_of"]

_TURN = 1 << 20
"""Most bytes that are moved before the loop's other work has its turn: what the pipe between them holds."""
_MOST_LARGE = 32
"""Pipes of that size. A user who is not root has 64 MiB in all: who comes later gets the usual 64 KiB of them."""
_FLAGS = os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE


def descriptor_of(transport: asyncio.BaseTransport) -> int:
    """The number of a transport's socket."""
    number: int = transport.get_extra_info("socket").fileno()
    return number


class Joined:
    """Begins at once. ``over`` is called, once, when either side has ended or is broken; ``close`` follows it.

    The transports that own the sockets must not read, and must have nothing left to write: ``first`` and ``back`` are
    sent before all else, to the other socket and to the one. Raises OSError when no descriptor is left: then it holds
    none.
    """

    def __init__(self, one: int, other: int, first: bytes, back: bytes, over: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._told = over
        self._over = False
        with contextlib.ExitStack() as undo:
            # Numbers of its own: the loop lets nobody else wait for those of its transports.
            self._ends = (_copy(one, undo), _copy(other, undo))
            there = _Way(self._loop, self._ends[0], self._ends[1], first, self._ended)
            undo.callback(there.close)
            back_again = _Way(self._loop, self._ends[1], self._ends[0], back, self._ended)
            undo.pop_all()
        self._ways = (there, back_again)
        for way in self._ways:
            way.begin()

    def _ended(self) -> None:
        if not self._over:
            self._over = True
            self._loop.call_soon(self._told)

    def close(self) -> None:
        """Let go of both sockets."""
        self._over = True
        for way in self._ways:
            way.close()
        ends, self._ends = self._ends, (-1, -1)
        for end in ends:
            if end >= 0:
                os.close(end)


def _copy(fd: int, undo: contextlib.ExitStack) -> int:
    copy = os.dup(fd)
    undo.callback(os.close, copy)
    return copy


class _Way:
    """One direction."""

    _large = 0
    """How many of the process have a large pipe."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, source: int, target: int, first: bytes, over: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._source = source
        self._target = target
        self._first = memoryview(first)
        self._over = over
        self._held = 0
        self._blocked = False
        self._closed = False
        self._out, self._in = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._is_large = False
        if _Way._large < _MOST_LARGE:
            with contextlib.suppress(OSError):  # the node's user has much in pipes: it works with less
                fcntl.fcntl(self._in, fcntl.F_SETPIPE_SZ, _TURN)
                self._is_large = True
                _Way._large += 1

    def begin(self) -> None:
        self._loop.add_reader(self._source, self._readable)
        self._pass_on()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._stop()
        os.close(self._in)
        os.close(self._out)
        if self._is_large:
            _Way._large -= 1

    def _stop(self) -> None:
        self._loop.remove_reader(self._source)
        if self._blocked:
            self._loop.remove_writer(self._target)

    def _end(self) -> None:
        self._stop()
        self._over()

    def _readable(self) -> None:
        try:
            self._held = os.splice(self._source, self._in, _TURN, flags=_FLAGS)
        except BlockingIOError:
            return
        except OSError:
            self._end()
            return
        if self._held:
            self._pass_on()
        else:
            self._end()

    def _writable(self) -> None:
        self._pass_on()

    def _pass_on(self) -> None:
        try:
            while self._first:
                self._first = self._first[os.write(self._target, self._first) :]
            while self._held:
                self._held -= os.splice(self._out, self._target, self._held, flags=_FLAGS)
        except BlockingIOError:
            self._block(True)
        except OSError:
            self._end()
        else:
            self._block(False)

    def _block(self, blocked: bool) -> None:
        if blocked == self._blocked:
            return
        self._blocked = blocked
        if blocked:
            self._loop.remove_reader(self._source)
            self._loop.add_writer(self._target, self._writable)
        else:
            self._loop.remove_writer(self._target)
            self._loop.add_reader(self._source, self._readable)
