"""What is taken over from an agent's sandbox."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.demo.patch import Patch, acceptable, difference, pack, read_archive, read_directory
from dsec.errors import CallerError


def archive_of(*members: tuple[str, bytes, bytes]) -> bytes:
    """A tar archive of (name, type, content); content is the target for links."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, kind, content in members:
            member = tarfile.TarInfo(name)
            member.type = kind
            if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
                member.linkname = content.decode()
                tar.addfile(member)
            else:
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


@pytest.mark.parametrize(
    "name",
    [
        "conftest.py",
        "tests/conftest.py",
        "tests/test_api.py",
        "pkg/conftest.py",
        "pkg/sub/conftest.py",
        "pkg/__pycache__/a.cpython-311.pyc",
        "pkg/a.pyc",
        "pkg/evil.pth",
        "/pkg/a.py",
        "/etc/passwd",
        "pkg/../conftest.py",
        "pkg/../../etc/passwd",
        "../pkg/a.py",
        "pkg2/a.py",
        "pkg",
        "pkg/a\n.py",
        "pkg/" + "x" * 300,
    ],
)
def test_a_path_that_is_not_source_is_cut(name: str) -> None:
    """Only the package's own source is taken: no tests, no conftest, no byte code, nothing that leads elsewhere."""
    archive = archive_of((name, tarfile.REGTYPE, b"x"), ("pkg/kept.py", tarfile.REGTYPE, b"y"))
    assert read_archive(archive, "pkg") == {"kept.py": b"y"}


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE]
)
def test_only_plain_files_are_taken(kind: bytes) -> None:
    """A link in the source could point at anything, a device or FIFO could hang its reader."""
    content = b"/etc/passwd" if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE) else b""
    assert read_archive(archive_of(("pkg/a.py", kind, content)), "pkg") == {}


def test_a_sparse_file_is_not_blown_up() -> None:
    """A sparse member claims gigabytes in a few hundred bytes of archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("pkg/huge.py")
        member.pax_headers = {
            "GNU.sparse.major": "0",
            "GNU.sparse.minor": "1",
            "GNU.sparse.map": "0,0",
            "GNU.sparse.size": str(1 << 40),
        }
        tar.addfile(member, io.BytesIO())
    assert read_archive(buffer.getvalue(), "pkg") == {}


def test_too_large_a_source_is_refused() -> None:
    """A file beyond the bound is an error and not silently left out of the patch."""
    with pytest.raises(CallerError, match="larger"):
        read_archive(archive_of(("pkg/a.py", tarfile.REGTYPE, bytes(3 << 20))), "pkg")


def test_too_many_files_are_refused() -> None:
    """A million tiny files are bounded by number."""
    members = [(f"pkg/{index}.py", tarfile.REGTYPE, b"") for index in range(2_001)]
    with pytest.raises(CallerError, match="larger"):
        read_archive(archive_of(*members), "pkg")


@given(st.binary(max_size=2_000))
def test_garbage_is_an_error_or_nothing(garbage: bytes) -> None:
    """Whatever a replaced tar program prints, the reader ends with files below the source or with CallerError."""
    try:
        found = read_archive(garbage, "pkg")
    except CallerError:
        return
    assert all(acceptable(path) for path in found)


@given(st.binary(min_size=1, max_size=64), st.integers(0, 1_023))
def test_a_damaged_archive_is_an_error_or_nothing(noise: bytes, at: int) -> None:
    """Bytes overwritten in a well-formed archive never escape as another exception."""
    archive = bytearray(archive_of(("pkg/a.py", tarfile.REGTYPE, b"content")))
    archive[at : at + len(noise)] = noise
    try:
        found = read_archive(bytes(archive), "pkg")
    except CallerError:
        return
    assert all(acceptable(path) for path in found)


FILES = st.dictionaries(st.from_regex(r"[a-z]{1,8}(/[a-z]{1,8}){0,2}\.py", fullmatch=True), st.binary(max_size=64))


@given(FILES, FILES)
def test_a_difference_turns_one_tree_into_the_other(before: dict[str, bytes], after: dict[str, bytes]) -> None:
    """Applying the patch to the first tree gives the second, and equal trees give an empty patch."""
    patch = difference(before, after)
    applied = {path: content for path, content in before.items() if path not in patch.removed} | dict(patch.written)
    assert applied == after
    assert bool(patch) is (before != after)


@given(FILES)
def test_what_is_packed_is_read_back(files: dict[str, bytes]) -> None:
    """The archive that goes into the grading sandbox holds the patch, below the source directory."""
    assert read_archive(pack(files, "src/pkg"), "src/pkg") == files


def test_a_directory_reads_as_its_archive_would(tmp_path: Path) -> None:
    """The original is read by the agent's rules, else unchanged conftest or byte code files would look removed."""
    for name in ("a.py", "conftest.py", "sub/b.txt", "sub/__pycache__/b.pyc"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    (tmp_path / "link.py").symlink_to("/etc/passwd")
    assert read_directory(tmp_path) == {"a.py": b"a.py", "sub/b.txt": b"sub/b.txt"}


def test_a_summary_says_how_much_there_is() -> None:
    """The result table names the size of a patch, or that it is empty."""
    assert Patch({"a.py": b""}, frozenset({"b.py", "c.py"})).summary() == "1 written, 2 removed"
    assert Patch({}, frozenset()).summary() == "empty"
