"""Rules for protocols that do not end in the proxy: compiled to what a link's packet filter does."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from dsec.api.network import Network, NetworkRule
from dsec.errors import Unsupported
from dsec.network.ranges import ports_of, range_of, wrong
from dsec.network.table import CLOSED, NEVER_ROUTED, RoutedRule

__all__ = ["compile_routed"]

_MOST = 128
"""Rules, each port or range of ports counted as one: every packet is held to them one by one."""
_NUMBERS = {"icmp": 1, "tcp": 6, "udp": 17, "any": 0}
_TCP, _UDP = _NUMBERS["tcp"], _NUMBERS["udp"]
_REMEDY = 'A rule for "udp", "icmp" or "any" names addresses of IPv4, and ports unless it is for "icmp"'


def compile_routed(network: Network, opened: Sequence[str], *, has_uplink: bool) -> tuple[RoutedRule, ...]:
    """The rules of a sandbox's link, in their order; none: it needs no link.

    Raises InvalidArgument for what could never pass or cannot be told apart, and Unsupported for what is not built,
    a node without an uplink among it.
    """
    for rule in network.rules:
        _check(rule, opened)
    if not any(rule.action == "allow" and rule.protocol != "tcp" for rule in network.rules):
        return ()
    if not has_uplink:
        raise Unsupported(
            'rules for "udp", "icmp" and "any" need a way out, and this node has none: network.uplink is not set',
            phase="network",
            remedy="The node's operator names an interface in its settings, [network] uplink",
        )
    for field in ("max_bytes", "max_bytes_per_s", "max_connections_per_minute"):
        if getattr(network, field) is not None:
            raise Unsupported(
                f"{field} beside rules for other protocols than tcp is not built: routed bytes are not counted",
                phase="network",
                remedy=f"Leave {field} out",
            )
    whole = max((at for at, rule in enumerate(network.rules) if _routes_all(rule)), default=-1)
    found = [each for at, rule in enumerate(network.rules) for each in _routed(rule, later=at < whole)]
    if sum(max(1, len(each.ports)) for each in found) > _MOST:
        raise wrong(f"a policy has at most {_MOST} rules that are routed, each port or range of ports counted as one")
    return tuple(found)


def _check(rule: NetworkRule, opened: Sequence[str]) -> None:
    """Whether a rule for another protocol than TCP says something that can be."""
    if rule.protocol == "tcp":
        return
    if rule.domain is not None:
        raise wrong(
            f"a rule for {rule.protocol!r} knows no names: {rule.domain[:80]!r} cannot be its domain", _REMEDY
        )
    if rule.protocol == "icmp" and rule.ports:
        raise wrong('a rule for "icmp" has no ports', _REMEDY)
    ports_of(rule.ports)
    if rule.addresses is None:
        return
    asked = ipaddress.ip_network(range_of(rule.addresses))
    if isinstance(asked, ipaddress.IPv6Network):
        raise Unsupported(
            f"{rule.addresses[:80]!r}: addresses of IPv6 are not routed, only reached by TCP",
            phase="network",
            remedy=_REMEDY,
        )
    if rule.action == "allow" and not _can_be_reached(asked, opened):
        raise wrong(
            f"{rule.addresses[:80]!r} is protected: a rule for {rule.protocol!r} could never let anything pass"
        )


def _can_be_reached(asked: ipaddress.IPv4Network, opened: Sequence[str]) -> bool:
    def within(ranges: Sequence[str]) -> bool:
        return any(asked.subnet_of(each) for each in _fours(ranges))

    if within(NEVER_ROUTED):
        return False
    return not within(CLOSED) or any(asked.overlaps(each) for each in _fours(opened))


def _fours(ranges: Sequence[str]) -> list[ipaddress.IPv4Network]:
    found = map(ipaddress.ip_network, ranges)
    return [each for each in found if isinstance(each, ipaddress.IPv4Network)]


def _routes_all(rule: NetworkRule) -> bool:
    return rule.protocol == "any" and rule.action == "allow"


def _routed(rule: NetworkRule, *, later: bool) -> list[RoutedRule]:
    """What a rule means for the link. One for TCP keeps what it is about from a later one that routes everything."""
    if rule.protocol == "tcp":
        if not later:
            return []
        if rule.domain is not None:
            raise wrong(f'the rule for {rule.domain[:80]!r} must come after the one for "any", which knows no names')
    text = None if rule.addresses is None else range_of(rule.addresses)
    if text is not None and ":" in text:
        return []
    allow = rule.action == "allow" and rule.protocol != "tcp"
    both = rule.protocol == "any" and rule.ports
    numbers = (_TCP, _UDP) if both else (_NUMBERS[rule.protocol],)
    return [RoutedRule(allow=allow, protocol=each, range=text, ports=ports_of(rule.ports)) for each in numbers]
