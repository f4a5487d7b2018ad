"""Events of a sandbox at the edge: two sources as one, by time, each with its own place."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.api.audit import AuditEvent
from dsec.backends.wire import AuditRecord, EgressRecord
from dsec.edge.audit import Place, merged, place
from dsec.errors import InvalidArgument
from dsec.testing.edge_world import World, failing

pytestmark = pytest.mark.anyio


def of(number: int, at: float, **more: Any) -> AuditEvent:
    """An event."""
    return AuditEvent(number=number, at=at, kind=more.pop("kind", "limit"), reason="memory", **more)


def test_both_sources_by_time() -> None:
    """What is asked for is told once, in order, with the sandbox that it is of; what is lost of either is counted."""
    network = EgressRecord(events=7, latest=[of(5, 2.0, kind="name"), of(6, 4.0, kind="connection")])
    own = AuditRecord(events=3, latest=[of(1, 1.0), of(2, 3.0)])
    found = merged("sb-1", Place(), network, own)
    assert [each.at for each in found.events] == [1.0, 2.0, 3.0, 4.0]
    assert {each.sandbox_id for each in found.events} == {"sb-1"}
    assert (found.next, found.dropped) == ("7-3", 5 + 1)
    found = merged("sb-1", place("6-3"), network, own)
    assert ([each.at for each in found.events], found.next, found.dropped) == ([4.0], "7-3", 0)


def test_what_is_not_known_yet_loses_no_place() -> None:
    """A source that has nothing (the record of a sandbox that has just ended) does not set a place back."""
    found = merged("sb-1", place("6-3"), EgressRecord(), AuditRecord())
    assert (found.next, found.dropped, found.events) == ("6-3", 0, [])


@given(st.integers(0, 10**18 - 1), st.integers(0, 10**18 - 1))
def test_places_come_back(network: int, own: int) -> None:
    """What an answer says can be asked with."""
    assert place(f"{network}-{own}") == (network, own)


@pytest.mark.parametrize("text", ["1", "-", "1-", "x", "-1-2", "1-2-3", "١-٢", "1" * 19 + "-0", "1-2\n"])
def test_another_place_is_refused(text: str) -> None:
    """A place that no answer gave is the caller's mistake."""
    with pytest.raises(InvalidArgument):
        place(text)


async def test_over_http(world: World) -> None:
    """A live sandbox's come from the runtime from the place on, an ended one's from what its end brought."""
    events = [{"number": n, "at": 1.5 + n, "kind": "limit", "reason": "pids", "count": 3} for n in range(2)]
    async with world.edge() as (_, api):
        made = await api.create()
        world.runtime.sandboxes[made["id"]].audit += events
        path = f"/v1/sandboxes/{made['id']}/events"
        found = await api.call("GET", path, params={"start": "0-1"})
        assert found["next"] == "0-2"
        assert [(each["number"], each["count"], each["sandbox_id"]) for each in found["events"]] == [
            (1, 3, made["id"])
        ]
        await api.call("POST", f"/v1/sandboxes/{made['id']}/stop", {})
        found = await api.call("GET", path)
        assert ([each["number"] for each in found["events"]], found["next"]) == ([0, 1], "0-2")
        assert isinstance(await failing(api.call("GET", path, params={"start": "7"})), InvalidArgument)
