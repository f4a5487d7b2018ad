"""What the demo fetches, and that nothing of it is run."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from dsec.demo.fetch import SandboxPython, cache_directory, fetch_sdists, rounds
from dsec.demo.pairs import SDISTS, TASKS
from dsec.errors import CallerError


def write_sdist(directory: Path, marker: Path, *, backend: str | None) -> str:
    """A source distribution whose own code would create ``marker`` when run; its SHA-256."""
    files = {
        "PKG-INFO": "Metadata-Version: 2.1\nName: trap-demo\nVersion: 1.0\n",
        "setup.py": f"open({str(marker)!r}, 'w').close()\nfrom setuptools import setup\nsetup()\n",
    }
    if backend is not None:
        files["pyproject.toml"] = f'[build-system]\nrequires = ["setuptools"]\nbuild-backend = "{backend}"\n'
    path = directory / "trap-demo-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(f"trap-demo-1.0/{name}")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that stands for the package index: pip looks nowhere else."""
    directory = tmp_path / "index"
    directory.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    monkeypatch.setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    return directory


@pytest.mark.parametrize(
    "backend", [None, "setuptools.build_meta", "flit_core.buildapi", "hatchling.build", "poetry.core.masonry.api"]
)
def test_fetching_runs_nothing_of_the_archive(tmp_path: Path, index: Path, backend: str | None) -> None:
    """pip gets the archive through a stand-in backend: setup.py, which would leave a mark, is not run."""
    marker = tmp_path / "ran"
    digest = write_sdist(index, marker, backend=backend)
    found = fetch_sdists(tmp_path / "cache", {("trap-demo", "1.0"): digest})
    assert hashlib.sha256(found[("trap-demo", "1.0")].read_bytes()).hexdigest() == digest
    assert not marker.exists()


def test_a_second_run_needs_no_index(tmp_path: Path, index: Path) -> None:
    """What the cache holds is used, with the index gone."""
    wanted = {("trap-demo", "1.0"): write_sdist(index, tmp_path / "ran", backend=None)}
    first = fetch_sdists(tmp_path / "cache", wanted)
    (index / "trap-demo-1.0.tar.gz").unlink()
    assert fetch_sdists(tmp_path / "cache", wanted) == first


def test_another_archive_than_the_known_one_is_refused(tmp_path: Path, index: Path) -> None:
    """An index that serves other bytes under the same name gets an error, and nothing lands in the cache."""
    write_sdist(index, tmp_path / "ran", backend=None)
    with pytest.raises(CallerError, match="pip could not fetch"):
        fetch_sdists(tmp_path / "cache", {("trap-demo", "1.0"): "0" * 64})
    assert list((tmp_path / "cache" / "sdists").iterdir()) == []


def test_rounds_never_name_a_project_twice() -> None:
    """pip refuses two versions of one project in one call; all releases of the demo are fetched in few rounds."""
    made = rounds(SDISTS)
    assert sorted(release for round_ in made for release in round_) == sorted(SDISTS)
    assert all(len({project for project, _ in round_}) == len(round_) for round_ in made)
    assert len(made) == 5


def test_every_release_of_every_task_has_a_known_digest() -> None:
    """A task cannot name a release whose bytes nobody looked at."""
    needed = {(task.project, version) for task in TASKS for version in (task.broken, task.golden)}
    assert needed == set(SDISTS)
    assert len({task.name for task in TASKS}) == len(TASKS) == 8


def test_wheels_are_chosen_for_the_sandbox_not_for_this_machine() -> None:
    """The options name the sandbox's Python, its machine, and no glibc newer than its own."""
    options = SandboxPython((3, 11), "aarch64", 36).pip_options()
    assert options[:4] == ["--python-version", "3.11", "--implementation", "cp"]
    assert "manylinux_2_36_aarch64" in options
    assert "manylinux_2_17_aarch64" in options
    assert "manylinux_2_37_aarch64" not in options
    assert not any("x86_64" in option for option in options)


def test_the_cache_follows_the_environment(tmp_path: Path) -> None:
    """XDG_CACHE_HOME when it is absolute, else the home directory, as the convention says."""
    assert cache_directory({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "dsec" / "demo"
    assert cache_directory({"XDG_CACHE_HOME": "relative"}) == Path.home() / ".cache" / "dsec" / "demo"
