"""The compiled form, as ``crates/proto/src/egress.rs`` has it, and the ranges that nothing reaches."""

from __future__ import annotations

import msgspec

__all__ = ["CLOSED", "NEVER_ROUTED", "TABLE_VERSION", "EgressRule", "EgressTable", "RoutedRule"]

TABLE_VERSION = 1

CLOSED = (
    *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16"),
    *("172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15"),
    *("198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4", "::/3", "2001::/23", "2001:db8::/32"),
    *("2002::/16", "3fff::/20", "4000::/2", "8000::/1"),
)
"""This machine, private and shared networks, metadata (Azure's too) and other link-local addresses, documentation,
multicast; of IPv6 all but what is given out (2000::/3), and of that what stands for something else: IPv4 in disguise,
Teredo, 6to4."""


NEVER_ROUTED = (
    "0.0.0.0/8",
    "127.0.0.0/8",
    "168.63.129.16/32",
    "169.254.0.0/16",
    "198.18.0.0/15",
    "224.0.0.0/4",
    "240.0.0.0/4",
)
"""What no router hands on, whatever an operator opens: this machine, link-local addresses (metadata among them),
what Azure has beside those, the sandboxes' own links, multicast."""


class EgressRule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule. What is empty matches everything."""

    allow: bool
    domain: str | None = None
    range: str | None = None
    ports: tuple[tuple[int, int], ...] = ()


class RoutedRule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule for what goes by a link of the sandbox's own and not through the proxy. What is empty matches all."""

    allow: bool
    """What is not allowed here goes where it would go without a link: TCP to the proxy, all else nowhere."""
    protocol: int = 0
    """Its number: 1 (echo requests alone), 6, 17; 0 is any."""
    range: str | None = None
    ports: tuple[tuple[int, int], ...] = ()


class EgressTable(msgspec.Struct, frozen=True, kw_only=True):
    """A compiled policy: the first rule that matches decides; ``closed`` is never reached, but for ``opened``."""

    version: int = TABLE_VERSION
    allow: bool
    rules: tuple[EgressRule, ...]
    closed: tuple[str, ...] = CLOSED
    opened: tuple[str, ...] = ()
    ech: bool = False
    max_connections: int
    max_connections_per_minute: int | None = None
    max_bytes: int | None = None
    max_bytes_per_s: int | None = None
    routed: tuple[RoutedRule, ...] | msgspec.UnsetType = msgspec.UNSET
    """The first that matches decides. Unset: the sandbox has no link."""
