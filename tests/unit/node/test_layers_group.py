"""Where the memory controller is found."""

from __future__ import annotations

from pathlib import Path

from dsec.node.config import NodeConfig
from dsec.node.layers_group import layers_group, memory_point


def test_the_controllers_own_mount_is_taken_first(tmp_path: Path) -> None:
    """A hierarchy of version 1, else the unified tree if it has the controller, else nothing."""
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    unified = f"none {tmp_path} cgroup2 rw 0 0"
    bare = "none /nowhere cgroup2 rw 0 0"
    own = "none /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0"
    assert memory_point([bare, unified, own]) == (Path("/sys/fs/cgroup/memory"), False)
    assert memory_point([bare, unified]) == (tmp_path, True)
    assert memory_point([bare, "none /sys/fs/cgroup/cpu cgroup rw,cpu 0 0"]) is None


def test_a_node_that_fills_nothing_has_no_group(tmp_path: Path) -> None:
    """Nothing is made."""
    assert layers_group(NodeConfig(root=str(tmp_path))) == ()
