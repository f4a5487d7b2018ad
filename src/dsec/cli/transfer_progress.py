"""How far a copy is, on standard error: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

from dsec.cli.values import size

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["TransferBar"]

_TITLE = 40
"""Characters of a path that are shown, its last ones: what matters, the amount, has to fit beside it."""


class TransferBar:
    """A context manager; ``show`` may be called from any thread. ``total`` None: only the amount is shown."""

    def __init__(self, title: str, *, total: int | None, quiet: bool) -> None:
        self._title = title if len(title) <= _TITLE else "…" + title[1 - _TITLE :]
        self._total = total
        self._quiet = quiet or not sys.stderr.isatty()
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> TransferBar:
        if not self._quiet:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TransferSpeedColumn

            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[amount]}"))
            self._bar = Progress(*columns, TransferSpeedColumn(), console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task(self._title, total=self._total, amount="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, arrived: int) -> None:
        """So many bytes of the archive have arrived."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=arrived, amount=size(arrived))
