"""Progress of imports and builds on standard error: a bar on a terminal, a line for each phase elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

from dsec.cli.values import size

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from dsec.api.images import ImageProgress

__all__ = ["ProgressLines"]


class ProgressLines:
    """Shows ImageProgress steps of one import, or of several by name; a context manager."""

    def __init__(self, title: str, *, quiet: bool = False) -> None:
        self._title = title
        self._quiet = quiet
        self._phases: dict[str, str] = {}
        self._bar: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> ProgressLines:
        if not self._quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[amount]}"))
            self._bar = Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True))
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, step: ImageProgress) -> None:
        """Show one step."""
        self.show_of(self._title, step)

    def show_of(self, title: str, step: ImageProgress) -> None:
        """Show one step of what has this title."""
        if self._bar is not None:
            if title not in self._tasks:
                self._tasks[title] = self._bar.add_task(title, total=None, amount="")
            self._bar.update(
                self._tasks[title],
                description=f"{title}: {step.phase}",
                completed=step.done,
                total=step.total or None,
                amount=_amount(step),
            )
        elif not self._quiet and step.phase != self._phases.get(title):
            self._phases[title] = step.phase
            detail = "" if step.detail in title else step.detail
            print(f"{title}: {step.phase} {detail}".rstrip(), file=sys.stderr)


def _amount(step: ImageProgress) -> str:
    if step.unit == "bytes":
        done, total = size(step.done), size(step.total)
    else:
        done, total = str(step.done), f"{step.total} {step.unit}"
    if not step.done and not step.total:
        return step.detail
    return f"{done} / {total}" if step.total else done
