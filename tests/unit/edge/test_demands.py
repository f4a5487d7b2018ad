"""Limits and other fields of a create: what is impossible is refused, naming the field."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.api.types import CreateRequest
from dsec.edge.demands import PROFILES, check_create, demand_of
from dsec.errors import InvalidArgument, Unsupported
from dsec.node.config import NodeConfig, Overcommit


def request(**fields: Any) -> CreateRequest:
    return CreateRequest(**({"image": "x", "key": "k"} | fields))


@given(memory=st.floats(6, 1e6), cpu=st.floats(0.01, 1e4), disk=st.floats(1, 1e6), pids=st.integers(2, 1_000_000))
def test_a_lone_limit_implies_a_smaller_request(memory: float, cpu: float, disk: float, pids: int) -> None:
    """Requests are positive, at most the limit, and the limit divided by the node's factor."""
    demand = demand_of(request(memory_mib=memory, cpu=cpu, disk_mib=disk, pids=pids), Overcommit())
    assert 0 < demand.need.memory_bytes <= demand.memory_bytes
    assert demand.need.memory_bytes == math.ceil(memory / 6 * (1 << 20))
    assert 0 < demand.need.cpu_milli <= demand.cpu_milli
    assert 0 < demand.need.disk_bytes <= demand.disk_bytes
    assert 0 < demand.need.pids <= demand.pids == pids
    assert demand.need.sandboxes == 1


def test_a_pair_is_request_and_limit() -> None:
    """Both numbers of a pair are taken as they are."""
    demand = demand_of(request(memory_mib=(100, 200), cpu=(1.5, 3)), Overcommit())
    assert (demand.need.memory_bytes, demand.memory_bytes) == (100 << 20, 200 << 20)
    assert (demand.need.cpu_milli, demand.cpu_milli) == (1500, 3000)


@pytest.mark.parametrize("field", ["memory_mib", "cpu", "disk_mib", "pids"])
@pytest.mark.parametrize(
    "value", [0, -1, math.nan, math.inf, -math.inf, (0, 10), (-1, 10), (20, 10), (math.nan, 10), (10, math.inf)]
)
def test_impossible_limits_are_refused(field: str, value: Any) -> None:
    """Each is an InvalidArgument that names the field."""
    with pytest.raises(InvalidArgument, match=field):
        demand_of(request(**{field: value}), Overcommit())


@pytest.mark.parametrize(("field", "value"), [("memory_mib", 5), ("disk_mib", 0.5), ("cpu", 0.001), ("pids", 1)])
def test_too_small_limits_are_refused(field: str, value: float) -> None:
    """A sandbox that could not run anything is refused at once."""
    with pytest.raises(InvalidArgument, match=field):
        demand_of(request(**{field: value}), Overcommit())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("backend", "microvm"),
        ("network", {"rules": [], "udp": [53]}),
        ("mounts", ("/data",)),
        ("qos", "batch"),
        ("profile", "unconfined"),
    ],
)
def test_what_waits_is_refused_by_name(field: str, value: Any) -> None:
    """Unsupported names the field and what was asked of it."""
    with pytest.raises(Unsupported, match=field):
        check_create(request(**{field: value}), NodeConfig())


@pytest.mark.parametrize(
    "fields",
    [
        {"deadline_s": 0},
        {"deadline_s": math.nan},
        {"idle_timeout_s": -1},
        {"lifetime_s": 8 * 86400},
        {"lifetime_s": math.inf},
        {"exec_timeout_s": 0},
        {"shm_mib": -1},
        {"shm_mib": math.nan},
        {"workdir": "relative"},
        {"protected": ("opt",)},
        {"protected": ("/",)},
        {"protected": ("/opt/",)},
        {"protected": ("/opt/../etc",)},
        {"protected": ("/proc/self",)},
        {"protected": ("/a\0b",)},
        {"protected": ("/" + "x" * 1024,)},
        {"protected": tuple(f"/{number}" for number in range(33))},
        {"command": []},
        {"env": {"A=B": "c"}},
        {"env": {"": "c"}},
        {"env": {"A": "nul\0"}},
        {"env": {"A": "x" * (1 << 20)}},
        {"labels": {"": "x"}},
        {"labels": {"a": "x" * 257}},
        {"labels": {str(number): "x" for number in range(65)}},
        {"name": "-bad"},
        {"image": ""},
        {"key": "with space"},
    ],
)
def test_nonsense_is_refused(fields: dict[str, Any]) -> None:
    """Each is an InvalidArgument."""
    with pytest.raises(InvalidArgument):
        check_create(request(**fields), NodeConfig())


def test_a_plain_request_passes() -> None:
    """The defaults are accepted."""
    check_create(request(), NodeConfig())


@pytest.mark.parametrize("profile", PROFILES)
def test_profiles_have_names(profile: str) -> None:
    """Each of the three is accepted, and none but these (above)."""
    check_create(request(profile=profile), NodeConfig())
