"""Policies as callers say them, compiled and evaluated."""

from __future__ import annotations

import ipaddress
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.api.network import Network, NetworkRule
from dsec.errors import InvalidArgument, NotFound, Unsupported
from dsec.network import NetworkSettings, compile_network, decide, may_resolve, parse_network, parse_settings_problem
from dsec.network.compile import NetworkGroup

from .vectors import ADDRESSES, NAMES, PORTS, SETTINGS, vectors

GOLDEN = Path(__file__).parents[2] / "golden" / "egress.json"


def test_the_vectors_are_what_the_reference_says() -> None:
    """The file that the proxy's test reads has what this implementation decides."""
    found = json.loads(json.dumps(vectors()))
    assert json.loads(GOLDEN.read_text()) == found


def test_forms_of_a_policy() -> None:
    """None, everything, the paper's groups and the full form; anything else is refused by name."""
    assert parse_network("none") is None
    assert parse_network("open") == Network(default="allow")
    assert parse_network({"pypi": True, "npm": False}) == Network(groups={"pypi": True, "npm": False})
    assert parse_network({}) == Network()
    full = {"rules": [{"action": "allow", "domain": "a.test"}], "default": "deny"}
    assert parse_network(full) == Network(rules=(NetworkRule(action="allow", domain="a.test"),))
    for wrong in ("all", 3, ["open"], {"rules": 1}, {"default": "maybe"}):
        with pytest.raises(InvalidArgument):
            parse_network(wrong)
    with pytest.raises(Unsupported, match="udp"):
        parse_network({"rules": [], "udp": [1]})


@pytest.mark.parametrize(
    "rule",
    [
        {"domain": "*"}, {"domain": "a b"}, {"domain": "10.0.0.1"}, {"domain": "*.*.test"}, {"domain": ""},
        {"addresses": "10.0.0.1/8"}, {"addresses": "x"}, {"ports": (0,)}, {"ports": (70000,)}, {"ports": ("9-1",)},
        {"ports": ("x",)}, {"domain": "a..test"}, {"domain": "a.0x1"},
    ],
)  # fmt: skip
def test_rules_that_mean_nothing_are_refused(rule: dict[str, Any]) -> None:
    """No rule is taken that could match something else than it says."""
    with pytest.raises(InvalidArgument):
        compile_network(Network(rules=(NetworkRule(action="allow", **rule),)), NetworkSettings())


def test_a_policy_has_a_size() -> None:
    """As many rules as there may be are taken when their names are usual, and refused when they are the longest."""
    usual = tuple(
        NetworkRule(action="allow", domain=f"host-{n}.some.mirror.example", ports=(443,)) for n in range(256)
    )
    assert len(compile_network(Network(rules=usual), NetworkSettings()).rules) == 256
    ports = tuple(f"{n}-{n + 500}" for n in range(50_000, 50_064))
    long = NetworkRule(action="allow", domain=".".join(["a" * 60] * 4), ports=ports)
    with pytest.raises(InvalidArgument, match="too large"):
        compile_network(Network(rules=(long,) * 256), NetworkSettings())


def test_a_group_that_the_node_does_not_have_is_named() -> None:
    """With those that it has."""
    with pytest.raises(NotFound, match=r"'conda'.*npm, pypi"):
        compile_network(Network(groups={"conda": True}), SETTINGS)


def test_a_rate_goes_with_policies_without_names() -> None:
    """Beside names it is refused, since plain HTTP would not be slowed."""
    assert compile_network(Network(default="allow", max_bytes_per_s=9), SETTINGS).max_bytes_per_s == 9
    with pytest.raises(Unsupported, match="max_bytes_per_s"):
        compile_network(Network(groups={"pypi": True}, max_bytes_per_s=9), SETTINGS)


def test_names_are_compared_in_one_form() -> None:
    """Case, a dot at the end and other alphabets make no second name."""
    rules = tuple(NetworkRule(action="allow", domain=each) for each in ("A.Test.", "*.Bücher.test"))
    table = compile_network(Network(rules=rules), NetworkSettings())
    assert [rule.domain for rule in table.rules] == ["a.test", "*.xn--bcher-kva.test"]


def test_settings_are_checked() -> None:
    """What an operator got wrong is said with its place."""
    assert parse_settings_problem(SETTINGS) is None
    for wrong, place in (
        (NetworkSettings(groups={"A": NetworkGroup(domains=())}), "groups.A"),
        (NetworkSettings(groups={"a": NetworkGroup(domains=("x y",))}), "groups.a"),
        (NetworkSettings(allowed_ranges=("10.0.0.1/8",)), "allowed_ranges"),
        (NetworkSettings(resolvers=("dns.test",)), "resolvers"),
    ):
        assert place in (parse_settings_problem(wrong) or "")
    found = NetworkSettings(resolvers=("192.0.2.1", "192.0.2.1:5353", "2001:db8::1", "[2001:db8::1]:54"))
    assert found.resolver_addresses == ["192.0.2.1:53", "192.0.2.1:5353", "[2001:db8::1]:53", "[2001:db8::1]:54"]


_RULES = st.builds(
    NetworkRule,
    action=st.sampled_from(["allow", "deny"]),
    domain=st.sampled_from([None, "npm.test", "*.files.pypi.test", "*.test"]),
    addresses=st.sampled_from([None, "1.0.0.0/8", "0.0.0.0/0", "2000::/3", "10.0.0.0/8"]),
    ports=st.sampled_from([(), (80,), (443, "8000-9000")]),
)
_POLICIES = st.builds(
    Network, rules=st.lists(_RULES, max_size=6).map(tuple), default=st.sampled_from(["allow", "deny"])
)


@given(_POLICIES, st.sampled_from(NAMES), st.sampled_from(ADDRESSES), st.sampled_from(PORTS))
def test_the_compiled_table_means_what_was_said(policy: Network, name: str | None, address: str, port: int) -> None:
    """The first rule of the caller's that matches decides, protected addresses are out of reach, and what may be
    reached by a name of a rule may be looked up.
    """
    table = compile_network(policy, NetworkSettings())
    allow = decide(table, name, address, port).allow
    found = ipaddress.ip_address(address)
    if not found.is_global or found.is_multicast:
        assert not allow
        return
    matching = [rule for rule in policy.rules if _matches(rule, name, address, port)]
    wanted = matching[0].action if matching else policy.default
    if decide(table, name, address, port).reason != "protected_address":
        assert allow == (wanted == "allow")
    if allow and name is not None and matching and matching[0].domain is not None:
        earlier = policy.rules[: policy.rules.index(matching[0])]
        assert may_resolve(table, name) or any(rule.action == "deny" for rule in earlier)


def _matches(rule: NetworkRule, name: str | None, address: str, port: int) -> bool:
    domain = rule.domain
    if domain is not None:
        if name is None:
            if rule.action == "allow":
                return False
        elif not (name == domain or (domain[0] == "*" and name.endswith(domain[1:]))):
            return False
    if rule.addresses is not None and ipaddress.ip_address(address) not in ipaddress.ip_network(rule.addresses):
        return False
    bounds = [each if isinstance(each, str) else f"{each}-{each}" for each in rule.ports]
    ranges = [tuple(map(int, each.split("-"))) for each in bounds]
    return not ranges or any(first <= port <= last for first, last in ranges)
