"""Routes of jobs, and the check of fencing numbers that stands before every other route."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from dsec.api.jobs import HeartbeatRequest, JobRequest
from dsec.edge.caller import calling
from dsec.edge.job_record import Claim, claim_of
from dsec.edge.jobs import Jobs
from dsec.edge.router import Route
from dsec.edge.web import answered, body_as, json_answer, principal_of

__all__ = ["guarded", "job_routes"]


def claim_in(request: Request) -> Claim | None:
    """In the name of which job's holder a request comes."""
    return claim_of(request.headers.get("dsec-job"), calling().home)


def guarded(jobs: Jobs, route: Route) -> Route:
    """The route, refused with Fenced to whoever asks in the name of a job that it does not hold any more."""

    async def checked(request: Request) -> Response:
        claim = claim_in(request)
        if claim is not None:
            jobs.check(claim, principal_of(request))
        return await route.answer(request)

    return Route(route.method, route.path, answered(checked))


class _Answers:
    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    async def acquire(self, request: Request) -> Response:
        return json_answer(await self._jobs.acquire(await body_as(request, JobRequest), principal_of(request)))

    async def list(self, _: Request) -> Response:
        return json_answer({"jobs": self._jobs.list()})

    async def info(self, request: Request) -> Response:
        return json_answer(self._jobs.info(self._jobs.find(request.path_params["name"])))

    async def heartbeat(self, request: Request) -> Response:
        fence = (await body_as(request, HeartbeatRequest)).fence
        claim = Claim(request.path_params["name"], fence, calling().home)
        return json_answer(await self._jobs.renew(claim, principal_of(request)))

    async def stop(self, request: Request) -> Response:
        name, principal = request.path_params["name"], principal_of(request)
        return json_answer(await self._jobs.stop(name, principal, claim_in(request)))


def job_routes(jobs: Jobs) -> list[Route]:
    """All of them."""
    own = _Answers(jobs)
    one = "/v1/jobs/{name}"
    return [
        Route("POST", "/v1/jobs", answered(own.acquire)),
        Route("GET", "/v1/jobs", answered(own.list)),
        Route("GET", one, answered(own.info)),
        Route("POST", one + "/heartbeat", answered(own.heartbeat)),
        Route("POST", one + "/stop", answered(own.stop)),
    ]
