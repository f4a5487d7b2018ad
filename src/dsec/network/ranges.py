"""Ranges and ports of a rule, in the form in which tables have them."""

from __future__ import annotations

import ipaddress
import re

from dsec.errors import InvalidArgument

__all__ = ["REMEDY", "ports_of", "range_of", "wrong"]

REMEDY = 'network is "none", "open", {"GROUP": True} or Network(rules=…)'
_PORTS = re.compile(r"(\d{1,5})-(\d{1,5})")


def range_of(text: str) -> str:
    """``ADDRESS/BITS`` of a range or an address; raises InvalidArgument for what is none."""
    try:
        return str(ipaddress.ip_network(text))
    except ValueError:
        raise wrong(f"not an address or range: {text[:80]!r}") from None


def ports_of(ports: tuple[int | str, ...]) -> tuple[tuple[int, int], ...]:
    """First and last of each; raises InvalidArgument for what is no port."""
    if len(ports) > 64:
        raise wrong("a rule has at most 64 ports or ranges of them")
    return tuple(map(_port, ports))


def _port(port: int | str) -> tuple[int, int]:
    first, last = port, port
    if isinstance(port, str):
        pair = _PORTS.fullmatch(port)
        if pair is None:
            raise wrong(f"not a port: {port[:20]!r}")
        first, last = int(pair[1]), int(pair[2])
    if isinstance(first, str) or isinstance(last, str) or not 1 <= first <= last <= 65535:
        raise wrong(f"not a port: {port!r:.20}")
    return first, last


def wrong(what: str, remedy: str = REMEDY) -> InvalidArgument:
    """A policy that makes no sense."""
    return InvalidArgument(what, phase="network", remedy=remedy)
