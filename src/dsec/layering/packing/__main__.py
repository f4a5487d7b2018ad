"""``python -m dsec.layering.packing DIRECTORY --snapshot ID``: pack what descriptor 3 is as the file ``job`` says.

The answer, or the error, is a line of JSON on standard output. The ID is for whoever reads the command line: what is
packed comes by the descriptor, and there is no other way to it from here.
"""

from __future__ import annotations

import errno
import sys
from pathlib import Path

import msgspec

from dsec.errors import DSecError, NodeError
from dsec.layering.packing.job import JOB, SNAPSHOT_FD, Answer, PackFailed, PackJob
from dsec.layering.packing.packing import pack

__all__ = ["main"]

_FULL = (errno.ENOSPC, errno.EDQUOT)


def _answer(directory: Path) -> Answer:
    try:
        job = msgspec.json.decode((directory / JOB).read_bytes(), type=PackJob)
        (directory / JOB).unlink()
        return pack(job, SNAPSHOT_FD, directory)
    except DSecError as error:
        return PackFailed(error.to_wire())
    except OSError as error:
        failed = NodeError(f"packing failed: {error}", phase="pack")
        return PackFailed(failed.to_wire(), disk_full=error.errno in _FULL)


def main() -> None:
    """Do the job of the command line."""
    sys.stdout.buffer.write(msgspec.json.encode(_answer(Path(sys.argv[1]))) + b"\n")


if __name__ == "__main__":
    main()
