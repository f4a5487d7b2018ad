"""Fetch source distributions and wheels with pip, without running anything that they contain.

pip asks a source distribution's build backend for its metadata even when it only downloads. Here the backends that it
finds are stand-ins, put before everything else on its path, which copy the ``PKG-INFO`` that the archive has anyway.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dsec.errors import CallerError

__all__ = ["SandboxPython", "cache_directory", "fetch_sdists", "fetch_wheels", "rounds"]

_BACKENDS = ("setuptools.build_meta", "flit_core.buildapi", "hatchling.build", "poetry.core.masonry.api")

_STAND_IN = """\
import email, pathlib, sys


def get_requires_for_build_wheel(config_settings=None):
    return []


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    raw = pathlib.Path("PKG-INFO").read_bytes()
    fields = email.message_from_bytes(raw)
    name = fields["Name"].replace("-", "_") + "-" + fields["Version"] + ".dist-info"
    target = pathlib.Path(metadata_directory, name)
    target.mkdir()
    target.joinpath("METADATA").write_bytes(raw)
    target.joinpath("WHEEL").write_text("Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    return name


__legacy__ = sys.modules[__name__]
"""


@dataclass(frozen=True)
class SandboxPython:
    """The Python that the wheels are for."""

    version: tuple[int, int]
    machine: str
    """As ``uname -m`` says it."""
    glibc_minor: int
    """Of glibc 2.x; wheels for any glibc since 2.17 that is not newer are taken."""

    @property
    def abi(self) -> str:
        """``cp311``."""
        return f"cp{self.version[0]}{self.version[1]}"

    def pip_options(self) -> list[str]:
        """What makes pip choose wheels for that Python instead of the one it runs on."""
        platforms = [f"manylinux_2_{minor}_{self.machine}" for minor in range(self.glibc_minor, 16, -1)]
        options = ["--python-version", f"{self.version[0]}.{self.version[1]}", "--implementation", "cp"]
        for abi in (self.abi, "abi3", "none"):
            options += ["--abi", abi]
        for platform in (*platforms, f"manylinux2014_{self.machine}"):
            options += ["--platform", platform]
        return options


def cache_directory(environ: Mapping[str, str]) -> Path:
    """Where the demo keeps what it fetched: ``$XDG_CACHE_HOME/dsec/demo``, else ``~/.cache/dsec/demo``."""
    base = environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "dsec" / "demo"


def rounds(releases: Iterable[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    """Split releases so that no round names a project twice, which pip would refuse."""
    made: list[dict[str, str]] = []
    for project, version in releases:
        for round_ in made:
            if project not in round_:
                round_[project] = version
                break
        else:
            made.append({project: version})
    return [list(round_.items()) for round_ in made]


def fetch_sdists(cache: Path, wanted: Mapping[tuple[str, str], str]) -> dict[tuple[str, str], Path]:
    """Source distributions by (project, version), each with the SHA-256 that ``wanted`` has; raises CallerError.

    What the cache holds is not fetched again. pip checks every digest before it looks into an archive.
    """
    held = cache / "sdists"
    held.mkdir(parents=True, exist_ok=True)
    paths = {release: held / f"{release[0]}-{release[1]}.tar.gz" for release in wanted}
    missing = [release for release, path in paths.items() if not _is(path, wanted[release])]
    for round_ in rounds(missing):
        _fetch_round(held, {release: wanted[release] for release in round_}, paths)
    return paths


def fetch_wheels(cache: Path, requirements: Sequence[str], python: SandboxPython) -> list[Path]:
    """The wheels of pinned requirements for the sandbox's Python; raises CallerError."""
    key = hashlib.sha256(json.dumps([list(requirements), repr(python)]).encode()).hexdigest()[:16]
    held = cache / "wheels" / key
    if not held.is_dir():
        held.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=held.parent) as scratch:
            made = Path(scratch, "wheels")
            options = ["--only-binary=:all:", *python.pip_options()]
            _pip_download([*options, "--dest", str(made), *requirements], environ=dict(os.environ))
            made.rename(held)
    return sorted(held.glob("*.whl"))


def _fetch_round(held: Path, wanted: Mapping[tuple[str, str], str], paths: Mapping[tuple[str, str], Path]) -> None:
    with tempfile.TemporaryDirectory(dir=held) as scratch:
        stand_ins, got = Path(scratch, "backends"), Path(scratch, "got")
        _write_stand_ins(stand_ins)
        listed = Path(scratch, "requirements.txt")
        listed.write_text("".join(f"{p}=={v} --hash=sha256:{digest}\n" for (p, v), digest in wanted.items()))
        options = ["--no-binary=:all:", "--no-build-isolation", "--use-pep517", "--require-hashes"]
        environ = dict(os.environ) | {"PYTHONPATH": str(stand_ins)}
        _pip_download([*options, "--dest", str(got), "-r", str(listed)], environ=environ)
        by_digest = {_sha256(path): path for path in got.iterdir()}
        for release, digest in wanted.items():
            if digest not in by_digest:
                raise CallerError(f"pip fetched no source archive of {release[0]} {release[1]}", phase="fetch")
            by_digest[digest].replace(paths[release])


def _write_stand_ins(root: Path) -> None:
    for backend in _BACKENDS:
        path = root.joinpath(*backend.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        for package in path.relative_to(root).parents[:-1]:
            root.joinpath(package, "__init__.py").touch()
        path.write_text(_STAND_IN)


def _pip_download(arguments: Sequence[str], *, environ: Mapping[str, str]) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps", *arguments]
    done = subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode == 0:
        return
    said = (done.stderr or done.stdout).decode(errors="replace").strip()
    remedy = "Connect to a package index once; later runs use what was fetched"
    if "No module named pip" in said:
        remedy = f"Install pip for {sys.executable}: `python -m ensurepip`"
    raise CallerError(f"pip could not fetch the demo's packages: {said[-600:]}", phase="fetch", remedy=remedy)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _is(path: Path, digest: str) -> bool:
    return path.is_file() and _sha256(path) == digest
