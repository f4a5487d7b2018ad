"""``make audit``: ask a database of known vulnerabilities (OSV) about every package of both lock files.

Exit codes: 0 nothing is known, 1 something is (a line each), 2 a lock file cannot be read, 3 the database cannot be
reached, which says nothing about the packages. Only names and versions leave the machine.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
import urllib.error
import urllib.request
from pathlib import Path

URL = os.environ.get("DSEC_AUDIT_URL", "https://api.osv.dev")
ROOT = Path(__file__).parents[1]
NOTHING, KNOWN, UNREADABLE, UNREACHABLE = 0, 1, 2, 3
_AT_ONCE = 500
_PATIENCE_S = 30
_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;\\]+)", re.MULTILINE)
Package = tuple[str, str, str]
"""Ecosystem, name, version."""


def locked(root: Path) -> list[Package]:
    """Every package of ``requirements.lock`` and, but for dsec's, of ``Cargo.lock``; raises OSError, ValueError."""
    python = _REQUIREMENT.findall((root / "requirements.lock").read_text())
    crates = tomllib.loads((root / "Cargo.lock").read_text())["package"]
    found = [("PyPI", name, version) for name, version in python]
    found += [("crates.io", each["name"], each["version"]) for each in crates if "source" in each]
    if not python or len(found) == len(python):
        raise ValueError("a lock file names no packages")
    return found


def known(packages: list[Package], url: str) -> list[tuple[Package, list[str]]]:
    """Those of which something is known, with the IDs of it; raises OSError or ValueError without a whole answer."""
    found = []
    for at in range(0, len(packages), _AT_ONCE):
        part = packages[at : at + _AT_ONCE]
        queries = [{"package": {"ecosystem": kind, "name": name}, "version": version} for kind, name, version in part]
        request = urllib.request.Request(
            f"{url}/v1/querybatch", json.dumps({"queries": queries}).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=_PATIENCE_S) as answer:
            results = json.load(answer)["results"]
        if len(results) != len(part):
            raise ValueError(f"{len(results)} answers to {len(part)} questions")
        for package, result in zip(part, results, strict=True):
            if result.get("vulns"):
                found.append((package, [each["id"] for each in result["vulns"]]))
    return found


def main(root: Path = ROOT, url: str = URL) -> int:
    """Ask, and say what came of it."""
    try:
        packages = locked(root)
    except (OSError, ValueError, KeyError) as error:
        print(f"audit: the lock files cannot be read: {error}", file=sys.stderr)
        return UNREADABLE
    try:
        found = known(packages, url)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        print(f"audit: no database of vulnerabilities could be asked at {url} ({reason}); nothing was audited")
        return UNREACHABLE
    for (kind, name, version), ids in found:
        print(f"{kind} {name} {version}: {', '.join(ids)}")
    print(f"audit: {len(found)} of {len(packages)} packages with known vulnerabilities")
    return KNOWN if found else NOTHING


if __name__ == "__main__":
    sys.exit(main())
