"""requirements.lock: what ``make setup`` installs is pinned, hashed, and fits pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
_LINE = re.compile(r"(?P<name>[a-z0-9._-]+)==(?P<version>[^ ;\\]+)(?P<rest>.*)", re.IGNORECASE)


def locked() -> dict[str, str]:
    """Name → version of each entry."""
    entries = (ROOT / "requirements.lock").read_text().replace("\\\n", " ").splitlines()
    found: dict[str, str] = {}
    for entry in entries:
        parts = _LINE.fullmatch(entry.strip())
        assert parts is not None, f"not pinned: {entry[:80]}"
        hashes = re.findall(r"--hash=(\w+):([0-9a-f]+)", parts["rest"])
        assert hashes and all((kind, len(digest)) == ("sha256", 64) for kind, digest in hashes), parts["name"]
        found[canonicalize_name(parts["name"])] = parts["version"]
    return found


def test_every_package_is_pinned_and_hashed() -> None:
    """Each line is one version with SHA-256 of its files; there is no URL, no path, no index and no option."""
    text = (ROOT / "requirements.lock").read_text()
    assert len(locked()) > 30
    assert not re.search(r"://|@ |^\s*-(?!-hash=)|^-e", text, re.MULTILINE)


def test_the_lock_fits_what_is_asked_for() -> None:
    """Whatever pyproject.toml asks for is in the lock, in a version that fits; else `make lock` was forgotten."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    known = locked()
    for text in [*project["dependencies"], *extras["server"], *extras["dev"]]:
        wanted = Requirement(text)
        version = known.get(canonicalize_name(wanted.name))
        assert version is not None and wanted.specifier.contains(version), f"{text}: run `make lock`"


def test_setup_installs_by_the_lock_alone() -> None:
    """The script lets pip install nothing whose hash it does not know, nor fetch anything to build dsec with."""
    installs = re.findall(r"pip install .*", (ROOT / "scripts/setup-venv.sh").read_text())
    assert len(installs) == 2
    assert "--require-hashes --requirement requirements.lock" in installs[0]
    assert "--no-deps --no-build-isolation" in installs[1]
