"""Routes of snapshots and of layers packed from sandboxes."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from dsec.api.packing import PackRequest
from dsec.api.snapshots import SnapshotRequest
from dsec.edge.core import Core
from dsec.edge.packs import Packs
from dsec.edge.router import Route
from dsec.edge.snapshots import Snapshots
from dsec.edge.web import answered, body_as, json_answer, principal_of

__all__ = ["snapshot_routes"]


class _Answers:
    def __init__(self, core: Core, snapshots: Snapshots, packs: Packs) -> None:
        self._core = core
        self._packs = packs
        self._snapshots = snapshots

    async def make(self, request: Request) -> Response:
        asked = await body_as(request, SnapshotRequest)
        record = self._core.find(request.path_params["id"])
        made = await self._snapshots.make(record, asked, principal_of(request))
        return json_answer(self._snapshots.info(made))

    async def pack(self, request: Request) -> Response:
        asked = await body_as(request, PackRequest)
        record = self._core.find(request.path_params["id"])
        return json_answer(await self._packs.pack(record, asked, principal_of(request)))

    async def list(self, _: Request) -> Response:
        return json_answer({"snapshots": self._snapshots.list()})

    async def info(self, request: Request) -> Response:
        return json_answer(self._snapshots.info(self._snapshots.find(request.path_params["snapshot_id"])))

    async def remove(self, request: Request) -> Response:
        record = self._snapshots.find(request.path_params["snapshot_id"])
        await self._snapshots.remove(record.id)
        return json_answer({})


def snapshot_routes(core: Core, snapshots: Snapshots, packs: Packs) -> list[Route]:
    """All of them."""
    own = _Answers(core, snapshots, packs)
    one = "/v1/snapshots/{snapshot_id}"
    return [
        Route("POST", "/v1/sandboxes/{id}/snapshots", answered(own.make)),
        Route("POST", "/v1/sandboxes/{id}/pack", answered(own.pack)),
        Route("GET", "/v1/snapshots", answered(own.list)),
        Route("GET", one, answered(own.info)),
        Route("DELETE", one, answered(own.remove)),
    ]
