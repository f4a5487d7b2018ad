"""One create under way, who waits for it, and what its callers are told when it comes to nothing."""

from __future__ import annotations

import asyncio

from dsec.api.types import CreateRequest
from dsec.edge.admission import ASKED_AS
from dsec.edge.record import SandboxRecord
from dsec.errors import CapacityError, Conflict, DeadlineExceeded, DSecError

__all__ = ["Attempt", "Cancelled", "full", "key_conflict", "too_late"]

_RETRY_AFTER_S = 1.0


class Cancelled(Conflict):
    """The key was cancelled before or while its create ran."""


class Attempt:
    """One create under way, and who waits for it."""

    def __init__(
        self, request: CreateRequest, principal: str, project: str, body: bytes, sandbox_id: str, deadline: float
    ) -> None:
        self.request = request
        self.principal = principal
        self.project = project
        self.body = body
        self.sandbox_id = sandbox_id
        self.deadline = deadline
        self.phase = "check"
        self.waiters = 0
        self._loop = asyncio.get_running_loop()
        self.done: asyncio.Future[SandboxRecord | DSecError] = self._loop.create_future()
        self.task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = self._loop.call_at(deadline, self._late)
        self.given_up: DSecError | None = None
        """Set before the task is cancelled on purpose; a cancellation without it is the edge's own end."""

    def extend(self, deadline: float) -> None:
        """Somebody who joined waits longer."""
        if deadline > self.deadline:
            self.deadline = deadline
            if self._timer is not None:
                self._timer.cancel()
                self._timer = self._loop.call_at(deadline, self._late)

    def in_time(self) -> None:
        """It has an outcome: the deadline ends it no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        self.give_up(too_late(self))

    def give_up(self, error: DSecError) -> None:
        """End the attempt with this error."""
        if self.given_up is None and self.task is not None and not self.done.done():
            self.given_up = error
            self.task.cancel()


def key_conflict(key: str) -> Conflict:
    """The key of another create."""
    return Conflict(f"the key {key!r} was used for another create", remedy="Use a new key for a new request")


def full(field: str, waiting: int) -> CapacityError:
    """No room now, for a caller that does not wait."""
    return CapacityError(
        "the job has as many live sandboxes as its max_live"
        if field == "max_live"
        else f"the node is full ({ASKED_AS[field][0]}); {waiting} creates wait",
        phase="admission",
        retry_after_s=_RETRY_AFTER_S,
        remedy="Wait (on_full='wait'), stop sandboxes, or ask for a smaller request",
        position=waiting,
        field=field,
    )


def too_late(attempt: Attempt) -> DSecError:
    """The deadline passed, in whatever phase it was."""
    if attempt.phase == "admission":
        return CapacityError(
            "the node was full until the deadline", phase="admission", retry_after_s=_RETRY_AFTER_S,
            remedy="Stop sandboxes, ask for a smaller request, or raise deadline_s",
        )  # fmt: skip
    return DeadlineExceeded(
        f"the deadline of {attempt.request.deadline_s:g} s passed in phase {attempt.phase}", phase=attempt.phase,
        remedy="The same key joins what is still under way; or raise deadline_s",
    )  # fmt: skip
