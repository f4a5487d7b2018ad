"""What a sandbox may reach, as a caller says it, and what came of it."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["Network", "NetworkInfo", "NetworkRule"]


class NetworkRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rule; what is left out matches everything.

    ``domain``: a name, or ``*.`` and a name for all below it. ``addresses``: a range such as ``203.0.113.0/24``,
    or one address. ``ports``: numbers, or ``"FIRST-LAST"``.

    ``protocol``: ``tcp`` (the default) ends in the node's proxy and is held to names. The others are routed, by
    addresses of IPv4 alone, and need a node with an uplink: ``udp``, ``icmp`` (echo requests), ``any`` (all there is,
    TCP unread among it; with ``ports`` TCP and UDP).
    """

    action: Literal["allow", "deny"]
    protocol: Literal["tcp", "udp", "icmp", "any"] = "tcp"
    domain: str | None = None
    addresses: str | None = None
    ports: tuple[int | str, ...] = ()


class Network(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A policy: the first of ``rules`` that matches decides, then the node's ``groups`` of names, denied ones
    first, then ``default``. Limits: None is no such limit.

    ``ech``: whether a TLS connection whose name is encrypted may pass as the name that it shows.
    """

    rules: tuple[NetworkRule, ...] = ()
    groups: dict[str, bool] = {}
    default: Literal["allow", "deny"] = "deny"
    ech: Literal["refuse", "allow"] = "refuse"
    max_connections: int = 256
    max_connections_per_minute: int | None = None
    max_bytes: int | None = None
    """Both ways, for as long as the sandbox lives."""
    max_bytes_per_s: int | None = None


class NetworkInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox's policy, and what was counted. ``network`` is None where there is none."""

    network: Network | None = None
    connections: int = 0
    refused: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    names: int = 0
    names_refused: int = 0
