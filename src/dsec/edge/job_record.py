"""What the edge remembers of a job, and who may act for it. Pure: the clock comes in from outside."""

from __future__ import annotations

import base64
import hashlib
from typing import Literal

import msgspec

from dsec.api.access import DEFAULT_PROJECT
from dsec.api.jobs import JobInfo, JobRequest, JobState
from dsec.errors import Conflict, Denied, Fenced

__all__ = ["Claim", "JobRecord", "acquired", "check_claim", "claim_of", "ended", "lease_of", "lost", "renewed"]


class Claim(msgspec.Struct, frozen=True):
    """In whose name a request comes: a job, and the fencing number of the holder that asks."""

    job: str
    fence: int
    project: str = DEFAULT_PROJECT


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A job: its holder, its lease, its limits. ``expires_at`` is the edge's view; the runtime's timer decides."""

    name: str
    project: str
    principal: str
    holder: str
    fence: int
    lease_s: float
    on_lost: Literal["stop", "pause"]
    max_live: int | None
    acquired_at: float
    expires_at: float
    lost_at: float | None = None
    ended_at: float | None = None

    @property
    def lease(self) -> str:
        """What its lease is called at the runtime."""
        return lease_of(self.project, self.name)

    @property
    def group(self) -> str:
        """Its place in the queue of creates."""
        return f"job:{self.name}"

    @property
    def claim(self) -> Claim:
        """Its present holder's."""
        return Claim(self.name, self.fence, self.project)

    def state(self, now: float) -> JobState:
        """Held, lost (its lease is over), or ended."""
        if self.ended_at is not None:
            return JobState.ENDED
        return JobState.LOST if self.lost_at is not None or now >= self.expires_at else JobState.HELD

    def info(self, now: float, *, live: int, queued: int) -> JobInfo:
        """The API's form."""
        return JobInfo(
            name=self.name, state=self.state(now), fence=self.fence, principal=self.principal, lease_s=self.lease_s,
            on_lost=self.on_lost, max_live=self.max_live, acquired_at=self.acquired_at, expires_at=self.expires_at,
            lost_at=self.lost_at, ended_at=self.ended_at, live=live, queued=queued, project=self.project,
        )  # fmt: skip


def acquired(known: JobRecord | None, request: JobRequest, principal: str, project: str, now: float) -> JobRecord:
    """The job in the hands of whoever asks; the same holder asking again keeps its number.

    A new number is larger than any that was given before, also where the former record is gone: it is at least the
    time. Raises Denied for another principal's job.
    """
    if known is not None and known.ended_at is None:
        if known.principal != principal:
            raise Denied(f"job {known.name} belongs to another principal", remedy="Choose another name")
        if known.holder == request.holder:
            return renewed(msgspec.structs.replace(known, max_live=request.max_live), now)
    return JobRecord(
        name=request.name, project=project, principal=principal, holder=request.holder,
        fence=max(int(now * 1000), known.fence + 1 if known is not None else 0), lease_s=request.lease_s,
        on_lost=request.on_lost, max_live=request.max_live, acquired_at=now, expires_at=now + request.lease_s,
    )  # fmt: skip


def renewed(record: JobRecord, now: float) -> JobRecord:
    """Its holder lives. A lease that was over begins anew: nobody else has taken the job meanwhile."""
    return msgspec.structs.replace(record, expires_at=now + record.lease_s, lost_at=None)


def lost(record: JobRecord, fence: int, at: float) -> JobRecord:
    """The lease of this holder is over."""
    return msgspec.structs.replace(record, lost_at=at) if record.fence == fence else record


def ended(record: JobRecord, now: float) -> JobRecord:
    """Nobody holds it any more."""
    return record if record.ended_at is not None else msgspec.structs.replace(record, ended_at=now)


def check_claim(record: JobRecord | None, claim: Claim, principal: str, *, ended_too: bool = False) -> JobRecord:
    """The record of a job for its present holder; raises Fenced for every other, Denied for another principal.

    ``ended_too``: the last holder of a job that has ended may pass.
    """
    if record is None:
        raise _fenced(claim, "the job is over and forgotten")
    if record.principal != principal:
        raise Denied(f"job {claim.job} belongs to another principal")
    if claim.fence < record.fence:
        raise _fenced(claim, "it has a newer holder")
    if claim.fence > record.fence:
        raise Conflict(f"job {claim.job} never had a holder with the number {claim.fence}", phase="job")
    if record.ended_at is not None and not ended_too:
        raise _fenced(claim, "the job has ended")
    return record


def _fenced(claim: Claim, why: str) -> Fenced:
    return Fenced(
        f"job {claim.job}: {why}", phase="job", remedy="End this process: another acts for the job, or nobody does",
        job=claim.job, fence=claim.fence,
    )  # fmt: skip


def lease_of(project: str, job: str) -> str:
    """Under which name the runtime holds the lease of a project's job: it knows jobs, and no projects.

    Jobs of two projects may have one name, so that outside the default project it is a hash of both. Nobody's job
    begins with ``_.``.
    """
    if project == DEFAULT_PROJECT:
        return job
    digest = hashlib.sha256(f"{project}/{job}".encode()).digest()
    return "_." + base64.b32encode(digest[:20]).decode().lower()


def claim_of(header: str | None, project: str = DEFAULT_PROJECT) -> Claim | None:
    """``NAME;NUMBER``, the header ``dsec-job`` of every request of a job's holder; raises Conflict."""
    if header is None:
        return None
    name, _, number = header.rpartition(";")
    if not name or not number.isascii() or not number.isdigit():
        raise Conflict(f"the header dsec-job is NAME;NUMBER, not {header[:80]!r}", phase="job")
    return Claim(name, int(number), project)
