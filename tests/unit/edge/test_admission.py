"""Admission as a pure machine: nothing is over-committed, nobody is forgotten, turns are fair."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dsec.edge.admission import Admission, Need, Ticket

NODE = Need(memory_bytes=100, cpu_milli=100, pids=100, disk_bytes=100, descriptors=100, sandboxes=10)


def need(memory: int) -> Need:
    return Need(memory_bytes=memory, sandboxes=1)


needs = st.builds(
    Need,
    memory_bytes=st.integers(1, 60),
    cpu_milli=st.integers(0, 60),
    disk_bytes=st.integers(0, 60),
    sandboxes=st.just(1),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from("abc"), needs),
        st.tuples(st.just("release"), st.integers(0, 30), st.none()),
        st.tuples(st.just("leave"), st.integers(0, 30), st.none()),
        st.tuples(st.just("pending"), st.integers(0, 120), st.none()),
    ),
    max_size=40,
)


@given(steps)
def test_never_more_than_the_node_has_and_nobody_is_lost(script: list[tuple[str, object, Need | None]]) -> None:
    """After any sequence: what is held fits the node, and each ticket is held, waiting, or has left."""
    admission = Admission(NODE)
    tickets: list[Ticket] = []
    held: set[str] = set()
    waiting: set[str] = set()
    for what, value, wanted in script:
        if what == "ask" and wanted is not None:
            ticket = Ticket(f"t{len(tickets)}", str(value), wanted)
            tickets.append(ticket)
            (held if admission.ask(ticket) else waiting).add(ticket.id)
            continue
        chosen = tickets[value % len(tickets)].id if tickets and isinstance(value, int) else "none"
        if what == "release" and chosen in held:
            held.discard(chosen)
            admitted = admission.release(chosen)
        elif what == "leave":
            waiting.discard(chosen)
            admitted = admission.leave(chosen)
        elif what == "pending" and isinstance(value, int):
            admitted = admission.resize(NODE, value)
        else:
            continue
        for each in admitted:
            assert each.id in waiting
            waiting.discard(each.id)
            held.add(each.id)
    by_id = {each.id: each.need for each in tickets}
    total = Need()
    for each_id in held:
        total = total.plus(by_id[each_id])
    assert admission.used == total
    assert total.beyond(NODE) is None
    assert len(admission) == len(waiting)
    assert {each_id for each_id in by_id if admission.position(each_id) is not None} == waiting


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=12), st.integers(1, 3))
def test_position_is_the_number_served_before(groups: list[str], room: int) -> None:
    """The position told to each that waits is exactly how many are admitted before it."""
    admission = Admission(Need(memory_bytes=room, sandboxes=99))
    for number in range(room):
        assert admission.ask(Ticket(f"held{number}", "z", need(1)))
    for number, group in enumerate(groups):
        assert not admission.ask(Ticket(str(number), group, need(1)))
    told = {str(number): admission.position(str(number)) for number in range(len(groups))}
    served: list[str] = []
    freed = [f"held{number}" for number in range(room)]
    while len(served) < len(groups):
        for ticket in admission.release(freed.pop(0)):
            assert told[ticket.id] == len(served)
            served.append(ticket.id)
            freed.append(ticket.id)
    assert admission.position(served[0]) is None


def test_projects_take_turns_before_groups() -> None:
    """A project with ten jobs gets no more turns than one with a single job."""
    admission = Admission(Need(memory_bytes=1, sandboxes=99))
    assert admission.ask(Ticket("first", "z", need(1), "p0"))
    for number in range(10):
        admission.ask(Ticket(f"p1-{number}", f"job{number}", need(1), "p1"))
    for number in range(3):
        admission.ask(Ticket(f"p2-{number}", "job", need(1), "p2"))
    served, freed = [], "first"
    while admitted := admission.release(freed):
        (freed,) = [each.id for each in admitted]
        served.append(freed)
    assert served[:6] == ["p1-0", "p2-0", "p1-1", "p2-1", "p1-2", "p2-2"]
    assert served[6:] == [f"p1-{number}" for number in range(3, 10)]


def test_a_group_at_its_most_is_passed_over_and_keeps_its_place() -> None:
    """max_live holds only its own job back, on an empty node too, and ends with the next of its sandboxes."""
    admission = Admission(Need(memory_bytes=3, sandboxes=99))
    job = ("", "job")
    admission.limit(job, 1)
    assert admission.ask(Ticket("one", "job", need(1)))
    assert admission.obstacle(Ticket("two", "job", need(1))) == "max_live"
    assert not admission.ask(Ticket("two", "job", need(1)))
    assert admission.ask(Ticket("other", "else", need(1)))
    assert (admission.live(job), admission.waiting(job), len(admission)) == (1, 1, 1)
    assert [each.id for each in admission.release("one")] == ["two"]
    assert not admission.ask(Ticket("three", "job", need(1)))
    assert [each.id for each in admission.limit(job, None)] == ["three"]


def test_a_large_request_of_a_group_at_its_most_blocks_nobody() -> None:
    """Not to be overtaken is for those whose turn it can be."""
    admission = Admission(NODE)
    admission.limit(("", "job"), 1)
    assert admission.ask(Ticket("one", "job", need(50)))
    assert not admission.ask(Ticket("large", "job", need(60)))
    assert admission.ask(Ticket("small", "else", need(1)))
    assert [each.id for each in admission.release("one")] == ["large"]


def test_what_is_found_alive_counts_for_its_group() -> None:
    """After a restart of the edge a job has as many as live, and not that many more."""
    admission = Admission(NODE)
    admission.hold("found", need(1), ("", "job"))
    admission.limit(("", "job"), 1)
    assert admission.obstacle(Ticket("more", "job", need(1))) == "max_live"


jobs = st.lists(
    st.tuples(st.sampled_from(["ask", "release", "limit"]), st.integers(0, 3), st.integers(0, 20)), max_size=60
)


@given(jobs)
def test_no_group_has_more_than_its_most_and_nobody_starves(script: list[tuple[str, int, int]]) -> None:
    """After any sequence each job is within its limit; once all limits go and all live ones end, all are served."""
    admission = Admission(Need(memory_bytes=4, sandboxes=99))
    live: dict[str, str] = {}
    waiting: dict[str, str] = {}
    most: dict[str, int] = {}

    def admit(tickets: list[Ticket]) -> None:
        for each in tickets:
            live[each.id] = waiting.pop(each.id)
            assert sum(group == each.group for group in live.values()) <= most.get(each.group, 99)

    for count, (what, group, number) in enumerate(script):
        name = f"job{group}"
        if what == "ask":
            ticket = Ticket(f"t{count}", name, need(1), f"p{group % 2}")
            waiting[ticket.id] = name
            if admission.ask(ticket):
                admit([ticket])
        elif what == "limit":
            most[name] = number % 4
            admit(admission.limit((f"p{group % 2}", name), most[name]))
        elif live:
            gone = sorted(live)[number % len(live)]
            del live[gone]
            admit(admission.release(gone))
    most.clear()
    for group in range(4):
        admit(admission.limit((f"p{group % 2}", f"job{group}"), None))
    while live:
        gone = next(iter(live))
        del live[gone]
        admit(admission.release(gone))
    assert not waiting and len(admission) == 0


def test_groups_take_turns() -> None:
    """One group's hundred requests do not keep another's first one waiting behind them."""
    admission = Admission(Need(memory_bytes=1, sandboxes=99))
    assert admission.ask(Ticket("first", "a", need(1)))
    for number in range(100):
        admission.ask(Ticket(f"a{number}", "a", need(1)))
    admission.ask(Ticket("b0", "b", need(1)))
    assert admission.position("b0") == 1
    assert [each.id for each in admission.release("first")] == ["a0"]
    assert [each.id for each in admission.release("a0")] == ["b0"]


def test_a_large_request_is_not_overtaken() -> None:
    """Small requests that would fit wait behind the large one whose turn it is."""
    admission = Admission(NODE)
    assert admission.ask(Ticket("half", "a", need(60)))
    assert not admission.ask(Ticket("large", "a", need(80)))
    assert not admission.ask(Ticket("small", "b", need(1)))
    assert [each.id for each in admission.release("half")] == ["large", "small"]


def test_pending_disk_counts_as_used() -> None:
    """Space of removed sandboxes that is not yet back is not given away twice."""
    admission = Admission(Need(disk_bytes=100, sandboxes=9))
    admission.resize(admission.capacity, 80)
    assert not admission.ask(Ticket("x", "a", Need(disk_bytes=30, sandboxes=1)))
    assert admission.lacking(Need(disk_bytes=30, sandboxes=1)) == "disk_bytes"
    assert [each.id for each in admission.resize(admission.capacity, 10)] == ["x"]


def test_a_sandbox_found_alive_is_counted_once() -> None:
    """Adopting what is held already changes nothing; releasing it twice neither."""
    admission = Admission(NODE)
    admission.hold("x", need(40))
    admission.hold("x", need(40))
    assert admission.used.memory_bytes == 40
    admission.release("x")
    admission.release("x")
    assert admission.used == Need()
