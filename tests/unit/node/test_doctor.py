"""What the doctor says of a node's settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsec.errors import NodeError, Unsupported
from dsec.node import doctor
from dsec.node.doctor import Tool, examine, examine_settings, install, missing_packages
from dsec.node.paths import NodePaths
from dsec.node.readers import Trial


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


@pytest.mark.parametrize(
    ("reader", "works", "present", "says"),
    [
        ("auto", True, True, "filled by the kernel"),
        ("auto", False, True, "pulled whole: no such events"),
        ("whole", True, True, "pulled whole: as the settings say"),
        ("filled", True, True, "filled by the kernel"),
        ("filled", False, False, "no such events"),
        ("mounted", True, False, "is not built"),
    ],
)
def test_how_layers_are_read_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str, works: bool, present: bool, says: str
) -> None:
    """Which way it comes to and why, by settings or by a trial; one that `dsec up` refuses, with what to do."""
    trial = Trial(works, "it worked" if works else "no such events")
    monkeypatch.setattr(doctor, "tried", lambda *_: trial)
    paths = NodePaths("test", tmp_path)
    paths.settings.parent.mkdir(parents=True)
    paths.settings.write_text(f'reader = "{reader}"\n[stores.s]\nurl = "file:///mnt/dfs"\n')
    (finding,) = examine_settings(paths)
    assert reader in finding.name and says in finding.detail
    assert finding.present is present
    assert bool(finding.remedy) is not present and bool(finding.lost) is not present


APT = """#!/bin/sh
echo "$@" >> "$0.said"
if [ "$1" = install ]; then
    [ ! -e "$0.broken" ] || { echo "E: no such package" >&2; exit 100; }
    printf '#!/bin/sh\n' > "${0%/*}/frobnicate"; /bin/chmod +x "${0%/*}/frobnicate"
fi
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with an apt-get that notes what it is asked for, and one tool and one file missing."""
    tools = (
        Tool("frobnicate", "frob-tools", "nothing is frobbed"),
        Tool("keys", "frob-keys", "nothing is believed", str(tmp_path / "keys.gpg")),
    )
    apt = tmp_path / "apt-get"
    apt.write_text(APT)
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(doctor, "TOOLS", tools)
    monkeypatch.setattr(doctor, "check_machine", lambda **_: None)
    return tmp_path


def test_what_is_missing_is_said_with_how_to_get_it(machine: Path) -> None:
    """A tool that is not there is a finding with what is lost and the command that installs it."""
    (machine / "keys.gpg").touch()
    found = {one.name: one for one in examine(NodePaths("test", machine))}
    assert found["keys"].present and not found["frobnicate"].present
    assert found["frobnicate"].lost == "nothing is frobbed" and "frob-tools" in found["frobnicate"].remedy


def test_install_asks_apt_for_what_is_missing(machine: Path) -> None:
    """Only missing packages are asked for, all at once; a second time there is nothing to do."""
    (machine / "keys.gpg").touch()
    assert install(lambda _: None) == ["frob-tools"]
    said = (machine / "apt-get.said").read_text().splitlines()
    assert said[0].startswith("update") and said[1].split()[-1] == "frob-tools" and len(said) == 2
    assert missing_packages() == [] and install(lambda _: None) == []


def test_install_that_cannot(machine: Path) -> None:
    """apt's own words when it fails; without apt the names of the packages."""
    (machine / "apt-get.broken").touch()
    with pytest.raises(NodeError, match="no such package"):
        install(lambda _: None)
    (machine / "apt-get").unlink()
    with pytest.raises(Unsupported, match="frob-keys, frob-tools") as refused:
        install(lambda _: None)
    assert refused.value.phase == "machine"
