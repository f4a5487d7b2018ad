"""What the edge opens at the runtime for a client's stream."""

from __future__ import annotations

from typing import Any

import msgspec

from dsec.edge.record import ExecRecord
from dsec.edge.runs import RunRecord

__all__ = ["Opening"]


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """One stream.

    ``exec_id``: the exec, or the run of a session.

    ``outcome``: recorded, to be told in place of the runtime's ``end`` (it has forgotten the exec's).
    """

    method: str
    params: dict[str, Any]
    sandbox_id: str
    exec_id: str
    outcome: ExecRecord | RunRecord | None = None
    began: bool = False
    """Whether this opening committed the intent, so that a refused start must take it back."""
