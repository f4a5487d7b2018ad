"""Rules for other protocols than TCP, compiled to what a link lets pass."""

from __future__ import annotations

import ipaddress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.api.network import Network, NetworkRule
from dsec.errors import InvalidArgument, Unsupported
from dsec.network import NetworkSettings, NetworkUplink, RoutedRule, compile_network, parse_network
from dsec.network import parse_settings_problem as problem

SETTINGS = NetworkSettings(uplink=NetworkUplink(interface="eth1"), allowed_ranges=("10.9.0.0/16", "169.254.0.0/16"))


def rule(action: str = "allow", **more: Any) -> NetworkRule:
    """One rule."""
    return msgspec.convert({"action": action, **more}, NetworkRule)


def routed(*rules: NetworkRule, **more: Any) -> tuple[RoutedRule, ...]:
    """What the link of a policy of these rules lets pass; nothing: it has none."""
    found = compile_network(Network(rules=rules, **more), SETTINGS).routed
    return () if isinstance(found, msgspec.UnsetType) else found


def test_protocols() -> None:
    """Each is known by its number; any with ports is TCP and UDP, and TCP through the proxy as well."""
    udp = rule(protocol="udp", addresses="1.0.0.0/8", ports=(5000, "6000-6010"))
    assert routed(udp) == (
        RoutedRule(allow=True, protocol=17, range="1.0.0.0/8", ports=((5000, 5000), (6000, 6010))),
    )
    assert routed(rule(protocol="icmp")) == (RoutedRule(allow=True, protocol=1),)
    assert routed(rule(protocol="any", addresses="1.1.1.1")) == (RoutedRule(allow=True, range="1.1.1.1/32"),)
    both = rule(protocol="any", ports=(9,))
    assert [each.protocol for each in routed(both)] == [6, 17]
    table = compile_network(Network(rules=(udp, both, rule("deny", protocol="any", addresses="2.0.0.0/8"))), SETTINGS)
    assert [(each.allow, each.range, each.ports) for each in table.rules] == [
        (True, None, ((9, 9),)), (False, "2.0.0.0/8", ()),
    ]  # fmt: skip


def test_only_who_asks_has_a_link() -> None:
    """Rules for TCP, denials, and policies in short forms need none, on a node without an uplink too; what is sent of
    them to the runtime is what it was.
    """
    network = Network(rules=(rule(addresses="1.0.0.0/8"), rule("deny", protocol="udp"), rule("deny", protocol="any")))
    for settings in (SETTINGS, NetworkSettings()):
        table = compile_network(network, settings)
        assert "routed" not in msgspec.to_builtins(table)
    shorts: tuple[object, ...] = ("open", {})
    for short in shorts:
        asked = parse_network(short)
        assert asked is not None
        assert "routed" not in msgspec.to_builtins(compile_network(asked, NetworkSettings()))


def test_a_node_without_an_uplink_names_the_setting() -> None:
    """Every protocol but TCP needs one."""
    for protocol in ("udp", "icmp", "any"):
        with pytest.raises(Unsupported, match=r"network\.uplink"):
            compile_network(Network(rules=(rule(protocol=protocol),)), NetworkSettings())


@pytest.mark.parametrize(
    "wrong",
    [
        {"protocol": "udp", "domain": "a.test"}, {"protocol": "any", "domain": "*.test"},
        {"protocol": "icmp", "ports": (1,)}, {"protocol": "udp", "addresses": "10.0.0.0/8x"},
        {"protocol": "udp", "addresses": "10.0.0.1"}, {"protocol": "any", "addresses": "192.168.0.0/16"},
        {"protocol": "udp", "addresses": "169.254.169.254"}, {"protocol": "udp", "addresses": "127.0.0.1"},
        {"protocol": "udp", "addresses": "224.0.0.1"}, {"protocol": "any", "addresses": "198.18.3.4"},
        {"protocol": "udp", "ports": (0,)},
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    """Names, ports of what has none, and addresses that could never be reached, metadata whatever is opened."""
    with pytest.raises(InvalidArgument):
        routed(rule(**wrong))


@pytest.mark.parametrize("wrong", [{"ports": (0,)}, {"ports": ("x",)}, {"domain": "a.test"}, {"addresses": "1.2.3"}])
def test_denials_make_sense_too(wrong: dict[str, Any]) -> None:
    """Also where nothing is allowed that they are taken from."""
    with pytest.raises(InvalidArgument):
        routed(rule("deny", protocol="udp", **wrong))


def test_what_is_not_built_is_refused_by_name() -> None:
    """Addresses of IPv6, and limits that would not count what is routed."""
    with pytest.raises(Unsupported, match="IPv6"):
        routed(rule(protocol="udp", addresses="2600::/12"))
    for field in ("max_bytes", "max_bytes_per_s", "max_connections_per_minute"):
        with pytest.raises(Unsupported, match=field):
            routed(rule(protocol="udp"), **{field: 9})
        assert routed(rule("deny", protocol="udp"), **{field: 9}) == ()


def test_opened_ranges_can_be_asked_for() -> None:
    """A private range that the operator opened, one that holds such a one, and one that is not all protected."""
    for addresses in ("10.9.1.0/24", "10.0.0.0/8", "0.0.0.0/0", "8.0.0.0/5"):
        assert routed(rule(protocol="udp", addresses=addresses))


def test_the_order_of_rules_holds_for_tcp_too() -> None:
    """What a rule for TCP says before one for any protocol stays the proxy's; a name there could not be known."""
    anything = rule(protocol="any", addresses="1.0.0.0/8")
    first = rule("deny", addresses="1.1.1.1", ports=(22,))
    kept = RoutedRule(allow=False, protocol=6, range="1.1.1.1/32", ports=((22, 22),))
    assert routed(first, anything) == (kept, RoutedRule(allow=True, range="1.0.0.0/8"))
    assert routed(anything, first) == (RoutedRule(allow=True, range="1.0.0.0/8"),)
    assert routed(rule(addresses="2600::/12"), anything) == (RoutedRule(allow=True, range="1.0.0.0/8"),)
    with pytest.raises(InvalidArgument, match=r"a\.test"):
        routed(rule(domain="a.test"), anything)
    assert routed(anything, rule(domain="a.test"))


def test_there_are_only_so_many() -> None:
    """Each port counts: every packet is held to them one by one."""
    most = rule(protocol="udp", ports=tuple(range(1, 65)))
    assert len(routed(most, most)) == 2
    with pytest.raises(InvalidArgument, match="128"):
        routed(most, most, rule(protocol="icmp"))
    with pytest.raises(InvalidArgument, match="256"):
        routed(*[rule("deny", protocol="udp")] * 257)


def test_uplinks_are_checked() -> None:
    """What could be another file than that of a setting or a namespace is no name."""
    for interface in ("", "a/b", "a b", "x" * 16, "dsec-1", "a:1"):
        assert "uplink.interface" in (problem(NetworkSettings(uplink=NetworkUplink(interface=interface))) or "")
    for namespace in ("", "../x", "a/b", ".x"):
        uplink = NetworkUplink(interface="e", namespace=namespace)
        assert "uplink.namespace" in (problem(NetworkSettings(uplink=uplink)) or "")
    assert problem(SETTINGS) is None


_RULES = st.builds(
    rule,
    action=st.sampled_from(["allow", "deny"]),
    protocol=st.sampled_from(["tcp", "udp", "icmp", "any"]),
    addresses=st.sampled_from([None, "1.0.0.0/8", "1.1.1.1", "0.0.0.0/0"]),
    ports=st.sampled_from([(), (80,), ("443-9000",)]),
).filter(lambda made: made.protocol != "icmp" or not made.ports)


@given(
    st.lists(_RULES, max_size=6), st.sampled_from([6, 17, 1, 132]),
    st.sampled_from(["1.1.1.1", "1.2.3.4", "9.9.9.9"]), st.sampled_from([80, 8000, 10]),
)  # fmt: skip
def test_the_first_rule_that_matches_decides(
    rules: list[NetworkRule], protocol: int, address: str, port: int
) -> None:
    """What the link lets pass is what the first rule about it allows, of all rules there are; TCP only where that
    rule is for any protocol.
    """
    matching = [each for each in rules if _is_about(each, protocol, address, port)]
    wanted = bool(matching) and matching[0].action == "allow" and (protocol != 6 or matching[0].protocol == "any")
    compiled = [each for each in routed(*rules) if _matches(each, protocol, address, port)]
    assert (bool(compiled) and compiled[0].allow) == wanted


def _is_about(asked: NetworkRule, protocol: int, address: str, port: int) -> bool:
    numbers = {"tcp": (6,), "udp": (17,), "icmp": (1,), "any": (6, 17) if asked.ports else (6, 17, 1, 132)}
    found = {(): True, (80,): port == 80, ("443-9000",): 443 <= port <= 9000}[asked.ports]
    within = asked.addresses is None or ipaddress.ip_address(address) in ipaddress.ip_network(asked.addresses)
    return protocol in numbers[asked.protocol] and within and found


def _matches(compiled: RoutedRule, protocol: int, address: str, port: int) -> bool:
    within = compiled.range is None or ipaddress.ip_address(address) in ipaddress.ip_network(compiled.range)
    ports = not compiled.ports or any(first <= port <= last for first, last in compiled.ports)
    return compiled.protocol in (0, protocol) and within and ports
