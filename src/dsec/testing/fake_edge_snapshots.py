"""Snapshots of the fake edge."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from dsec.api.ids import snapshot_id
from dsec.api.packing import PackedLayer, PackRequest, Provenance
from dsec.api.snapshots import SnapshotInfo, SnapshotRequest
from dsec.errors import NotFound
from dsec.testing.fake_answers import json_answer

if TYPE_CHECKING:
    from dsec.testing.fake_edge import FakeEdge

__all__ = ["SnapshotRoutes"]


class SnapshotRoutes:
    """Handlers over the edge's table."""

    def __init__(self, edge: FakeEdge) -> None:
        self._edge = edge

    def routes(self) -> list[web.RouteDef]:
        """Of this part."""
        return [
            web.post("/v1/sandboxes/{id}/snapshots", self._make),
            web.post("/v1/sandboxes/{id}/pack", self._pack),
            web.get("/v1/snapshots", self._list),
            web.get("/v1/snapshots/{snapshot_id}", self._get),
            web.delete("/v1/snapshots/{snapshot_id}", self._remove),
        ]

    async def _make(self, request: web.Request) -> web.Response:
        asked = msgspec.json.decode(await request.read(), type=SnapshotRequest)
        info, now = self._edge.sandbox(request), time.time()
        own = snapshot_id(info.id, asked.key)
        made = SnapshotInfo(
            id=own, sandbox_id=info.id, node=info.node, state="made", made_at=now, kept_until=now + asked.keep_s,
            size_bytes=4096, frozen_s=0.001, partial=False, by=info.principal, image=info.image, layers=info.layers,
            args={
                "image": info.image, "cpu": (1, 2), "env": info.env, "labels": info.labels, "from_snapshot": own,
                "endpoints": {"llm": {"url": "http://127.0.0.1:1"}},
            },
        )  # fmt: skip
        return json_answer(self._edge.snapshots.setdefault(own, made))

    async def _pack(self, request: web.Request) -> web.Response:
        asked = msgspec.json.decode(await request.read(), type=PackRequest)
        info, now = self._edge.sandbox(request), time.time()
        made = PackedLayer(
            reference=asked.reference, digest="d" * 64, size_bytes=4096, entries=1, whiteouts=0, dropped_attributes=0,
            removed=[], removed_files=0, removed_bytes=0, frozen_s=0.001, partial=False,
            provenance=Provenance(
                sandbox_id=info.id, at=now, by=info.principal, image=info.image, parents=info.layers,
                description=asked.description, commands=asked.commands or [],
            ),
        )  # fmt: skip
        return json_answer(made)

    async def _list(self, request: web.Request) -> web.Response:
        return json_answer({"snapshots": list(self._edge.snapshots.values())})

    def _find(self, request: web.Request) -> SnapshotInfo:
        found = self._edge.snapshots.get(request.match_info["snapshot_id"])
        if found is None:
            raise NotFound("there is no such snapshot")
        return found

    async def _get(self, request: web.Request) -> web.Response:
        return json_answer(self._find(request))

    async def _remove(self, request: web.Request) -> web.Response:
        del self._edge.snapshots[self._find(request).id]
        return json_answer({})
