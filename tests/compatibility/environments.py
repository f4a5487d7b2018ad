"""Each peer in a virtual environment of its own, exactly as its requirements.txt pins it, with dsec beside it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
BUILT = CHECKOUT / "build" / "compat"
UV = "uv==0.13.9"

OLDEST_PYTHON: dict[str, tuple[int, int]] = {
    "inspect_ai": (3, 11),
    "mini_swe_agent": (3, 11),
    "harbor": (3, 12),
    "swe_rex": (3, 11),
}
"""The peers, each a folder here, and the oldest Python that it (and dsec) runs on."""


class NoPython(Exception):
    """This machine has no Python that is new enough."""


def environment(peer: str) -> Path:
    """The peer's Python; its environment is made, or made anew when what it is made of has changed."""
    folder = BUILT / peer
    python = folder / "bin" / "python"
    wanted = _fingerprint(peer)
    stamp = folder / "made-of"
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    uv = _uv()
    _run(uv, "venv", "--quiet", "--python", str(_python(OLDEST_PYTHON[peer])), str(folder))
    install = [uv, "pip", "install", "--quiet", "--python", str(python)]
    _run(*install, "--requirement", str(HERE / peer / "requirements.txt"))
    _run(*install, "--no-deps", "--editable", str(CHECKOUT))
    stamp.write_text(wanted)
    return python


def suite(peer: str) -> list[str]:
    """Pytest's arguments for the peer's tests. SWE-ReX's own come from its source distribution, as they are."""
    if not (HERE / peer / "sdist.txt").is_file():
        return ["--confcutdir", str(HERE), str(HERE / peer)]
    folder = BUILT / peer / "suite"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(HERE / peer, folder)
    (folder / "__init__.py").touch()
    with tarfile.open(_sdist(peer)) as archive:
        for member in archive.getmembers():
            if member.name.endswith("/tests/test_execution.py"):
                (folder / "test_execution.py").write_bytes(archive.extractfile(member).read())  # type: ignore[union-attr]
    return ["--confcutdir", str(folder), "--import-mode=prepend", "-o", "asyncio_mode=auto", str(folder)]


def _sdist(peer: str) -> Path:
    folder = BUILT / peer / "sdist"
    if not folder.is_dir():
        _uv()
        fetch = [str(BUILT / "uv" / "bin" / "pip"), "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        _run(*fetch, "--no-binary", ":all:", "--requirement", str(HERE / peer / "sdist.txt"), "--dest", str(folder))
    (archive,) = folder.glob("*.tar.gz")
    return archive


def _fingerprint(peer: str) -> str:
    digest = hashlib.sha256(str(CHECKOUT).encode())
    for file in (HERE / peer / "requirements.txt", CHECKOUT / "pyproject.toml"):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _uv() -> str:
    folder = BUILT / "uv"
    uv = folder / "bin" / "uv"
    if not uv.is_file():
        _run(sys.executable, "-m", "venv", str(folder))
        _run(str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", UV)
    return str(uv)


def _python(oldest: tuple[int, int]) -> Path:
    for candidate in _pythons():
        check = f"import sys; sys.exit(sys.version_info < {oldest})"
        if subprocess.run([candidate, "-c", check], capture_output=True).returncode == 0:
            return Path(candidate)
    raise NoPython(f"no Python {oldest[0]}.{oldest[1]} or newer, in PATH or pyenv's versions")


def _pythons() -> Iterator[str]:
    """Programs that may be Pythons, ours first; pyenv's are not in PATH but where it keeps its versions."""
    yield getattr(sys, "_base_executable", sys.executable)
    for minor in range(11, 15):
        found = shutil.which(f"python3.{minor}")
        if found:
            yield found
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    yield from map(str, sorted(pyenv.glob("versions/3.*/bin/python3")))


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, cwd=CHECKOUT)
