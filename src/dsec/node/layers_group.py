"""The memory group of what fills layers: what they read and write is the node's, no sandbox's (decision 0054)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dsec.errors import Unsupported
from dsec.node.config import NodeConfig

__all__ = ["layers_group", "memory_point"]

_NAME = "layers"


def layers_group(config: NodeConfig) -> tuple[str, ...]:
    """Make the group ``dsec/NAME/layers`` with the limit of the settings; the files that a process joins it by.

    Empty where layers are pulled whole, or the machine accounts for no memory. Raises Unsupported where a limit is
    set and cannot be.
    """
    if config.reading != "filled":
        return ()
    point = memory_point(Path("/proc/self/mounts").read_text().splitlines())
    if point is None:
        if config.layers_memory_mib is not None:
            raise Unsupported(
                "layers_memory_mib: this machine has no memory controller",
                phase="settings",
                remedy="Leave it out, or mount the controller",
            )
        return ()
    path, unified = point
    group = path / config.paths.cgroup / _NAME
    group.mkdir(parents=True, exist_ok=True)
    if unified:
        for each in reversed(group.parents):
            if each == path or path in each.parents:
                (each / "cgroup.subtree_control").write_text("+memory")
    if config.layers_memory_mib is not None:
        limit = group / ("memory.max" if unified else "memory.limit_in_bytes")
        limit.write_text(str(config.layers_memory_mib << 20))
    return (str(group / "cgroup.procs"),)


def memory_point(mounts: Iterable[str]) -> tuple[Path, bool] | None:
    """Where the memory controller is mounted, and whether that is the unified tree, by the lines of a mount table."""
    fields = [line.split() for line in mounts]
    for _, point, kind, options, *_ in fields:
        if kind == "cgroup" and "memory" in options.split(","):
            return Path(point), False
    for _, point, kind, *_ in fields:
        if kind == "cgroup2":
            controllers = Path(point) / "cgroup.controllers"
            if controllers.exists() and "memory" in controllers.read_text().split():
                return Path(point), True
    return None
