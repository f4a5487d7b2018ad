"""Archives as the client writes and reads them, with Python's tarfile as the oracle."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.client.tar_in import Member, TarReader
from dsec.client.tar_out import Counts, pack
from dsec.client.unpack import Unpacking
from dsec.errors import DSecError, FileIsDirectory, FileMissing, ProtocolError

NAMES = st.text(st.characters(exclude_characters="\0/", codec="utf-8"), min_size=1, max_size=60).filter(
    lambda name: name not in (".", "..") and len(name.encode()) < 200
)


def source(data: bytes, step: int) -> Callable[[], bytes]:
    """An archive in pieces of a size."""
    pieces = iter([data[at : at + step] for at in range(0, len(data), step)])
    return lambda: next(pieces, b"")


def read(data: bytes, step: int = 700) -> Iterator[tuple[Member, bytes]]:
    """Members and their data, holes left out."""
    reader = TarReader(source(data, step))
    for member in reader.members():
        yield member, b"".join(bytes(view) for _, length in member.parts for view in reader.data(length))


@given(
    members=st.lists(st.tuples(st.lists(NAMES, min_size=1, max_size=4), st.binary(max_size=1500)), max_size=5),
    step=st.integers(1, 2000),
    mtime=st.integers(-(2**33), 2**34),
    owner=st.integers(0, 2**31),
)
def test_reads_what_tarfile_writes(members: list[tuple[list[str], bytes]], step: int, mtime: int, owner: int) -> None:
    """Names, modes, owners, times and bytes of any PAX archive, in pieces of any size."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for names, content in members:
            info = tarfile.TarInfo("/".join(names))
            info.size, info.mode, info.mtime, info.uid = len(content), 0o4640, mtime, owner
            archive.addfile(info, io.BytesIO(content))
    found = list(read(stream.getvalue(), step))
    assert [(os.fsdecode(member.name), data) for member, data in found] == [
        ("/".join(names), content) for names, content in members
    ]
    assert {(member.mode, member.mtime, member.uid) for member, _ in found} <= {(0o4640, mtime, owner)}


@given(data=st.binary(max_size=3000), step=st.integers(1, 600))
def test_rubbish_is_refused(data: bytes, step: int) -> None:
    """Bytes that are no archive are a ProtocolError: no other error, and no end without end."""
    with pytest.raises(ProtocolError):
        list(read(data + b"\1" * 512, step))


@given(at=st.integers(0, 1535), value=st.integers(0, 255))
def test_damage_is_an_error_or_another_archive(at: int, value: int) -> None:
    """One byte changed anywhere: read as an archive all the same, or ProtocolError."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(_sized("n" * 150, 10), io.BytesIO(b"0123456789"))
    data = bytearray(stream.getvalue())
    data[at] = value
    try:
        for member, content in read(bytes(data)):
            assert len(content) == sum(length for _, length in member.parts)
    except ProtocolError:
        return


def _sized(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = size
    return info


def test_tarfile_reads_what_is_packed(tmp_path: Path) -> None:
    """A tree with long and strange names, links, holes: tarfile sees it as it is, and the counts are right."""
    top = tmp_path / "top"
    (top / "d").mkdir(parents=True)
    (top / "d" / ("ü" * 90)).write_bytes(b"long")
    (top / os.fsdecode(b"\xff")).write_bytes(b"x" * 300_000)
    (top / "l").symlink_to("d/" + "y" * 150)
    os.link(top / os.fsdecode(b"\xff"), top / "same")
    with (top / "holes").open("wb") as file:
        file.seek(1 << 22)
        file.write(b"data")
        file.truncate(1 << 23)
    counts = Counts()
    pieces = list(pack(str(top), counts, follow=True))
    assert sum(map(len, pieces)) < 2_000_000
    with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as archive:
        members = {member.name: member for member in archive}
        assert set(members) == {
            ".", "./d", "./d/" + "ü" * 90, "./\udcff", "./l", "./same", "./holes",
        }  # fmt: skip
        content = archive.extractfile(members["./holes"])
        assert content is not None and content.read() == bytes(1 << 22) + b"data" + bytes((1 << 22) - 4)
        assert members["./l"].linkname == "d/" + "y" * 150
        assert sum(member.islnk() for member in members.values()) == 1
    assert (counts.entries, counts.bytes) == (7, 300_004 + (1 << 23))


def test_what_is_packed_is_unpacked(tmp_path: Path) -> None:
    """The two halves fit each other, down to holes and hard links."""
    (tmp_path / "a" / "b").mkdir(parents=True, mode=0o755)
    (tmp_path / "a" / "b" / "f").write_bytes(b"f" * 10_000)
    with (tmp_path / "a" / "hole").open("wb") as file:
        file.truncate(1 << 20)
    packed, unpacked = Counts(), Counts()
    data = b"".join(pack(str(tmp_path / "a"), packed, follow=True))
    Unpacking(str(tmp_path / "c"), unpacked, owners=False, set_ids=False, all_links=False).run(source(data, 5000))
    assert packed == unpacked
    assert (tmp_path / "c" / "b" / "f").read_bytes() == b"f" * 10_000
    assert (tmp_path / "c" / "hole").stat().st_size == 1 << 20


def test_errors_of_this_side(tmp_path: Path) -> None:
    """What is not there, what is a directory already, what is cut short: typed, and nothing half-written stays."""
    with pytest.raises(FileMissing):
        list(pack(str(tmp_path / "none"), Counts(), follow=True))
    (tmp_path / "f").write_bytes(b"x" * 5000)
    data = b"".join(pack(str(tmp_path / "f"), Counts(), follow=True))
    (tmp_path / "d").mkdir()
    for target, archive, error in (
        (tmp_path / "d", data, FileIsDirectory),
        (tmp_path / "no" / "f", data, FileMissing),
        (tmp_path / "new", data[:3000], DSecError),
    ):
        with pytest.raises(error):
            Unpacking(str(target), Counts(), owners=False, set_ids=False, all_links=False).run(source(archive, 900))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "f"]
