"""Sandboxes of the fake edge: the routes that make, find, pause and end them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from dsec.api import types
from dsec.api.ids import new_sandbox_id
from dsec.errors import Conflict, InvalidArgument, Unsupported
from dsec.testing.fake_answers import USAGE, json_answer, limit

if TYPE_CHECKING:
    from dsec.testing.fake_edge import FakeEdge

__all__ = ["SandboxRoutes"]


class SandboxRoutes:
    """Handlers over the edge's table."""

    def __init__(self, edge: FakeEdge) -> None:
        self._edge = edge

    def routes(self) -> list[web.RouteDef]:
        """Of this part."""
        return [
            web.post("/v1/sandboxes", self._create),
            web.get("/v1/sandboxes", self._find),
            web.get("/v1/sandboxes/{id}", self._get),
            web.delete("/v1/creates/{key}", self._cancel),
            web.post("/v1/stop", self._stop_many),
            web.post("/v1/sandboxes/{id}/stop", self._stop),
            web.delete("/v1/sandboxes/{id}", self._remove),
            web.post("/v1/sandboxes/{id}/pause", self._pause),
            web.post("/v1/sandboxes/{id}/resume", self._resume),
            web.get("/v1/sandboxes/{id}/story", self._story),
            web.get("/v1/sandboxes/{id}/usage", self._usage),
        ]

    async def _create(self, request: web.Request) -> web.Response:
        body = await request.read()
        try:
            asked = msgspec.json.decode(body, type=types.CreateRequest)
        except msgspec.ValidationError as error:
            raise (Unsupported if "unknown field" in str(error) else InvalidArgument)(str(error)) from None
        canonical = msgspec.json.encode(msgspec.structs.replace(asked, deadline_s=0, on_full="wait"))
        if asked.key in self._edge.by_key:
            known, sandbox_id = self._edge.by_key[asked.key]
            if known != canonical:
                raise Conflict("the key was used with another body")
            return json_answer(self._edge.sandboxes[sandbox_id])
        if asked.key in self._edge.cancelled:
            raise Conflict("the create was cancelled")
        info = self._made(asked, request.headers["dsec-principal"])
        self._edge.sandboxes[info.id] = info
        self._edge.by_key[asked.key] = (canonical, info.id)
        return json_answer(info)

    def _made(self, asked: types.CreateRequest, principal: str) -> types.SandboxInfo:
        node = self._edge.node
        return types.SandboxInfo(
            id=new_sandbox_id(node), node=node, state=types.SandboxState.RUNNING, image=asked.image,
            image_digest="0" * 64, layers=[], backend=asked.backend, created_at=time.time(), cpu=limit(asked.cpu),
            memory_mib=limit(asked.memory_mib), disk_mib=limit(asked.disk_mib), pids=int(limit(asked.pids)),
            idle_timeout_s=asked.idle_timeout_s, lifetime_s=asked.lifetime_s, labels=asked.labels, name=asked.name,
            principal=principal, env=asked.env, workdir=asked.workdir, user=asked.user, job=asked.job,
        )  # fmt: skip

    async def _find(self, request: web.Request) -> web.Response:
        labels = [pair.partition("=") for pair in request.query.getall("label", [])]
        states = ",".join(request.query.getall("state", list(types.SandboxState))).split(",")
        found = [
            info
            for info in self._edge.sandboxes.values()
            if info.state in states
            and all(info.labels.get(k) == v for k, _, v in labels)
            and request.query.get("job") in (None, info.job)
        ]
        return json_answer({"sandboxes": found})

    async def _get(self, request: web.Request) -> web.Response:
        return json_answer(self._edge.sandbox(request))

    async def _cancel(self, request: web.Request) -> web.Response:
        key = request.match_info["key"]
        self._edge.cancelled.append(key)
        if key in self._edge.by_key:
            self._edge.end(self._edge.by_key[key][1], "stopped")
        return json_answer({})

    async def _stop(self, request: web.Request) -> web.Response:
        return json_answer(self._edge.end(self._edge.sandbox(request).id, "stopped"))

    async def _pause(self, request: web.Request) -> web.Response:
        info = self._edge.sandbox(request)
        self._edge.sandboxes[info.id] = msgspec.structs.replace(info, state=types.SandboxState.PAUSED)
        return json_answer(types.Paused(id=info.id, partial=False, waited_s=0.0))

    async def _resume(self, request: web.Request) -> web.Response:
        info = self._edge.sandbox(request)
        self._edge.sandboxes[info.id] = msgspec.structs.replace(info, state=types.SandboxState.RUNNING)
        return json_answer({})

    async def _remove(self, request: web.Request) -> web.Response:
        info = self._edge.sandbox(request)
        if info.state is types.SandboxState.RUNNING and request.query.get("force") != "true":
            raise Conflict("the sandbox is running", sandbox_id=info.id)
        self._edge.end(info.id, "stopped")
        del self._edge.sandboxes[info.id]
        return json_answer({})

    async def _stop_many(self, request: web.Request) -> web.Response:
        asked = msgspec.json.decode(await request.read(), type=types.StopFilter)
        labels = asked.labels or {}
        chosen = [
            info.id
            for info in self._edge.sandboxes.values()
            if info.ended_at is None and all(info.labels.get(k) == v for k, v in labels.items())
        ]
        for sandbox_id in chosen:
            self._edge.end(sandbox_id, "stopped")
        return json_answer(types.StopReport(stopped=chosen))

    async def _story(self, request: web.Request) -> web.Response:
        info = self._edge.sandbox(request)
        entry = types.StoryEntry(at=info.created_at, state="running", cause="created", actor=info.principal)
        return json_answer({"story": [entry]})

    async def _usage(self, request: web.Request) -> web.Response:
        self._edge.sandbox(request)
        return json_answer(USAGE)
