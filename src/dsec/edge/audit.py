"""Events of a sandbox: those of its network's journal and those of the runtime's book, as one."""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from dsec.api.audit import AuditEvent, AuditEvents
from dsec.backends.wire import AuditRecord, EgressRecord, answer
from dsec.edge.core import Core
from dsec.edge.record import SandboxRecord
from dsec.errors import InvalidArgument

__all__ = ["Audit", "Place", "merged", "place"]

_PLACE = re.compile(r"(\d{1,18})-(\d{1,18})", re.ASCII)


class Place(NamedTuple):
    """The numbers that come next, in the network's journal and in the runtime's book."""

    network: int = 0
    own: int = 0


def place(text: str) -> Place:
    """What ``start`` says; empty is the beginning. Raises InvalidArgument."""
    if text in ("", "0"):
        return Place()
    found = _PLACE.fullmatch(text)
    if found is None:
        raise InvalidArgument(f"start is the next of an answer, not {text[:40]!r}", field="start")
    return Place(int(found[1]), int(found[2]))


def merged(sandbox_id: str, start: Place, network: EgressRecord, own: AuditRecord) -> AuditEvents:
    """Both from there on, by time."""
    kept = [each for each in network.latest if each.number >= start.network]
    also = [each for each in own.latest if each.number >= start.own]
    dropped = max(0, network.events - start.network - len(kept)) + max(0, own.events - start.own - len(also))
    events = [msgspec.structs.replace(each, sandbox_id=sandbox_id) for each in (*kept, *also)]
    return AuditEvents(
        events=sorted(events, key=_at),
        next=f"{max(network.events, start.network)}-{max(own.events, start.own)}",
        dropped=dropped,
    )


def _at(event: AuditEvent) -> float:
    return event.at


class Audit:
    """Asks the runtime of live sandboxes, the record of ended ones."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def events(self, record: SandboxRecord, start: str) -> AuditEvents:
        """What it tried and did not get, from a place on. Raises InvalidArgument, NodeError."""
        asked = place(start)
        network, own = record.egress_record or EgressRecord(), record.audit_record or AuditRecord()
        if record.started_at is not None and record.is_live:
            call = self._core.backend.call
            own = answer(await call("audit.events", {"sandbox_id": record.id, "from": asked.own}), AuditRecord)
            if record.egress is not None:
                found = await call("net.events", {"sandbox_id": record.id, "from": asked.network})
                network = answer(found, EgressRecord)
        return merged(record.id, asked, network, own)
