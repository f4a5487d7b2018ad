"""From what a caller says to the table that the proxy evaluates."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from dsec.api.network import Network, NetworkRule
from dsec.errors import InvalidArgument, NotFound, Unsupported
from dsec.network.ranges import REMEDY, ports_of, range_of, wrong
from dsec.network.routed import compile_routed
from dsec.network.table import EgressRule, EgressTable

__all__ = [
    "NetworkGroup",
    "NetworkSettings",
    "NetworkUplink",
    "compile_network",
    "parse_network",
    "parse_settings_problem",
]

_MOST_RULES = 256
_MOST_RANGES = 128
_MOST_BYTES = 60_000
"""Of a table: the runtime refuses one of 64 KiB."""
_MOST_CONNECTIONS = 4096
_WEB_PORTS = (80, 443)
_DOMAIN = re.compile(r"(\*\.)?([a-z0-9_-]{1,63})(\.[a-z0-9_-]{1,63})*")
_GROUP = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
_INTERFACE = re.compile(r"[^\s/:]{1,15}")
_NAMESPACE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")


class NetworkGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names that belong together, such as those of a mirror. ``*.`` and a name means all below it."""

    domains: tuple[str, ...]
    ports: tuple[int | str, ...] = _WEB_PORTS


class NetworkUplink(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where what is routed leaves the node."""

    interface: str
    """Through which it goes, from that interface's address. Its ``forwarding`` (net.ipv4.conf) must be on."""
    namespace: str | None = None
    """The network namespace of that interface, by its name for ``ip netns``; None: the machine's own."""


class NetworkSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a node's operator says about networks."""

    groups: dict[str, NetworkGroup] = {}
    """By name, ``[a-z0-9-]``."""
    resolvers: tuple[str, ...] = ()
    """``ADDRESS`` or ``ADDRESS:PORT``; none: the machine's own, of /etc/resolv.conf."""
    allowed_ranges: tuple[str, ...] = ()
    """Private ranges and addresses of the node's own that sandboxes may reach where their policy allows it."""
    uplink: NetworkUplink | None = None
    """For rules for other protocols than TCP; None: they are refused."""

    @property
    def resolver_addresses(self) -> list[str]:
        """``ADDRESS:PORT`` of each; raises ValueError for what is none."""
        return [_socket_address(each) for each in self.resolvers]


def _socket_address(text: str) -> str:
    try:
        address, port = ipaddress.ip_address(text.strip("[]")), "53"
    except ValueError:
        host, _, port = text.rpartition(":")
        address = ipaddress.ip_address(host.strip("[]"))
    if not (port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"{text!r} has no such port")
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def parse_settings_problem(settings: NetworkSettings) -> str | None:
    """What is wrong with an operator's settings, in a sentence; None: nothing."""
    for name, group in settings.groups.items():
        if not _GROUP.fullmatch(name):
            return f"network.groups.{name}: a group's name is of a-z, 0-9 and -"
        try:
            _group_rules(group, allow=True)
        except InvalidArgument as error:
            return f"network.groups.{name}: {error.message}"
    if len(settings.allowed_ranges) > _MOST_RANGES:
        return f"network.allowed_ranges: at most {_MOST_RANGES}"
    for each in settings.allowed_ranges:
        try:
            ipaddress.ip_network(each)
        except ValueError:
            return f"network.allowed_ranges: {each!r} is no range"
    uplink = settings.uplink
    if uplink is not None and (not _INTERFACE.fullmatch(uplink.interface) or uplink.interface.startswith("dsec-")):
        return f"network.uplink.interface: {uplink.interface!r:.40} is no interface that could be one"
    if uplink is not None and uplink.namespace is not None and not _NAMESPACE.fullmatch(uplink.namespace):
        return f"network.uplink.namespace: {uplink.namespace!r:.80} is no name of a namespace"
    try:
        _ = settings.resolver_addresses
    except ValueError as error:
        return f"network.resolvers: {error}"
    return None


def parse_network(asked: Any) -> Network | None:
    """A policy from any of its forms: ``"none"`` (None), ``"open"``, ``{"GROUP": True, …}``, or the full one.

    Raises InvalidArgument, and Unsupported for a field that there is not.
    """
    if asked in ("none", None):
        return None
    if asked == "open":
        return Network(default="allow")
    if isinstance(asked, Network):
        return asked
    if not isinstance(asked, Mapping):
        raise InvalidArgument(f"network={asked!r:.80} is no policy", phase="network", remedy=REMEDY)
    if all(isinstance(value, bool) for value in asked.values()):
        return Network(groups=dict(asked))
    try:
        return msgspec.convert(asked, Network)
    except msgspec.ValidationError as error:
        if "unknown field" in str(error):
            raise Unsupported(f"network: {error}", phase="network", remedy=REMEDY) from None
        raise InvalidArgument(f"network: {error}", phase="network", remedy=REMEDY) from None


def compile_network(network: Network, settings: NetworkSettings) -> EgressTable:
    """The table. Raises InvalidArgument, Unsupported, and NotFound for a group that the node has not."""
    if len(network.rules) > _MOST_RULES:
        raise wrong(f"a policy has at most {_MOST_RULES} rules, not {len(network.rules)}")
    denied: list[EgressRule] = []
    allowed: list[EgressRule] = []
    for name, allow in network.groups.items():
        group = settings.groups.get(name)
        if group is None:
            known = ", ".join(sorted(settings.groups)) or "none"
            raise NotFound(
                f"this node has no network group {name[:40]!r}; it has: {known}",
                phase="network",
                remedy="The node's operator names groups in its settings, [network.groups.NAME]",
            )
        (allowed if allow else denied).extend(_group_rules(group, allow=allow))
    proxied = [_rule(each) for each in network.rules if each.protocol in ("tcp", "any")]
    rules = [*proxied, *denied, *allowed]
    if len(rules) > _MOST_RULES:
        raise wrong(f"a policy has at most {_MOST_RULES} rules, not {len(rules)}")
    if not 1 <= network.max_connections <= _MOST_CONNECTIONS:
        raise wrong(f"max_connections must be between 1 and {_MOST_CONNECTIONS}")
    bounds = {"max_connections_per_minute": 2**31, "max_bytes": 2**63, "max_bytes_per_s": 2**63}
    for field, most in bounds.items():
        value = getattr(network, field)
        if value is not None and not 1 <= value < most:
            raise wrong(f"{field} must be a positive number")
    if network.max_bytes_per_s is not None and any(rule.domain is not None for rule in rules):
        raise Unsupported(
            "max_bytes_per_s beside rules for names is not built: requests of plain HTTP are not slowed",
            phase="network",
            remedy="Leave max_bytes_per_s out, or write rules without domains and groups",
        )
    opened = tuple(str(ipaddress.ip_network(each)) for each in settings.allowed_ranges)
    routed = compile_routed(network, opened, has_uplink=settings.uplink is not None)
    table = EgressTable(
        allow=network.default == "allow",
        rules=tuple(rules),
        opened=opened,
        ech=network.ech == "allow",
        max_connections=network.max_connections,
        max_connections_per_minute=network.max_connections_per_minute,
        max_bytes=network.max_bytes,
        max_bytes_per_s=network.max_bytes_per_s,
        routed=routed or msgspec.UNSET,
    )
    if len(msgspec.msgpack.encode(table)) > _MOST_BYTES:
        raise wrong("the policy is too large: domains and ports of all its rules together")
    return table


def _group_rules(group: NetworkGroup, *, allow: bool) -> list[EgressRule]:
    # What is denied is denied on every port.
    ports = ports_of(group.ports) if allow else ()
    return [EgressRule(allow=allow, domain=_domain(each), ports=ports) for each in group.domains]


def _rule(rule: NetworkRule) -> EgressRule:
    return EgressRule(
        allow=rule.action == "allow",
        domain=None if rule.domain is None else _domain(rule.domain),
        range=None if rule.addresses is None else range_of(rule.addresses),
        ports=ports_of(rule.ports),
    )


def _domain(text: str) -> str:
    """In the form in which names are compared: lower case, ASCII, without a dot at its end."""
    found = text.removesuffix(".").lower()
    if not found.isascii():
        try:
            star, name = ("*.", found[2:]) if found.startswith("*.") else ("", found)
            found = star + name.encode("idna").decode()
        except UnicodeError:
            raise wrong(f"not a domain: {text[:80]!r}") from None
    last = found.rpartition(".")[2]
    if len(found) > 253 or not _DOMAIN.fullmatch(found) or last.isdigit() or last.startswith("0x"):
        raise wrong(f"not a domain: {text[:80]!r}")
    return found
