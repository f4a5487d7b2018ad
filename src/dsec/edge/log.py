"""Where the edge's own lines go: to a file, or, when its disk is full, nowhere."""

from __future__ import annotations

import contextlib
from typing import TextIO

import structlog

__all__ = ["configure_log"]


def configure_log(file: TextIO) -> None:
    """One JSON object a line. A line that the file does not take is lost: nobody fails who only tells something."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=lambda *_: _Lines(file),
        cache_logger_on_first_use=True,
    )


class _Lines(structlog.PrintLogger):
    def msg(self, message: str) -> None:
        with contextlib.suppress(OSError):
            super().msg(message)

    log = debug = info = warn = warning = error = err = fatal = critical = exception = failure = msg
