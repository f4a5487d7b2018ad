"""Jobs and their leases: requests and answers of ``/v1``."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

__all__ = [
    "HeartbeatRequest",
    "JobInfo",
    "JobRequest",
    "JobState",
]


class JobState(StrEnum):
    """``held``; ``lost`` once its lease is over; ``ended`` by its holder or by ``dsec job stop``."""

    HELD = "held"
    LOST = "lost"
    ENDED = "ended"


class JobRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Take a job. ``holder`` is random for each holder: the same one asking again keeps its number."""

    name: str
    holder: str
    lease_s: float = 60.0
    on_lost: Literal["stop", "pause"] = "stop"
    max_live: int | None = None


class HeartbeatRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sign of life of the holder with that fencing number."""

    fence: int


class JobInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A job. ``live`` and ``queued``: its sandboxes that live, and its creates that wait for room."""

    name: str
    state: JobState
    fence: int
    principal: str
    lease_s: float
    on_lost: str
    acquired_at: float
    expires_at: float
    max_live: int | None = None
    lost_at: float | None = None
    ended_at: float | None = None
    live: int = 0
    queued: int = 0
    project: str = "default"
