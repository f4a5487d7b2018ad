"""Packing a live sandbox: a snapshot, a layer made of it by a program of its own, the tag, the result, in this order.

All steps but the first can be done twice: the same snapshot gives the same bytes. Whoever asks again by the same key
joins what goes on, or finds what came of it.
"""

from __future__ import annotations

import asyncio
import contextlib

from dsec.api import ids
from dsec.api.packing import PackedLayer, PackRequest, Provenance
from dsec.backends.wire import SnapshotState
from dsec.edge.core import Core
from dsec.edge.faults import fault
from dsec.edge.layer_cache import LayerCache
from dsec.edge.pack_record import (
    PackRecord,
    body_of,
    commands_of,
    merged_below,
    packed_layer,
    rules_of,
    target_of,
)
from dsec.edge.record import SandboxRecord
from dsec.edge.snapshots import Snapshots
from dsec.errors import Conflict, DSecError, NodeError
from dsec.images.catalogue import LayerEnvironment
from dsec.images.packing import Packing
from dsec.images.running import Running

__all__ = ["Packs"]

_KEEP_S = 3600.0
"""How long the moment is kept for whoever asks again."""


class Packs:
    """All packings of the node."""

    def __init__(self, core: Core, snapshots: Snapshots, cache: LayerCache) -> None:
        self._core = core
        self._snapshots = snapshots
        self._cache = cache
        self._running: Running[PackedLayer] = Running("pack")
        self._bodies: dict[str, bytes] = {}
        """Of those that run."""

    async def pack(self, record: SandboxRecord, asked: PackRequest, by: str) -> PackedLayer:
        """Make a layer of what a sandbox has written, and let the tag mean it.

        Raises InvalidArgument, Conflict (the key was another request's), StoreUnreachable (the workspace below is not
        all on this node, and its rest cannot be fetched), SandboxGone, NotFound, CapacityError, Unsupported (what no
        layer can hold), DeadlineExceeded, NodeError.
        """
        # Has a space, so that it is no key of a snapshot's.
        own = ids.snapshot_id(record.id, f"pack {ids.check_key(asked.key)}")
        body = body_of(asked)
        target_of(asked)
        rules_of(asked, self._core.config.residue)
        running = self._running.get(own)
        if running is None:
            known = self._core.records.packs.get(own)
            if known is not None and known.body != body:
                raise _other_request()
            if known is not None and known.done is not None:
                return known.done
            self._bodies[own] = body
            running = self._running.start(own, lambda: self._work(own, body, record, asked, by))
            running.add_done_callback(lambda _: self._bodies.pop(own))
        elif self._bodies[own] != body:
            raise _other_request()
        return await asyncio.shield(running)

    async def aclose(self) -> None:
        """Cancel what goes on; the next edge is asked again."""
        await self._running.aclose()

    async def _work(self, own: str, body: bytes, record: SandboxRecord, asked: PackRequest, by: str) -> PackedLayer:
        packs = self._core.records.packs
        packs.save(PackRecord(id=own, body=body, at=self._core.clock()))
        try:
            done = await self._packed(own, record, asked, by)
        except NodeError:
            raise  # asked again, it goes on from the same moment
        except DSecError:
            packs.drop(own)
            with contextlib.suppress(DSecError):
                await self._snapshots.remove(own)
            raise
        packs.save(PackRecord(id=own, body=body, at=self._core.clock(), done=done))
        fault("edge.pack.committed")
        await self._snapshots.remove(own)
        fault("edge.pack.cleaned")
        return done

    async def _packed(self, own: str, record: SandboxRecord, asked: PackRequest, by: str) -> PackedLayer:
        target, rules = target_of(asked), rules_of(asked, self._core.config.residue)
        commands = commands_of(asked, self._core.records.execs(record.id))
        snapshot = await self._snapshots.take(own, record, keep_s=_KEEP_S, by=by)
        found = snapshot.found
        if found is None or not snapshot.is_kept:
            raise Conflict("the moment that this key meant is kept no more", phase="pack", remedy="Use another key")
        fault("edge.pack.taken")
        # Of the moment that is packed: the sandbox may have gone on.
        source, below = snapshot.source, merged_below(snapshot.source, target)
        await self._cache.ensure(below)
        tag, provenance, report = await self._core.images.pack_layer(
            Packing(
                reference=target,
                snapshot_id=own,
                rules=rules.rules,
                keep=rules.keep,
                below=tuple(below),
                environment=self._environment(source, below),
                provenance=_provenance(source, found, asked, commands, below, by),
            )
        )
        fault("edge.pack.tagged")
        return packed_layer(tag, provenance, report, frozen_s=found.frozen_ns / 1e9, partial=not found.whole)

    def _environment(self, source: SandboxRecord, below: list[str]) -> LayerEnvironment:
        """What the workspace's own tag brings, as far as it still means that layer."""
        for tag, digest in source.composed:
            if digest in below:
                with contextlib.suppress(DSecError):
                    found = self._core.images.layers.find(tag)
                    if found.digest == digest:
                        return found.environment
        return LayerEnvironment()


def _provenance(
    source: SandboxRecord, found: SnapshotState, asked: PackRequest, commands: list[str], below: list[str], by: str
) -> Provenance:
    return Provenance(
        sandbox_id=source.id,
        at=found.made_at,
        by=by,
        image=source.image,
        parents=source.layers,
        merged=below,
        description=asked.description,
        commands=commands,
    )


def _other_request() -> Conflict:
    return Conflict("the key was used for another pack_diff", phase="pack", remedy="Use another key")
