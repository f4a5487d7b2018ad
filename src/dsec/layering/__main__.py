"""``python -m dsec.layering DIRECTORY``: make the layer that the file ``job`` in the directory describes, in there.

The answer, or the error, is a line of JSON on standard output. On standard error stand lines ``read BYTES``, a few
each second.
"""

from __future__ import annotations

import errno
import sys
import time
from pathlib import Path

import msgspec

from dsec.errors import DSecError, NodeError
from dsec.layering.job import JOB, Answer, Failed, Job
from dsec.layering.making import make

__all__ = ["main"]

_TELL_S = 0.25
_FULL = (errno.ENOSPC, errno.EDQUOT)


class _Progress:
    def __init__(self) -> None:
        self._next = 0.0

    def __call__(self, done: int) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _TELL_S
            sys.stderr.write(f"read {done}\n")
            sys.stderr.flush()


def _answer(directory: Path) -> Answer:
    try:
        job = msgspec.json.decode((directory / JOB).read_bytes(), type=Job)
        (directory / JOB).unlink()
        return make(job.source, directory, _Progress())
    except DSecError as error:
        return Failed(error.to_wire())
    except OSError as error:
        failed = NodeError(f"making a layer failed: {error}", phase="image")
        return Failed(failed.to_wire(), disk_full=error.errno in _FULL)


def main() -> None:
    """Do the job of the command line."""
    sys.stdout.buffer.write(msgspec.json.encode(_answer(Path(sys.argv[1]))) + b"\n")


if __name__ == "__main__":
    main()
