"""What users get back: results, events, created sandboxes."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, TypeVar

from dsec.api import types
from dsec.api.images import ImageInfo
from dsec.api.types import Ended, ExecUsage
from dsec.errors import DSecError, ExecFailed, ExecTimeout, InvalidArgument

__all__ = [
    "Created", "ExecResult", "ExecStarted", "Exited", "Gap", "ImageReady", "Kept", "Output", "ProofOfDeath",
    "Stderr", "Stdout", "Stopped",
]  # fmt: skip

S = TypeVar("S")


@dataclass(frozen=True)
class Stdout:
    """Bytes of standard output, at their absolute offset."""

    data: bytes
    offset: int


@dataclass(frozen=True)
class Stderr:
    """Bytes of standard error, at their absolute offset."""

    data: bytes
    offset: int


@dataclass(frozen=True)
class Gap:
    """Bytes from ``start`` up to ``end`` of a stream that are not kept any more; what follows is exact again."""

    stream: str
    start: int
    end: int


@dataclass(frozen=True)
class Exited:
    """The end of an exec.

    ``exit_code`` is None unless ``ended`` is exited; ``signal`` is the number that killed it.
    """

    exit_code: int | None
    signal: int | None
    ended: Ended
    oom_kills: int
    quota_hits: frozenset[str]
    duration_s: float


@dataclass(frozen=True)
class ExecStarted:
    """Before the output of each exec in ``logs``. ``argv`` is text, undecodable bytes escaped."""

    exec_id: str
    argv: tuple[str, ...]
    started_at: float


@dataclass(frozen=True)
class Kept:
    """What was kept of one output stream: pieces (offset, bytes) in order, normally all of it or head and tail."""

    pieces: tuple[tuple[int, bytes], ...] = ()
    total_bytes: int = 0

    @property
    def kept_bytes(self) -> bytes:
        """The pieces joined, without a mark where bytes are missing."""
        return self.pieces[0][1] if len(self.pieces) == 1 else b"".join(piece for _, piece in self.pieces)

    @property
    def truncated(self) -> bool:
        """Whether bytes are missing."""
        return sum(len(piece) for _, piece in self.pieces) < self.total_bytes

    def text(self) -> str:
        """UTF-8 with replacement; wherever bytes are missing, a line says how many."""
        at, parts = 0, []
        for offset, piece in (*self.pieces, (self.total_bytes, b"")):
            if offset > at:
                parts.append(f"\n[… {offset - at} bytes cut here …]\n")
            parts.append(piece.decode("utf-8", "replace"))
            at = offset + len(piece)
        return "".join(parts)


@dataclass(frozen=True)
class Output:
    """Both output streams of an exec: as text (UTF-8 with replacement), as bytes, and how much there was.

    All of a stream, or head and tail of one longer than ``max_output_bytes``; the text says where it was cut.
    """

    stdout_kept: Kept = field(repr=False)
    stderr_kept: Kept = field(repr=False)
    merged: bool = field(default=False, kw_only=True)
    """Both went to one descriptor (``merge_stderr``, a terminal): ``stdout`` is all of it, in its true order."""

    @cached_property
    def stdout(self) -> str:
        """Standard output as text."""
        return self.stdout_kept.text()

    @cached_property
    def stderr(self) -> str:
        """Standard error as text."""
        return self.stderr_kept.text()

    @property
    def output(self) -> str:
        """Both streams in the order they were written; raises InvalidArgument unless they were merged."""
        self._check_merged()
        return self.stdout

    @property
    def stdout_bytes(self) -> bytes:
        """Standard output as kept, without a mark where it was cut."""
        return self.stdout_kept.kept_bytes

    @property
    def stderr_bytes(self) -> bytes:
        """Standard error as kept, without a mark where it was cut."""
        return self.stderr_kept.kept_bytes

    @property
    def output_bytes(self) -> bytes:
        """``output`` as kept, without a mark where it was cut."""
        self._check_merged()
        return self.stdout_bytes

    def _check_merged(self) -> None:
        if not self.merged:
            raise InvalidArgument(
                "standard output and error came apart, so that their order is not known",
                remedy="Run it with merge_stderr=True",
            )

    @property
    def stdout_total_bytes(self) -> int:
        """How much the program wrote."""
        return self.stdout_kept.total_bytes

    @property
    def stderr_total_bytes(self) -> int:
        """How much the program wrote."""
        return self.stderr_kept.total_bytes

    @property
    def truncated(self) -> bool:
        """Whether bytes of either stream are missing."""
        return self.stdout_kept.truncated or self.stderr_kept.truncated


@dataclass(frozen=True)
class ExecResult(Output):
    """How a program ended and what it said. A non-zero exit is data, not an error.

    ``oom_kills`` and ``quota_hits`` (of "disk", "pids") are facts beside the ending, since a child may be killed
    while its parent goes on. ``started_at`` and ``duration_s`` are by the host's clock.
    """

    exit_code: int | None
    signal: int | None
    ended: Ended
    oom_kills: int
    quota_hits: frozenset[str]
    started_at: float
    duration_s: float
    usage: ExecUsage
    sandbox_id: str
    exec_id: str

    @property
    def ok(self) -> bool:
        """Whether the program exited by itself with code 0."""
        return self.ended is Ended.EXITED and self.exit_code == 0

    def check(self) -> ExecResult:
        """Itself when ``ok``; else raises ExecTimeout or ExecFailed, whose ``result`` it is."""
        if self.ok:
            return self
        if self.ended is Ended.TIMEOUT:
            late = ExecTimeout(
                f"the program was killed by its timeout after {self.duration_s:.1f} s",
                sandbox_id=self.sandbox_id, exec_id=self.exec_id,
            )  # fmt: skip
            late.result = self
            raise late
        how = f"exited with {self.exit_code}" if self.exit_code is not None else f"was ended by signal {self.signal}"
        failed = ExecFailed(
            f"the program {how}: {self._last_words()}",
            sandbox_id=self.sandbox_id, exec_id=self.exec_id,
        )  # fmt: skip
        failed.result = self
        raise failed

    def _last_words(self) -> str:
        said = self.stdout if self.merged else self.stderr
        return said[-400:].strip() or f"nothing on standard {'output' if self.merged else 'error'}"


@dataclass(frozen=True)
class ProofOfDeath:
    """What the node saw when it looked: ``processes`` (0) left in the cgroup, after ``waited_s``."""

    processes: int
    waited_s: float


@dataclass(frozen=True)
class Stopped:
    """A confirmed stop."""

    id: str
    cause: str
    ended_at: float
    proof_of_death: ProofOfDeath
    usage: types.Usage
    kept_until: float | None = None
    """Unix time until which its disk is kept, with ``keep="disk"``."""


@dataclass(frozen=True)
class ImageReady:
    """An image that is there now, under the name that was asked for, after so long."""

    reference: str
    image: ImageInfo
    took_s: float


@dataclass(frozen=True)
class Created(Generic[S]):
    """One of many creates: its place in the order asked, its key, and either the sandbox or the error."""

    index: int
    key: str
    sandbox: S | None
    error: DSecError | None
