"""What recovery does with each sandbox, as a table."""

from __future__ import annotations

import pytest

from dsec.api.types import SandboxState
from dsec.backends.wire import SandboxEnd, SandboxFound
from dsec.edge.recovery import Act, reconcile

RUNS = SandboxFound(sandbox_id="x", state="running")
ENDED = SandboxFound(sandbox_id="x", state="ended", end=SandboxEnd(sandbox_id="x", cause="idle", ended_at=1.0))


@pytest.mark.parametrize(
    ("recorded", "found", "cancelled", "act"),
    [
        ("creating", None, False, Act.FINISH),
        ("creating", None, True, Act.UNDO),
        ("creating", RUNS, False, Act.ADOPT),
        ("creating", RUNS, True, Act.UNDO),
        ("creating", ENDED, False, Act.END),
        ("running", RUNS, False, Act.NOTHING),
        ("running", ENDED, False, Act.END),
        ("running", None, False, Act.LOST),
        ("stopped", ENDED, False, Act.FORGET),
        ("stopped", RUNS, False, Act.ORPHAN),
        ("lost", RUNS, False, Act.ORPHAN),
        (None, RUNS, False, Act.ORPHAN),
        (None, ENDED, False, Act.FORGET),
    ],
)
def test_each_pair_of_views_has_one_act(
    recorded: str | None, found: SandboxFound | None, cancelled: bool, act: Act
) -> None:
    """Recorded state × what the runtime says → what is done."""
    states = {} if recorded is None else {"x": SandboxState(recorded)}
    acts = reconcile(states, [] if found is None else [found], frozenset({"x"} if cancelled else ()))
    assert acts == {"x": act}


def test_an_ended_sandbox_that_the_runtime_forgot_needs_nothing() -> None:
    """Tombstones are no work."""
    assert reconcile({"x": SandboxState.STOPPED}, []) == {}
