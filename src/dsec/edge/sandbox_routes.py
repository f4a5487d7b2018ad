"""Routes of sandboxes and their execs."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from dsec.api.types import (
    CreateRequest,
    KillRequest,
    ResizeRequest,
    SandboxInfo,
    SandboxState,
    StopFilter,
    StopRequest,
    Usage,
)
from dsec.edge.caller import calling
from dsec.edge.core import Core
from dsec.edge.creates import Creates
from dsec.edge.ends import Ends
from dsec.edge.execs import Execs
from dsec.edge.job_record import claim_of
from dsec.edge.jobs import Jobs
from dsec.edge.kept import check_kept
from dsec.edge.life import RUNS
from dsec.edge.pausing import Pausing
from dsec.edge.record import SandboxRecord, info_of, stopped_of, usage_of
from dsec.edge.router import Route
from dsec.edge.specs import whole_ms
from dsec.edge.web import answered, body_as, disconnected, json_answer, principal_of, query_of
from dsec.errors import InvalidArgument, NotFound, Unsupported

__all__ = ["sandbox_routes"]

_LIVE = frozenset({"creating", "running", "paused"})
_ENDED = frozenset({"stopped", "lost"})
_CLIENT_GONE = 499


class _Sandboxes:
    """The answers."""

    def __init__(self, core: Core, creates: Creates, ends: Ends, execs: Execs, pausing: Pausing, jobs: Jobs) -> None:
        self._core = core
        self._creates = creates
        self._ends = ends
        self._execs = execs
        self._pausing = pausing
        self._jobs = jobs

    def _record(self, request: Request) -> SandboxRecord:
        return self._core.find(request.path_params["id"])

    async def create(self, request: Request) -> Response:
        asked = await body_as(request, CreateRequest)
        claim = claim_of(request.headers.get("dsec-job"), calling().home)
        if asked.job is not None:
            if claim is None or claim.job != asked.job:
                raise InvalidArgument("only its holder creates in a job: the header dsec-job is missing or another's")
            await self._jobs.admit(claim, principal_of(request))
        record = await self._creates.create(asked, principal_of(request), disconnected(request))
        return Response(status_code=_CLIENT_GONE) if record is None else json_answer(info_of(record))

    async def cancel(self, request: Request) -> Response:
        record = await self._creates.cancel(request.path_params["key"], principal_of(request))
        return json_answer({"sandbox_id": None if record is None else record.id})

    async def find(self, request: Request) -> Response:
        query = query_of(request, "state", "label", "name", "job", "mine")
        states = _states(query.get("state", []))
        labels = _labels(query.get("label", []))
        names, jobs = query.get("name", []), query.get("job", [])
        caller = calling()
        mine = caller.principal if query.get("mine", [""])[0].lower() in ("1", "true", "yes") else None
        found: list[SandboxInfo] = []
        if states & _LIVE:
            live = [each for each in self._core.live.values() if caller.sees(each.project)]
            found += [info_of(each) for each in live if _fits(each, states, labels, names, mine, jobs)]
        if states & _ENDED:
            ended = (each for each in self._core.records.ended() if caller.sees(each.project))
            found += [info_of(each) for each in ended if _fits(each, states, labels, names, mine, jobs)]
        return json_answer({"sandboxes": found})

    async def info(self, request: Request) -> Response:
        record = self._record(request)
        usage = None
        if record.state in RUNS:
            try:
                usage = await self._usage(record)
            except NotFound:
                usage = None  # it ends at this moment: its record has the last numbers
        return json_answer(info_of(record, usage))

    async def _usage(self, record: SandboxRecord) -> Usage:
        return usage_of(record, await self._core.backend.usage(record.id), self._core.clock())

    async def usage(self, request: Request) -> Response:
        record = self._record(request)
        if record.state in RUNS:
            return json_answer(await self._usage(record))
        usage = info_of(record).usage
        if usage is None:
            raise NotFound("nothing was measured yet", sandbox_id=record.id)
        return json_answer(usage)

    async def story(self, request: Request) -> Response:
        return json_answer({"story": self._record(request).story})

    async def stop(self, request: Request) -> Response:
        asked = await body_as(request, StopRequest)
        keep_ms = _keep_ms(asked, self._core.config.tombstone_s)
        record = self._record(request)
        grace_ms = _grace_ms(asked.grace_s)
        record = await self._ends.stop(record, actor=principal_of(request), grace_ms=grace_ms, keep_ms=keep_ms)
        if keep_ms is not None:
            check_kept(record)
        return json_answer(stopped_of(record))

    async def pause(self, request: Request) -> Response:
        return json_answer(await self._pausing.pause(self._record(request), actor=principal_of(request)))

    async def resume(self, request: Request) -> Response:
        await self._pausing.resume(self._record(request), actor=principal_of(request))
        return json_answer({})

    async def delete(self, request: Request) -> Response:
        query = query_of(request, "force")
        force = query.get("force", [""])[0].lower() in ("1", "true", "yes")
        await self._ends.delete(self._record(request), actor=principal_of(request), force=force)
        return json_answer({})

    async def stop_many(self, request: Request) -> Response:
        asked = await body_as(request, StopFilter)
        if not asked.mine and not asked.labels and asked.job is None:
            raise InvalidArgument("a filter is required", remedy="Give labels, a job, or mine=true")
        caller = calling()
        labels = asked.labels or {}
        jobs = [] if asked.job is None else [asked.job]
        own = [each for each in self._core.live.values() if caller.sees(each.project)]
        records = [each for each in own if _fits(each, _LIVE, labels, [], caller.principal, jobs)]
        return json_answer(await self._ends.stop_many(records, actor=caller.principal))

    async def execs(self, request: Request) -> Response:
        return json_answer({"execs": await self._execs.list(self._record(request))})

    async def exec(self, request: Request) -> Response:
        return json_answer(await self._execs.info(self._record(request), request.path_params["exec_id"]))

    async def kill(self, request: Request) -> Response:
        asked = await body_as(request, KillRequest)
        await self._execs.kill(self._record(request), request.path_params["exec_id"], asked)
        return json_answer({})

    async def resize(self, request: Request) -> Response:
        asked = await body_as(request, ResizeRequest)
        await self._execs.resize(self._record(request), request.path_params["exec_id"], asked.pty)
        return json_answer({})


def _grace_ms(grace_s: float) -> int:
    if not 0 <= grace_s <= 3600:
        raise InvalidArgument(f"grace_s must be between 0 and 3600, not {grace_s:g}")
    return whole_ms(grace_s)


def _keep_ms(asked: StopRequest, most_s: float) -> int | None:
    if asked.keep == "nothing":
        return None
    if asked.keep != "disk":
        raise Unsupported(f"keep={asked.keep[:40]!r}: there is nothing and disk")
    if not 0 < asked.keep_s <= most_s:
        raise InvalidArgument(f"keep_s must be above 0 and at most {most_s:g}, not {asked.keep_s:g}")
    return whole_ms(asked.keep_s)


def _states(asked: list[str]) -> frozenset[str]:
    names = {name for each in asked for name in each.split(",") if name}
    if not names:
        return _LIVE | _ENDED
    unknown = names - {str(each) for each in SandboxState}
    if unknown:
        raise InvalidArgument(f"unknown state {min(unknown)!r}")
    return frozenset(names)


def _labels(asked: list[str]) -> dict[str, str]:
    labels = {}
    for each in asked:
        name, separator, value = each.partition("=")
        if not name or not separator:
            raise InvalidArgument(f"a label filter is NAME=VALUE, not {each[:80]!r}")
        labels[name] = value
    return labels


def _fits(
    record: SandboxRecord,
    states: frozenset[str],
    labels: dict[str, str],
    names: list[str],
    principal: str | None,
    jobs: list[str],
) -> bool:
    return (
        record.state in states
        and (principal is None or record.principal == principal)
        and (not names or record.name in names)
        and (not jobs or record.job in jobs)
        and all(record.labels.get(name) == value for name, value in labels.items())
    )


def sandbox_routes(
    core: Core, creates: Creates, ends: Ends, execs: Execs, pausing: Pausing, jobs: Jobs
) -> list[Route]:
    """All of them."""
    own = _Sandboxes(core, creates, ends, execs, pausing, jobs)
    one = "/v1/sandboxes/{id}"
    return [
        Route("POST", "/v1/sandboxes", answered(own.create)),
        Route("GET", "/v1/sandboxes", answered(own.find)),
        Route("GET", one, answered(own.info)),
        Route("DELETE", one, answered(own.delete)),
        Route("POST", one + "/stop", answered(own.stop)),
        Route("POST", one + "/pause", answered(own.pause)),
        Route("POST", one + "/resume", answered(own.resume)),
        Route("GET", one + "/story", answered(own.story)),
        Route("GET", one + "/usage", answered(own.usage)),
        Route("GET", one + "/execs", answered(own.execs)),
        Route("GET", one + "/execs/{exec_id}", answered(own.exec)),
        Route("POST", one + "/execs/{exec_id}/kill", answered(own.kill)),
        Route("POST", one + "/execs/{exec_id}/resize", answered(own.resize)),
        Route("DELETE", "/v1/creates/{key:path}", answered(own.cancel)),
        Route("POST", "/v1/stop", answered(own.stop_many)),
    ]
