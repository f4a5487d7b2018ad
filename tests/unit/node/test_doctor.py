"""What the doctor says of a node's settings."""

from __future__ import annotations

from pathlib import Path

from dsec.node.doctor import examine_settings
from dsec.node.paths import NodePaths


def test_fault_points_are_a_finding(tmp_path: Path) -> None:
    """A node on which parts can be made to die is reported; one without settings, or with others, is not."""
    paths = NodePaths("test", tmp_path)
    assert examine_settings(paths) == []
    paths.settings.parent.mkdir(parents=True)
    paths.settings.write_text("port = 0\n")
    assert examine_settings(paths) == []
    paths.settings.write_text("fault_points = true\n")
    (finding,) = examine_settings(paths)
    assert not finding.present
    assert "fault_points" in finding.remedy
