"""What a table means: the reference that the proxy's evaluation is held to."""

from __future__ import annotations

import ipaddress

import msgspec

from dsec.network.table import EgressRule, EgressTable

__all__ = ["Verdict", "decide", "may_resolve"]


class Verdict(msgspec.Struct, frozen=True):
    """Whether something may pass; ``reason`` where not: ``policy`` or ``protected_address``."""

    allow: bool
    reason: str = "policy"


def decide(table: EgressTable, name: str | None, address: str, port: int) -> Verdict:
    """Whether a connection may pass. A name that is not given is one that every denial means and no permission."""
    if _within(address, table.closed) and not _within(address, table.opened):
        return Verdict(False, "protected_address")
    for rule in table.rules:
        if _matches(rule, name, address, port):
            return Verdict(rule.allow)
    return Verdict(table.allow)


def may_resolve(table: EgressTable, name: str) -> bool:
    """Whether a name may be looked up: whether a rule for names, or one for any host, lets something to it pass."""
    for rule in table.rules:
        if rule.domain is not None and not _is_domain_of(rule.domain, name):
            continue
        if rule.allow and (rule.domain is not None or rule.range is None):
            return True
        if not rule.allow and rule.range is None and not rule.ports:
            return False
    return table.allow


def _matches(rule: EgressRule, name: str | None, address: str, port: int) -> bool:
    if rule.domain is not None:
        named = not rule.allow if name is None else _is_domain_of(rule.domain, name)
        if not named:
            return False
    if rule.range is not None and not _within(address, (rule.range,)):
        return False
    return not rule.ports or any(first <= port <= last for first, last in rule.ports)


def _is_domain_of(domain: str, name: str) -> bool:
    return name.endswith(domain[1:]) and len(name) >= len(domain) if domain.startswith("*.") else name == domain


def _within(address: str, ranges: tuple[str, ...]) -> bool:
    found = ipaddress.ip_address(address)
    return any(found in ipaddress.ip_network(each) for each in ranges)
