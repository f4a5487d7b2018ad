"""The life of a sandbox as a pure state machine: which transition may follow which, and what the story then says."""

from __future__ import annotations

from dsec.api.types import SandboxState, StoryEntry

__all__ = ["ENDED", "RUNS", "advance", "ended_state", "may_follow"]

_NEXT: dict[SandboxState, frozenset[SandboxState]] = {
    SandboxState.CREATING: frozenset({SandboxState.RUNNING, SandboxState.STOPPED, SandboxState.LOST}),
    SandboxState.RUNNING: frozenset({SandboxState.PAUSED, SandboxState.STOPPED, SandboxState.LOST}),
    SandboxState.PAUSED: frozenset({SandboxState.RUNNING, SandboxState.STOPPED, SandboxState.LOST}),
    SandboxState.STOPPED: frozenset(),
    SandboxState.LOST: frozenset(),
}
RUNS = frozenset({SandboxState.RUNNING, SandboxState.PAUSED})
ENDED = frozenset({SandboxState.STOPPED, SandboxState.LOST})
_LOST_CAUSES = frozenset({"lost", "keeper", "runtime", "reboot"})


def may_follow(state: SandboxState, then: SandboxState) -> bool:
    """Whether a sandbox may go from one state to another. An ended one stays as it is."""
    return then in _NEXT.get(state, frozenset())


def ended_state(cause: str) -> SandboxState:
    """The state that an end of this cause leads to."""
    return SandboxState.LOST if cause in _LOST_CAUSES else SandboxState.STOPPED


def advance(
    story: list[StoryEntry], then: SandboxState, *, at: float, cause: str, actor: str, detail: str = ""
) -> list[StoryEntry]:
    """The story with one more transition; unchanged when the transition may not follow (it has happened already)."""
    if story:
        current = SandboxState(story[-1].state)
        if not may_follow(current, then):
            return story
        at = max(at, story[-1].at)
    elif then is not SandboxState.CREATING:
        raise ValueError(f"a story begins with creating, not {then}")
    return [*story, StoryEntry(at=at, state=str(then), cause=cause, actor=actor, detail=detail)]
