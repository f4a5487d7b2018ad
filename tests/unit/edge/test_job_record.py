"""Jobs as pure records under a clock of the test's: who holds one, for how long, and who is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.api.jobs import JobRequest
from dsec.edge import job_record
from dsec.edge.job_record import Claim, JobRecord, check_claim, claim_of
from dsec.errors import Conflict, Denied, Fenced


def take(known: JobRecord | None, holder: str, now: float, principal: str = "alice") -> JobRecord:
    request = JobRequest(name="train", holder=holder, lease_s=60)
    return job_record.acquired(known, request, principal, "default", now)


def test_a_newer_holder_fences_the_older() -> None:
    """The former holder's claim is refused from then on, the newer one's passes."""
    old = take(None, "one", 100.0)
    assert check_claim(old, old.claim, "alice") is old
    new = take(old, "two", 100.0)
    assert new.fence > old.fence
    with pytest.raises(Fenced) as refused:
        check_claim(new, old.claim, "alice")
    assert (refused.value.code, refused.value.fault) == ("fenced", "caller")
    assert isinstance(refused.value, Conflict) and not refused.value.retryable
    assert check_claim(new, new.claim, "alice") is new


def test_the_same_holder_keeps_its_number() -> None:
    """Asking twice, after a lost answer say, fences nobody."""
    first = take(None, "one", 100.0)
    again = take(first, "one", 130.0)
    assert (again.fence, again.expires_at) == (first.fence, 190.0)


def test_a_forgotten_job_gives_no_old_number_again() -> None:
    """A record that was reaped does not let an old claim pass as the new holder's."""
    old = take(None, "one", 100.0)
    with pytest.raises(Fenced):
        check_claim(None, old.claim, "alice")
    new = take(None, "two", 200.0)
    with pytest.raises(Fenced):
        check_claim(new, old.claim, "alice")


@given(st.lists(st.tuples(st.sampled_from(["take", "renew", "end"]), st.floats(0, 5)), max_size=20))
def test_numbers_only_grow(script: list[tuple[str, float]]) -> None:
    """Whatever happens, even while the clock stands still: each new holder's number is larger than all before."""
    record, now, fences = None, 1000.0, [0]
    for count, (what, passed) in enumerate(script):
        now += passed
        if what == "take" or record is None:
            record = take(record, f"holder{count}", now)
            assert record.fence > fences[-1]
            fences.append(record.fence)
        elif what == "renew":
            record = job_record.renewed(record, now)
        else:
            record = job_record.ended(record, now)
        for fence in fences[1:-1]:
            with pytest.raises(Fenced):
                check_claim(record, Claim("train", fence), "alice")


def test_the_lease_and_its_states() -> None:
    """Held until it is over or told to be; a late sign of life of the same holder begins it anew; ended is final."""
    record = take(None, "one", 100.0)
    assert [record.state(at) for at in (100.0, 159.9, 160.0)] == ["held", "held", "lost"]
    renewed = job_record.renewed(record, 200.0)
    assert renewed.state(259.0) == "held"
    lost = job_record.lost(renewed, renewed.fence, 210.0)
    assert (lost.state(211.0), lost.lost_at) == ("lost", 210.0)
    assert job_record.renewed(lost, 220.0).state(221.0) == "held"
    assert job_record.lost(renewed, renewed.fence - 1, 210.0) is renewed
    over = job_record.ended(renewed, 230.0)
    assert over.state(231.0) == "ended" and job_record.ended(over, 300.0) is over
    with pytest.raises(Fenced):
        check_claim(over, over.claim, "alice")
    assert check_claim(over, over.claim, "alice", ended_too=True) is over
    assert take(over, "one", 240.0).fence > over.fence


def test_jobs_belong_to_a_principal() -> None:
    """Nobody else takes one that has not ended, or speaks for its holder."""
    record = take(None, "one", 100.0)
    with pytest.raises(Denied):
        take(record, "two", 100.0, "mallory")
    with pytest.raises(Denied):
        check_claim(record, record.claim, "mallory")
    assert take(job_record.ended(record, 101.0), "two", 102.0, "bob").principal == "bob"


def test_a_number_from_the_future_is_refused() -> None:
    """A claim that nobody was given is no claim."""
    record = take(None, "one", 100.0)
    with pytest.raises(Conflict):
        check_claim(record, Claim("train", record.fence + 1), "alice")


@pytest.mark.parametrize("text", ["", "train", ";7", "train;", "train;x", "train;-1", "train;7 "])
def test_malformed_claims(text: str) -> None:
    """A header that is none is refused, never ignored: the request would pass unfenced."""
    with pytest.raises(Conflict):
        claim_of(text)


def test_claims() -> None:
    """NAME;NUMBER, or none at all."""
    assert claim_of("a;b;7") == Claim("a;b", 7)
    assert claim_of("train;7") == Claim("train", 7)
    assert claim_of(None) is None
