"""Chunks of bytes through threads: what makes them, what looks at them and what keeps them, each at its own pace."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

__all__ = ["ahead", "beside"]

_DEPTH = 8


def ahead(chunks: Iterable[bytes]) -> Generator[bytes, None, None]:
    """The same chunks, made in a thread up to 8 chunks ahead of who takes them; close it to end the thread."""
    made: queue.Queue[bytes | BaseException | None] = queue.Queue(_DEPTH)
    left = threading.Event()

    def put(item: bytes | BaseException | None) -> None:
        while not left.is_set():
            with contextlib.suppress(queue.Full):
                made.put(item, timeout=0.2)
                return

    def make() -> None:
        try:
            for chunk in chunks:
                put(chunk)
                if left.is_set():
                    return
            put(None)
        except BaseException as error:
            put(error)

    thread = threading.Thread(target=make, daemon=True)
    thread.start()
    try:
        while (item := made.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        left.set()
        thread.join()


def beside(chunks: Iterable[bytes], *sinks: Callable[[bytes], object]) -> Generator[bytes, None, None]:
    """The same chunks; each also goes to every sink, in order, in a thread of its own.

    When the last chunk is taken, or an error leaves through here, all sinks have seen all chunks up to there. A
    sink's error is raised here.
    """
    with contextlib.ExitStack() as stack:
        pools = [stack.enter_context(ThreadPoolExecutor(1)) for _ in sinks]
        waiting: list[Future[object]] = []
        for chunk in chunks:
            waiting += [pool.submit(sink, chunk) for pool, sink in zip(pools, sinks, strict=True)]
            while len(waiting) > _DEPTH * len(sinks):
                waiting.pop(0).result()
            yield chunk
        for each in waiting:
            each.result()
