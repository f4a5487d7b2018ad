"""Tables and what they mean, for both implementations: ``tests/golden/egress.json`` is these."""

from __future__ import annotations

from typing import Any

import msgspec

from dsec.api.network import Network, NetworkRule
from dsec.network import EgressTable, NetworkSettings, compile_network, decide, may_resolve
from dsec.network.compile import NetworkGroup

SETTINGS = NetworkSettings(
    groups={
        "pypi": NetworkGroup(domains=("index.pypi.test", "*.files.pypi.test")),
        "npm": NetworkGroup(domains=("npm.test",)),
    },
    allowed_ranges=("10.9.0.0/16",),
)
POLICIES = (
    Network(),
    Network(default="allow"),
    Network(groups={"pypi": True, "npm": False}),
    Network(default="allow", rules=(NetworkRule(action="deny", domain="*.evil.test"),)),
    Network(rules=(NetworkRule(action="allow", addresses="1.0.0.0/8", ports=(443, "8000-8010")),)),
    Network(
        rules=(
            NetworkRule(action="deny", domain="bad.index.test"),
            NetworkRule(action="allow", domain="*.index.test", ports=(22,)),
            NetworkRule(action="deny", addresses="9.9.9.0/24"),
            NetworkRule(action="allow", ports=(80,)),
        )
    ),
    Network(default="allow", rules=(NetworkRule(action="deny", addresses="2600::/12"),)),
)
NAMES = (
    None, "index.pypi.test", "a.files.pypi.test", "files.pypi.test", "xfiles.pypi.test", "npm.test", "a.evil.test",
    "evil.test", "bad.index.test", "good.index.test", "other.test",
)  # fmt: skip
ADDRESSES = (
    "1.1.1.1", "9.9.9.9", "93.184.216.34", "10.0.0.1", "10.9.1.2", "127.0.0.1", "169.254.169.254", "100.64.0.1",
    "172.31.0.1", "192.168.1.1", "224.0.0.1", "255.255.255.255", "0.0.0.0", "::1", "::", "::ffff:1.1.1.1",
    "64:ff9b::101:101", "fe80::1", "fd00::1", "ff02::1", "2002:101:101::1", "2001::1", "2606:4700::1", "2a00::1",
)  # fmt: skip
PORTS = (22, 80, 443, 8005)


def vectors() -> list[dict[str, Any]]:
    """Every policy, compiled, with every question."""
    return [_case(compile_network(policy, SETTINGS)) for policy in POLICIES]


def _case(table: EgressTable) -> dict[str, Any]:
    asked = []
    for name in NAMES:
        for address in ADDRESSES:
            for port in PORTS:
                verdict = decide(table, name, address, port)
                asked.append({"name": name, "address": address, "port": port, **msgspec.structs.asdict(verdict)})
    names = [[name, may_resolve(table, name)] for name in NAMES if name is not None]
    return {"table": msgspec.to_builtins(table), "asked": asked, "names": names}
