"""Snapshots and forks: ``sandbox.snapshot``, ``sandbox.fork``, ``client.snapshots``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

import msgspec

from dsec.api import types
from dsec.api.ids import check_key, check_snapshot_id, new_key, snapshot_id
from dsec.api.network import Network
from dsec.api.snapshots import SnapshotInfo, SnapshotRequest
from dsec.client.args import SandboxArgs
from dsec.client.creating import Creating, CreatingMany
from dsec.client.results import Created
from dsec.client.sandbox import Sandbox
from dsec.client.waiting import shielded
from dsec.errors import InvalidArgument, Unsupported

if TYPE_CHECKING:
    from dsec.client.client import DSecClient

__all__ = ["Forking", "Snapshot", "Snapshots"]

_MORE_S = 300.0
_REMOVE_S = 30.0


@dataclass(frozen=True)
class Snapshot:
    """What a sandbox had written at one moment, kept until ``info.kept_until`` or until it is removed."""

    id: str
    info: SnapshotInfo
    args: SandboxArgs
    """For sandboxes like the one it is of, that begin with a copy: ``client.sandbox(snapshot.args)``."""


def _snapshot(info: SnapshotInfo) -> Snapshot:
    fields = dict(info.args)
    image = fields.pop("image", info.image)
    fields["endpoints"] = msgspec.convert(fields.get("endpoints", {}), dict[str, types.Endpoint])
    fields["network"] = msgspec.convert(fields.get("network", "none"), Network | str)
    return Snapshot(info.id, info, SandboxArgs(image, **fields))


class _Infos(msgspec.Struct, frozen=True):
    snapshots: list[SnapshotInfo]


class Snapshots:
    """The snapshots that the node keeps."""

    def __init__(self, client: DSecClient) -> None:
        self._client = client

    async def _take(self, sandbox_id: str, *, memory: bool, keep_s: float, key: str | None) -> Snapshot:
        """See ``Sandbox.snapshot``."""
        if memory:
            raise Unsupported("snapshot(memory=True) is not in this version")
        body = SnapshotRequest(key=new_key() if key is None else check_key(key), keep_s=keep_s)
        path = f"/v1/sandboxes/{sandbox_id}/snapshots"
        return _snapshot(await self._client._link().ask_patiently("POST", path, SnapshotInfo, body=body))

    def _fork(
        self, sandbox_id: str, n: int, *, key: str | None, deadline_s: float, on_full: Literal["wait", "raise"],
        fields: Mapping[str, Any],
    ) -> Forking:  # fmt: skip
        """See ``Sandbox.fork``."""
        return Forking(self._client, sandbox_id, n, key=key, deadline_s=deadline_s, on_full=on_full, fields=fields)

    async def list(self) -> list[Snapshot]:
        """All of them, the oldest first."""
        found = await self._client._link().ask_patiently("GET", "/v1/snapshots", _Infos)
        return [_snapshot(each) for each in found.snapshots]

    async def get(self, snapshot_id: str) -> Snapshot:
        """One that is kept, or (``info.state``) was in the last day. Raises NotFound."""
        return _snapshot(await self._client._link().ask_patiently("GET", _path(snapshot_id), SnapshotInfo))

    async def remove(self, snapshot_id: str) -> None:
        """Keep it no more; sandboxes that began with it keep their copies. Raises NotFound."""
        await self._client._link().ask_patiently("DELETE", _path(snapshot_id), dict[str, Any])


def _path(snapshot_id: str) -> str:
    return "/v1/snapshots/" + quote(check_snapshot_id(snapshot_id), safe="")


class Forking:
    """Iterate it for each Created as it becomes ready, or await ``all()`` for a list in the order of their numbers.

    The snapshot that they all begin with goes when the last one has been made.
    """

    def __init__(
        self, client: DSecClient, sandbox_id: str, n: int, *, key: str | None, deadline_s: float,
        on_full: Literal["wait", "raise"], fields: Mapping[str, Any],
    ) -> None:  # fmt: skip
        if n < 1:
            raise InvalidArgument(f"fork makes 1 sandbox or more, not {n}")
        self._client = client
        self._sandbox_id = sandbox_id
        self._n = n
        self._key = new_key() if key is None else check_key(key)
        self._deadline_s = deadline_s
        self._on_full: Literal["wait", "raise"] = on_full
        self._fields = fields

    def __aiter__(self) -> AsyncGenerator[Created[Sandbox]]:
        return self._ready()

    async def all(self) -> list[Created[Sandbox]]:
        """Every Created, in the order of their numbers."""
        return sorted([made async for made in self._ready()], key=lambda made: made.index)

    async def _ready(self) -> AsyncGenerator[Created[Sandbox]]:
        try:
            # Kept for longer than any create may wait.
            keep_s = self._deadline_s + _MORE_S
            taken = await self._client.snapshots._take(self._sandbox_id, memory=False, keep_s=keep_s, key=self._key)
            async with aclosing(aiter(CreatingMany(self._creates(taken.args)))) as ready:
                async for made in ready:
                    yield made
        finally:
            own = snapshot_id(self._sandbox_id, self._key)
            await shielded(self._client.snapshots.remove(own), _REMOVE_S)

    def _creates(self, args: SandboxArgs) -> list[Creating]:
        args = args.replace(**self._fields)
        return [
            Creating(
                self._client, args, key=f"{self._key}/{index}", deadline_s=self._deadline_s, on_full=self._on_full
            )
            for index in range(self._n)
        ]
