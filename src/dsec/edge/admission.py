"""Who may start a sandbox now, who waits, and in which turn. Pure: no clock, no I/O.

Requests, not limits, are counted. Those that wait are served in turn by group (a project's principal), first come
first served within one; whoever's turn it is, is never overtaken, so that small requests do not starve a large one.
"""

from __future__ import annotations

from collections import OrderedDict, deque

import msgspec

__all__ = ["Admission", "Need", "Ticket"]


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


class Admission:
    """The node's capacity, what is held of it, and the queue."""

    def __init__(self, capacity: Need) -> None:
        self.capacity = capacity
        self.used = Need()
        self.pending_disk_bytes = 0
        self._held: dict[str, Need] = {}
        self._groups: OrderedDict[str, deque[Ticket]] = OrderedDict()

    def __len__(self) -> int:
        """How many wait."""
        return sum(len(queue) for queue in self._groups.values())

    @property
    def room(self) -> Need:
        """What is free; negative where a smaller capacity was set while more was held."""
        pending = Need(disk_bytes=self.pending_disk_bytes)
        return self.capacity.minus(self.used).minus(pending)

    def impossible(self, need: Need) -> str | None:
        """Name of the field that this node could not give even when empty; None when it could."""
        return need.beyond(self.capacity)

    def ask(self, ticket: Ticket) -> bool:
        """Admit now (True) or put into the queue (False). Nobody overtakes those who wait."""
        if not self._groups and ticket.need.beyond(self.room) is None:
            self.hold(ticket.id, ticket.need)
            return True
        self._groups.setdefault(ticket.group, deque()).append(ticket)
        return False

    def hold(self, sandbox_id: str, need: Need) -> None:
        """Count a sandbox without asking: one that is found alive. Counted once."""
        if sandbox_id not in self._held:
            self._held[sandbox_id] = need
            self.used = self.used.plus(need)

    def release(self, sandbox_id: str) -> list[Ticket]:
        """The sandbox is gone; returns those who are admitted now. Harmless when it is not held."""
        need = self._held.pop(sandbox_id, None)
        if need is not None:
            self.used = self.used.minus(need)
        return self.serve()

    def leave(self, sandbox_id: str) -> list[Ticket]:
        """Take one out of the queue; returns those who are admitted now."""
        for group, queue in self._groups.items():
            for ticket in queue:
                if ticket.id == sandbox_id:
                    queue.remove(ticket)
                    if not queue:
                        del self._groups[group]
                    return self.serve()
        return []

    def resize(self, capacity: Need, pending_disk_bytes: int) -> list[Ticket]:
        """The node has other numbers now; returns those who are admitted now."""
        self.capacity = capacity
        self.pending_disk_bytes = pending_disk_bytes
        return self.serve()

    def serve(self) -> list[Ticket]:
        """Admit, in turn, all who fit."""
        admitted: list[Ticket] = []
        while self._groups:
            group, queue = next(iter(self._groups.items()))
            ticket = queue[0]
            if ticket.need.beyond(self.room) is not None:
                break
            queue.popleft()
            if queue:
                self._groups.move_to_end(group)
            else:
                del self._groups[group]
            self.hold(ticket.id, ticket.need)
            admitted.append(ticket)
        return admitted

    def position(self, sandbox_id: str) -> int | None:
        """How many are served before this one; None when it does not wait."""
        for turn, (group, queue) in enumerate(self._groups.items()):
            for index, ticket in enumerate(queue):
                if ticket.id == sandbox_id:
                    return index + self._before(group, turn, index)
        return None

    def _before(self, group: str, turn: int, index: int) -> int:
        # Groups earlier in the turn are served once more before this one's ticket than later groups.
        return sum(
            min(len(queue), index + 1 if other_turn < turn else index)
            for other_turn, (other, queue) in enumerate(self._groups.items())
            if other != group
        )

    def lacking(self, need: Need) -> str:
        """Name of the field that keeps a request waiting; "turn" when only others before it do."""
        return need.beyond(self.room) or "turn"
