"""Who used what: live and ended sandboxes added up by a label, a job, a principal or an image. Pure."""

from __future__ import annotations

import msgspec

from dsec.api.types import UsageGroup
from dsec.backends.wire import SandboxUse
from dsec.edge.record import SandboxRecord
from dsec.errors import InvalidArgument

__all__ = ["By", "Sums", "by_of"]

_MIB, _GIB = 1 << 20, 1 << 30
_FIELDS = ("job", "principal", "image")


class By(msgspec.Struct, frozen=True):
    """What sandboxes are grouped by: a field, or (``label``) the value of a label."""

    field: str
    label: str | None = None

    def key(self, record: SandboxRecord) -> str | None:
        """The group of a sandbox; None: it has no such label, or belongs to no job."""
        if self.label is not None:
            return record.labels.get(self.label)
        value: str | None = getattr(record, self.field)
        return value


def by_of(text: str) -> By:
    """``job``, ``principal``, ``image`` or ``label:NAME``; raises InvalidArgument."""
    field, colon, label = text.partition(":")
    if field == "label" and colon and label:
        return By("labels", label)
    if text in _FIELDS:
        return By(text)
    raise InvalidArgument(f"usage is by label:NAME, {', '.join(_FIELDS)}, not {text[:80]!r}")


class Sums:
    """Adds up sandboxes, each once."""

    def __init__(self, by: By) -> None:
        self._by = by
        self._groups: dict[str | None, UsageGroup] = {}

    def add(self, record: SandboxRecord, use: SandboxUse, at: float) -> None:
        """One sandbox: what it has used up to ``at``. One that never ran is not counted."""
        if record.started_at is None:
            return
        key = self._by.key(record)
        before = self._groups.get(key) or UsageGroup(key=key)
        self._groups[key] = UsageGroup(
            key=key,
            sandboxes=before.sandboxes + 1,
            live=before.live + record.is_live,
            cpu_s=before.cpu_s + use.cpu_ns / 1e9,
            memory_gib_s=before.memory_gib_s + use.memory_byte_s / _GIB,
            wall_s=before.wall_s + max(0.0, at - record.started_at),
            disk_mib=before.disk_mib + use.disk_bytes / _MIB,
            read_bytes=_plus(before.read_bytes, use.read_bytes),
            written_bytes=_plus(before.written_bytes, use.written_bytes),
            oom_kills=before.oom_kills + use.oom_kills,
            largest_memory_mib=max(before.largest_memory_mib, use.memory_peak_bytes / _MIB),
        )

    def groups(self) -> list[UsageGroup]:
        """Those that used the most CPU first."""
        return sorted(self._groups.values(), key=lambda group: (-group.cpu_s, group.key or ""))


def _plus(before: int | None, more: int | None) -> int | None:
    """Measured bytes added up; what was not measured adds nothing, and makes no 0 of nothing."""
    return before if more is None else more + (before or 0)
