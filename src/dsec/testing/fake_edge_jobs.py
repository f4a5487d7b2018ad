"""Jobs of the fake edge: who holds them, by fence."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from dsec.api import types
from dsec.api.jobs import HeartbeatRequest, JobInfo, JobRequest, JobState
from dsec.errors import NotFound
from dsec.testing.fake_answers import json_answer

if TYPE_CHECKING:
    from dsec.testing.fake_edge import FakeEdge

__all__ = ["JobRoutes"]


class JobRoutes:
    """Handlers over the edge's table; no lease ever ends by itself."""

    def __init__(self, edge: FakeEdge) -> None:
        self._edge = edge

    def routes(self) -> list[web.RouteDef]:
        """Of this part."""
        return [
            web.post("/v1/jobs", self._take_job),
            web.get("/v1/jobs", self._list_jobs),
            web.get("/v1/jobs/{name}", self._get_job),
            web.post("/v1/jobs/{name}/heartbeat", self._heartbeat),
            web.post("/v1/jobs/{name}/stop", self._stop_job),
        ]

    async def _take_job(self, request: web.Request) -> web.Response:
        asked = msgspec.json.decode(await request.read(), type=JobRequest)
        known = self._edge.jobs.get(asked.name)
        self._edge.jobs[asked.name] = JobInfo(
            name=asked.name, state=JobState.HELD, fence=1 if known is None else known.fence + 1, principal="p",
            lease_s=asked.lease_s, on_lost=asked.on_lost, max_live=asked.max_live, acquired_at=time.time(),
            expires_at=time.time() + asked.lease_s,
        )  # fmt: skip
        return json_answer(self._edge.jobs[asked.name])

    async def _list_jobs(self, _: web.Request) -> web.Response:
        return json_answer({"jobs": list(self._edge.jobs.values())})

    async def _get_job(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self._edge.jobs:
            raise NotFound(f"no job {name[:80]!r}")
        return json_answer(self._edge.jobs[name])

    async def _heartbeat(self, request: web.Request) -> web.Response:
        asked = msgspec.json.decode(await request.read(), type=HeartbeatRequest)
        info = self._edge.jobs[request.match_info["name"]]
        self._edge.check_claim(f"{info.name};{asked.fence}")
        self._edge.beats.append((info.name, asked.fence))
        return json_answer(info)

    async def _stop_job(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        chosen = [info.id for info in self._edge.sandboxes.values() if info.job == name and info.ended_at is None]
        for sandbox_id in chosen:
            self._edge.end(sandbox_id, "stopped")
        self._edge.jobs[name] = msgspec.structs.replace(self._edge.jobs[name], state=JobState.ENDED)
        return json_answer(types.StopReport(stopped=chosen))
