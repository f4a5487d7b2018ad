"""Tools for tests: each program is a function."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from dsec.images.tools import ToolResult, not_installed

__all__ = ["FakeTools"]

Log = Callable[[str], None]
Program = Callable[[Sequence[str], Log], Awaitable[ToolResult]]


class FakeTools:
    """Runs the given functions instead of programs, and remembers every call.

    ``programs`` maps the name of a run (``pull``, ``mkfs``, …) to its function; any other name is a program that is
    not installed.
    """

    def __init__(self, programs: Mapping[str, Program]) -> None:
        self._programs = dict(programs)
        self.calls: list[tuple[str, tuple[str, ...]]] = []

    async def run(
        self,
        name: str,
        argv: Sequence[str],
        *,
        timeout_s: float,
        log: Log | None = None,
        tool_id: str | None = None,
    ) -> ToolResult:
        """See ``Tools.run``."""
        self.calls.append((name, tuple(argv)))
        if name not in self._programs:
            raise not_installed(name, argv)
        return await self._programs[name](argv, log or (lambda _: None))
