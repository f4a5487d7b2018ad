"""Who may start a sandbox now, who waits, and in which turn. Pure: no clock, no I/O.

Requests, not limits, are counted. Those that wait are served in turn: by project, within one by group (a job, or a
principal's sandboxes of no job), first come first served within a group. Whoever's turn it is, is never overtaken,
so that small requests do not starve a large one. A group that has as many live sandboxes as it may is passed over
and keeps its place.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Mapping

import msgspec

__all__ = ["ASKED_AS", "Admission", "Need", "Ticket", "Whose"]


ASKED_AS: Mapping[str, tuple[str, int]] = {
    "memory_bytes": ("memory_mib", 1 << 20),
    "cpu_milli": ("cpu", 1000),
    "pids": ("pids", 1),
    "disk_bytes": ("disk_mib", 1 << 20),
    "descriptors": ("descriptors", 1),
    "sandboxes": ("sandboxes", 1),
}
"""Field of Need → the field that users write, and how many of ours one of theirs is."""


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """What a sandbox asks for, or what a node has."""

    memory_bytes: int = 0
    cpu_milli: int = 0
    pids: int = 0
    disk_bytes: int = 0
    descriptors: int = 0
    sandboxes: int = 0

    def plus(self, other: Need) -> Need:
        """Both together."""
        return Need(
            memory_bytes=self.memory_bytes + other.memory_bytes,
            cpu_milli=self.cpu_milli + other.cpu_milli,
            pids=self.pids + other.pids,
            disk_bytes=self.disk_bytes + other.disk_bytes,
            descriptors=self.descriptors + other.descriptors,
            sandboxes=self.sandboxes + other.sandboxes,
        )

    def minus(self, other: Need) -> Need:
        """This less the other."""
        return Need(
            memory_bytes=self.memory_bytes - other.memory_bytes,
            cpu_milli=self.cpu_milli - other.cpu_milli,
            pids=self.pids - other.pids,
            disk_bytes=self.disk_bytes - other.disk_bytes,
            descriptors=self.descriptors - other.descriptors,
            sandboxes=self.sandboxes - other.sandboxes,
        )

    def beyond(self, room: Need) -> str | None:
        """Name of the first field that does not fit into ``room``; None when all do."""
        for name in _FIELDS:
            if getattr(self, name) > getattr(room, name):
                return name
        return None


_FIELDS = Need.__struct_fields__


class Ticket(msgspec.Struct, frozen=True):
    """A request to be admitted. ``id`` is the sandbox's."""

    id: str
    group: str
    need: Need
    project: str = ""

    @property
    def whose(self) -> Whose:
        """Project and group."""
        return self.project, self.group


Whose = tuple[str, str]
_Queues = OrderedDict[str, OrderedDict[str, deque[Ticket]]]


class Admission:
    """The node's capacity, what is held of it, and the queue."""

    def __init__(self, capacity: Need) -> None:
        self.capacity = capacity
        self.used = Need()
        self.pending_disk_bytes = 0
        self._held: dict[str, tuple[Need, Whose | None]] = {}
        self._queues: _Queues = OrderedDict()
        """Projects and, in each, groups, in the order of their turns; none is empty."""
        self._live: Counter[Whose] = Counter()
        self._most: dict[Whose, int] = {}

    def __len__(self) -> int:
        """How many wait."""
        return sum(len(queue) for groups in self._queues.values() for queue in groups.values())

    @property
    def room(self) -> Need:
        """What is free; negative where a smaller capacity was set while more was held."""
        pending = Need(disk_bytes=self.pending_disk_bytes)
        return self.capacity.minus(self.used).minus(pending)

    def impossible(self, need: Need) -> str | None:
        """Name of the field that this node could not give even when empty; None when it could."""
        return need.beyond(self.capacity)

    def live(self, whose: Whose) -> int:
        """How many of a group are held."""
        return self._live[whose]

    def waiting(self, whose: Whose) -> int:
        """How many of a group wait."""
        groups = self._queues.get(whose[0])
        return 0 if groups is None else len(groups.get(whose[1], ()))

    def obstacle(self, ticket: Ticket) -> str | None:
        """Why a ticket would have to wait: ``max_live``, ``turn``, or the field that is short; None: it would not."""
        if self._is_at_most(ticket.whose):
            return "max_live"
        if self._next() is not None or self.waiting(ticket.whose):
            return "turn"
        return ticket.need.beyond(self.room)

    def ask(self, ticket: Ticket) -> bool:
        """Admit now (True) or put into the queue (False). Nobody overtakes those who wait."""
        if self.obstacle(ticket) is None:
            self.hold(ticket.id, ticket.need, ticket.whose)
            return True
        groups = self._queues.setdefault(ticket.project, OrderedDict())
        groups.setdefault(ticket.group, deque()).append(ticket)
        return False

    def hold(self, sandbox_id: str, need: Need, whose: Whose | None = None) -> None:
        """Count a sandbox without asking: one that is found alive. Counted once."""
        if sandbox_id not in self._held:
            self._held[sandbox_id] = (need, whose)
            self.used = self.used.plus(need)
            if whose is not None:
                self._live[whose] += 1

    def release(self, sandbox_id: str) -> list[Ticket]:
        """The sandbox is gone; returns those who are admitted now. Harmless when it is not held."""
        need, whose = self._held.pop(sandbox_id, (Need(), None))
        self.used = self.used.minus(need)
        if whose is not None:
            self._live[whose] -= 1
            if not self._live[whose]:
                del self._live[whose]
        return self.serve()

    def leave(self, sandbox_id: str) -> list[Ticket]:
        """Take one out of the queue; returns those who are admitted now."""
        for groups in self._queues.values():
            for queue in groups.values():
                for ticket in queue:
                    if ticket.id == sandbox_id:
                        queue.remove(ticket)
                        self._drop_empty(ticket.whose)
                        return self.serve()
        return []

    def limit(self, whose: Whose, most: int | None) -> list[Ticket]:
        """A group may have so many live sandboxes (None: any number); returns those who are admitted now."""
        if most is None:
            self._most.pop(whose, None)
        else:
            self._most[whose] = most
        return self.serve()

    def resize(self, capacity: Need, pending_disk_bytes: int) -> list[Ticket]:
        """The node has other numbers now; returns those who are admitted now."""
        self.capacity = capacity
        self.pending_disk_bytes = pending_disk_bytes
        return self.serve()

    def serve(self) -> list[Ticket]:
        """Admit, in turn, all who fit."""
        admitted: list[Ticket] = []
        while (ticket := self._next()) is not None and ticket.need.beyond(self.room) is None:
            _take_turn(self._queues, ticket)
            self.hold(ticket.id, ticket.need, ticket.whose)
            admitted.append(ticket)
        return admitted

    def position(self, sandbox_id: str) -> int | None:
        """How many are served before this one, were no group at its most; None when it does not wait."""
        queues: _Queues = OrderedDict(
            (project, OrderedDict((group, queue.copy()) for group, queue in groups.items()))
            for project, groups in self._queues.items()
        )
        served = 0
        while queues:
            ticket = next(iter(next(iter(queues.values())).values()))[0]
            if ticket.id == sandbox_id:
                return served
            _take_turn(queues, ticket)
            served += 1
        return None

    def lacking(self, need: Need) -> str:
        """Name of the field that keeps a request waiting; "turn" when only others before it do."""
        return need.beyond(self.room) or "turn"

    def _is_at_most(self, whose: Whose) -> bool:
        most = self._most.get(whose)
        return most is not None and self._live[whose] >= most

    def _next(self) -> Ticket | None:
        """Whose turn it is."""
        for project, groups in self._queues.items():
            for group, queue in groups.items():
                if not self._is_at_most((project, group)):
                    return queue[0]
        return None

    def _drop_empty(self, whose: Whose) -> None:
        groups = self._queues[whose[0]]
        if not groups[whose[1]]:
            del groups[whose[1]]
        if not groups:
            del self._queues[whose[0]]


def _take_turn(queues: _Queues, ticket: Ticket) -> None:
    """Take out a ticket that is the first of its group; group and project go to the end of their turns."""
    groups = queues[ticket.project]
    groups[ticket.group].popleft()
    if groups[ticket.group]:
        groups.move_to_end(ticket.group)
    else:
        del groups[ticket.group]
    if groups:
        queues.move_to_end(ticket.project)
    else:
        del queues[ticket.project]
