"""The parts of this machine's node as its keeper sees them, dead ones too: for root, beside what the API says."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from dsec.errors import DSecError

__all__ = ["merged", "parts_here"]


def parts_here() -> list[dict[str, Any]]:
    """Name, state, process ID and restarts of each service; nothing where the node is not this machine's, or one is
    not root."""
    if sys.platform != "linux" or os.geteuid() != 0 or os.environ.get("DSEC_URL"):
        return []
    from dsec.node.keeper_client import KeeperControl
    from dsec.node.paths import NodePaths

    root = os.environ.get("DSEC_ROOT")
    try:
        paths = NodePaths(os.environ.get("DSEC_NODE") or "local", Path(root) if root else None).checked()
        with KeeperControl(paths.keeper_socket, timeout_s=2) as keeper:
            services = keeper.services()
    except DSecError:
        return []
    return [
        {"name": one.name, "state": "running" if one.pid else "down", "pid": one.pid, "restarts": one.restarts}
        for one in services
    ]


def merged(told: list[dict[str, Any]], here: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the API tells of its parts over what the keeper knows of all."""
    known = {part["name"]: part for part in here}
    for part in told:
        known[part["name"]] = known.get(part["name"], {}) | part
    return list(known.values())
