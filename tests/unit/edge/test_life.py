"""The life of a sandbox: ends are final, stories never go backwards."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.api.types import SandboxState, StoryEntry
from dsec.edge import life

REACHED = list(SandboxState)


@given(st.lists(st.tuples(st.sampled_from(REACHED), st.floats(0, 1e9)), max_size=12))
def test_any_sequence_gives_a_well_formed_story(transitions: list[tuple[SandboxState, float]]) -> None:
    """Whatever is told in whatever order, a story begins once, ends at most once and its times do not decrease."""
    story = life.advance([], SandboxState.CREATING, at=5.0, cause="requested", actor="alice")
    for then, at in transitions:
        story = life.advance(story, then, at=at, cause="x", actor="y")
    states = [each.state for each in story]
    assert states[0] == "creating"
    assert states.count("creating") == 1
    assert sum(each in ("stopped", "lost") for each in states) <= 1
    assert all(each not in ("stopped", "lost") for each in states[:-1])
    assert [each.at for each in story] == sorted(each.at for each in story)


def test_the_first_end_stands() -> None:
    """A second end leaves the story as it is, so that its cause is the true one."""
    story = [StoryEntry(at=1.0, state="creating", cause="requested", actor="a")]
    story = life.advance(story, SandboxState.STOPPED, at=2.0, cause="idle", actor="runtime")
    assert life.advance(story, SandboxState.LOST, at=3.0, cause="keeper", actor="edge") is story


def test_a_story_begins_with_creating() -> None:
    """A sandbox cannot run that nobody asked for."""
    with pytest.raises(ValueError, match="begins with creating"):
        life.advance([], SandboxState.RUNNING, at=1.0, cause="x", actor="y")


@pytest.mark.parametrize(
    ("cause", "state"),
    [("stopped", "stopped"), ("idle", "stopped"), ("main-exited", "stopped"), ("keeper", "lost"), ("reboot", "lost")],
)
def test_the_cause_decides_between_stopped_and_lost(cause: str, state: str) -> None:
    """Lost is what the node is to blame for."""
    assert life.ended_state(cause) == state
