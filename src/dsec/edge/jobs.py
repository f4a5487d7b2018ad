"""Jobs: taken, renewed, lost, ended. The record is committed first, then mirrored to the runtime's timers."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator

import structlog

from dsec.api import ids
from dsec.api.jobs import JobInfo, JobRequest
from dsec.api.types import StopFailure, StopReport
from dsec.backends.contract import JobLost, Leasing
from dsec.edge import job_record
from dsec.edge.attempt import Attempt
from dsec.edge.caller import calling
from dsec.edge.core import Core
from dsec.edge.creates import Creates
from dsec.edge.ends import Ends
from dsec.edge.faults import fault
from dsec.edge.job_record import Claim, JobRecord, check_claim
from dsec.edge.specs import whole_ms
from dsec.errors import Conflict, DSecError, Fenced, InvalidArgument, NodeError, NotFound, Unsupported

__all__ = ["Jobs"]

_log = structlog.get_logger("dsec.edge.jobs")
_LEAST_LEASE_S, _MOST_LEASE_S = 1.0, 86400.0


class Jobs:
    """All jobs of the node. ``cut`` ends the WebSockets of claims that are no longer good."""

    def __init__(self, core: Core, creates: Creates, ends: Ends, cut: Callable[[JobRecord], None]) -> None:
        self._core = core
        self._creates = creates
        self._ends = ends
        self._cut = cut

    @property
    def _backend(self) -> Leasing:
        backend = self._core.backend
        if not isinstance(backend, Leasing):
            raise Unsupported("this kind of sandbox has no jobs")
        return backend

    def adopt(self) -> None:
        """The limits of this boot's jobs count again."""
        for record in self._core.records.jobs():
            if record.ended_at is None:
                self._core.limit(record)

    # Holding

    async def acquire(self, request: JobRequest, principal: str) -> JobInfo:
        """Take a job, new or from its former holder, who is fenced from the moment of the commit."""
        _check(request)
        core = self._core
        project = calling().home
        known = core.records.job(project, request.name)
        record = job_record.acquired(known, request, principal, project, core.clock())
        core.records.save_job(record)
        fault("edge.lease.committed")
        if known is None or known.fence != record.fence:
            core.counters["job", "acquired"] += 1
            self._fence(record)
        core.limit(record)
        await self._mirror(record)
        fault("edge.lease.mirrored")
        return self.info(record)

    async def renew(self, claim: Claim, principal: str) -> JobInfo:
        """A sign of life; raises Fenced."""
        record = job_record.renewed(self.check(claim, principal), self._core.clock())
        self._core.records.save_job(record)
        fault("edge.renew.committed")
        await self._mirror(record)
        fault("edge.renew.mirrored")
        return self.info(record)

    async def admit(self, claim: Claim, principal: str) -> None:
        """A create is a sign of life too: without it, a lease that is over would refuse what its holder asks."""
        record = self.check(claim, principal)
        if record.state(self._core.clock()) != "held":
            await self.renew(claim, principal)

    def check(self, claim: Claim, principal: str, *, ended_too: bool = False) -> JobRecord:
        """The job, for its present holder; raises Fenced or Denied."""
        return check_claim(self._core.records.job(claim.project, claim.job), claim, principal, ended_too=ended_too)

    async def _mirror(self, record: JobRecord) -> None:
        left_s = record.expires_at - self._core.clock()
        await self._core.link.wait_up(5.0)
        lease_ms = whole_ms(max(left_s, 0.001))
        await self._backend.lease(record.lease, fence=record.fence, lease_ms=lease_ms, on_lost=record.on_lost)

    def _fence(self, record: JobRecord) -> None:
        """Whatever older holders have under way ends here."""
        self._cut(record)
        for attempt in self._under_way(record):
            if attempt.phase in ("check", "image", "admission"):
                attempt.give_up(Fenced(f"job {record.name} has a newer holder", phase="job", job=record.name))

    def _under_way(self, record: JobRecord) -> list[Attempt]:
        attempts = self._creates.under_way.values()
        return [each for each in attempts if (each.project, each.request.job) == (record.project, record.name)]

    # Looking

    def _seen(self) -> Iterator[JobRecord]:
        caller = calling()
        return (each for each in self._core.records.jobs() if caller.sees(each.project))

    def find(self, name: str) -> JobRecord:
        """A job of the caller's by name, in their own project first; raises NotFound."""
        caller = calling()
        record = self._core.records.job(caller.home, name)
        if record is None:
            record = next((each for each in self._seen() if each.name == name), None)
        if record is None:
            raise NotFound(f"no job {name[:80]!r} on this node", remedy="`dsec job ls` lists them")
        return record

    def info(self, record: JobRecord) -> JobInfo:
        """The API's form, with what lives and waits now."""
        admission, whose = self._core.admission, (record.project, record.group)
        return record.info(self._core.clock(), live=admission.live(whose), queued=admission.waiting(whose))

    def list(self) -> list[JobInfo]:
        """The caller's, in the order of their names."""
        return [self.info(record) for record in self._seen()]

    # Ending

    async def stop(self, name: str, principal: str, claim: Claim | None) -> StopReport:
        """End a job: its holder is fenced, what it queues leaves, its sandboxes are stopped, its lease goes.

        ``claim``: of a holder, who may only end what is still its own.
        """
        if claim is not None and claim.job != name:
            raise InvalidArgument(f"the request is job {claim.job}'s, not {name}'s")
        record = self.find(name)
        check_claim(record, claim or record.claim, principal, ended_too=True)
        record = job_record.ended(record, self._core.clock())
        self._core.records.save_job(record)
        fault("edge.release.committed")
        self._fence(record)
        report = await self._stop_sandboxes(record, principal)
        if not report.failed and self._core.records.job(record.project, name) == record:
            self._core.limit(record)
            with contextlib.suppress(NodeError, Conflict):  # its lease ends what there still is
                await self._backend.end_job(record.lease)
                fault("edge.release.ended")
        return report

    async def _stop_sandboxes(self, record: JobRecord, actor: str) -> StopReport:
        stopped: list[str] = []
        failed: list[StopFailure] = []
        while True:
            # What was being started when the job ended is stopped in the next round.
            starting = [each.done for each in self._under_way(record)]
            core = self._core
            own = (record.project, record.name)
            live = [each for each in core.live.values() if (each.project, each.job) == own and each.id not in stopped]
            report = await self._ends.stop_many(live, actor=actor)
            stopped += report.stopped
            failed += report.failed
            if not starting or failed:
                return StopReport(stopped=stopped, failed=failed)
            await asyncio.wait(starting)

    # What happens by itself

    def note(self, event: JobLost) -> None:
        """The runtime says that a lease is over."""
        known = next((each for each in self._core.records.jobs() if each.lease == event.job), None)
        if known is not None and known.ended_at is None:
            record = job_record.lost(known, event.fence, event.at)
            if record is not known:
                self._core.records.save_job(record)
                fault("edge.expire.noted")
                self._core.counters["job", "lost"] += 1
                _log.warning("the lease of a job is over", job=event.job, fence=event.fence)

    async def mirror_all(self) -> None:
        """The runtime may be another one, after a keeper's death: what is held is held there too."""
        for record in self._core.records.jobs():
            if record.state(self._core.clock()) == "held":
                try:
                    await self._mirror(record)
                except NodeError:
                    raise
                except DSecError as error:
                    _log.warning("a lease could not be mirrored", job=record.name, error=error.message)

    async def reap(self, before: float) -> None:
        """Forget jobs that ended or were lost long ago and have no sandbox, the runtime's leases too."""
        core = self._core
        for record in core.records.jobs():
            over_at = record.ended_at or record.lost_at
            if over_at is not None and over_at < before and not core.admission.live((record.project, record.group)):
                await self._backend.end_job(record.lease)
                if core.records.job(record.project, record.name) is record:
                    core.records.remove_job(record.project, record.name)


def _check(request: JobRequest) -> None:
    ids.check_job(request.name)
    ids.check_key(request.holder)
    if not (math.isfinite(request.lease_s) and _LEAST_LEASE_S <= request.lease_s <= _MOST_LEASE_S):
        raise InvalidArgument(f"lease_s must be {_LEAST_LEASE_S:g} to {_MOST_LEASE_S:g}, not {request.lease_s:g}")
    if request.max_live is not None and request.max_live < 1:
        raise InvalidArgument(f"max_live must be at least 1, not {request.max_live}")
