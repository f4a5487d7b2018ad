"""Unpacking what was fetched, as plain data."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from dsec.demo.unpack import unpack_sdist, unpack_wheels
from dsec.errors import CallerError


def sdist(path: Path, *members: tarfile.TarInfo) -> Path:
    """A compressed archive of empty members."""
    with tarfile.open(path, "w:gz") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(bytes(member.size)))
    return path


def named(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    """A member of an archive."""
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, link
    return member


def wheel(path: Path, *names: str) -> Path:
    """A wheel of files that hold their own names."""
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, name)
    return path


def test_a_source_archive_becomes_one_directory(tmp_path: Path) -> None:
    """The archive's top directory is renamed to the target."""
    archive = sdist(tmp_path / "a.tar.gz", named("pkg-1.0/setup.py"), named("pkg-1.0/pkg/__init__.py"))
    unpack_sdist(archive, tmp_path / "out" / "pkg")
    assert (tmp_path / "out" / "pkg" / "pkg" / "__init__.py").is_file()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["pkg"]


@pytest.mark.parametrize(
    "member",
    [
        named("../evil.py"),
        named("pkg-1.0/../../evil.py"),
        named("pkg-1.0/link", tarfile.SYMTYPE, "/etc/passwd"),
        named("pkg-1.0/link", tarfile.SYMTYPE, "../../x"),
        named("pkg-1.0/device", tarfile.CHRTYPE),
        named("second/setup.py"),
    ],
)
def test_a_source_archive_that_leads_out_is_refused(tmp_path: Path, member: tarfile.TarInfo) -> None:
    """Paths and links out of the directory, devices and a second top directory: an error, and nothing is left."""
    archive = sdist(tmp_path / "a.tar.gz", named("pkg-1.0/setup.py"), member)
    with pytest.raises(CallerError):
        unpack_sdist(archive, tmp_path / "out" / "pkg")
    assert list((tmp_path / "out").iterdir()) == []
    assert not (tmp_path / "evil.py").exists()


def test_an_archive_cut_short_is_an_error(tmp_path: Path) -> None:
    """Half an archive is not unpacked as if it were whole."""
    archive = sdist(tmp_path / "a.tar.gz", *[named(f"pkg-1.0/{index}.py") for index in range(500)])
    archive.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])
    with pytest.raises(CallerError):
        unpack_sdist(archive, tmp_path / "out" / "pkg")


def test_wheels_are_laid_over_one_another(tmp_path: Path) -> None:
    """Packages and metadata go to the root, purelib too; scripts and headers nowhere."""
    first = wheel(tmp_path / "a.whl", "a/__init__.py", "a-1.dist-info/METADATA", "a-1.data/scripts/run")
    second = wheel(tmp_path / "b.whl", "b-1.data/purelib/b.py", "b-1.data/headers/b.h")
    unpack_wheels([first, second], tmp_path / "out")
    found = sorted(path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.*"))
    assert found == ["a-1.dist-info", "a/__init__.py", "b.py"]


@pytest.mark.parametrize("name", ["../evil.py", "a/../../evil.py", "/evil.py", "x.data/purelib/../../../evil.py"])
def test_a_wheel_that_leads_out_is_refused(tmp_path: Path, name: str) -> None:
    """A path that leaves the directory is an error, and nothing is written there."""
    with pytest.raises(CallerError, match="path"):
        unpack_wheels([wheel(tmp_path / "a.whl", name)], tmp_path / "deep" / "out")
    assert list(tmp_path.rglob("evil.py")) == []
