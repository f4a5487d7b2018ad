"""Imports in flight: one for each image, however many wait for it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

from dsec.images.catalogue import Image
from dsec.images.disk import full_disk_typed
from dsec.images.progress import OnProgress, Progress, Reporter
from dsec.images.running import Running

__all__ = ["Jobs", "Work", "reported"]

Work = Callable[[Reporter], Awaitable[Image]]
"""What a job does, telling how far it is."""


class Jobs:
    """Owns the tasks of all joined imports.

    A caller that goes away leaves the job running: whoever asks next joins it. ``aclose`` ends them all.
    """

    def __init__(self) -> None:
        self._running: Running[Image] = Running("import")
        self._reporters: dict[str, Reporter] = {}

    async def join(self, key: str, work: Work, progress: OnProgress | None, *, deadline: float = math.inf) -> Image:
        """Wait for the job of that key, starting it if there is none.

        The job hears of the ``deadline``, the caller's own by the event loop's time, and goes on beyond it.
        """
        task, report = self.start(key, work)
        if progress is not None:
            report.add(progress)
        try:
            with report.waited_for(deadline):
                return await asyncio.shield(task)
        finally:
            if progress is not None:
                report.discard(progress)

    def start(self, key: str, work: Work) -> tuple[asyncio.Task[Image], Reporter]:
        """Start the job of that key, if there is none."""
        task = self._running.get(key)
        if task is None:
            report = self._reporters[key] = Reporter()
            task = self._running.start(key, lambda: reported(work, report))
            task.add_done_callback(lambda _: self._reporters.pop(key))
        return task, self._reporters[key]

    async def aclose(self) -> None:
        """Cancel all jobs and wait until their traces are gone."""
        await self._running.aclose()


async def reported(work: Work, report: Reporter) -> Image:
    """Do the work, and report its end too."""
    with full_disk_typed():
        image = await work(report)
    report(Progress(image.reference, "done", image.bytes, image.bytes, len(image.layers), len(image.layers)))
    return image
