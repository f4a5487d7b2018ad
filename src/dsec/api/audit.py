"""What a sandbox tried and did not get."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

__all__ = ["EVENT_KINDS", "AuditEvent", "AuditEvents", "EventKind"]

EventKind = Literal["connection", "name", "packet", "endpoint", "limit", "syscall"]
"""``connection`` and ``name``: what its network refused. ``packet``: what its link dropped. ``endpoint``: what an
endpoint refused. ``limit``: a limit that it met. ``syscall``: a call to the kernel that was refused and is worth a
word."""
EVENT_KINDS: tuple[EventKind, ...] = get_args(EventKind)


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened, once or many times in short order. docs/events.md has the table of reasons."""

    number: int
    """Within its source (the network's journal, or the runtime's), from 0 without gaps."""
    at: float
    """Unix time of the last of them, seconds."""
    kind: EventKind
    reason: str
    sandbox_id: str = ""
    exec_id: str | None = None
    """The exec, or the run of a session, where it is known."""
    name: str | None = None
    """What it was about: a name that was looked up or asked for, a call, a stream, an endpoint."""
    address: str | None = None
    port: int | None = None
    count: int = 1
    """How often: what is the same is gathered, at first for a second, then for longer, at most a minute."""


class AuditEvents(msgspec.Struct, frozen=True, kw_only=True):
    """Events from where it was asked for on, as far as they are kept, by time."""

    events: list[AuditEvent]
    next: str
    """Where to go on."""
    dropped: int = 0
    """How many of those that were asked for are not kept any more."""
