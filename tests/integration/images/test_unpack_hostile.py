"""An archive can neither leave its directory, nor fill the node, nor hang it, nor crash the reader."""

from __future__ import annotations

import gzip
import io
import os
import random
import tarfile
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from dsec.errors import DSecError, ImageCorrupt
from dsec.images.samples import Member, layer_archive
from dsec.images.streams import archive_chunks
from dsec.images.unpack import Stopped, UnpackOptions, unpack

pytestmark = pytest.mark.node
DIR, SYM, LNK = tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE


@pytest.fixture
def prison(tmp_path: Path) -> Path:
    """A directory to unpack into, beside a secret that no archive may reach."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(b"secret")
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def names(directory: Path) -> list[str]:
    """What a directory holds."""
    return sorted(each.name for each in directory.iterdir())


def lay(root: Path, archive: bytes, stop: threading.Event | None = None, **options: int) -> None:
    """Unpack with small bounds."""
    bounds = UnpackOptions(**{"max_bytes": 50_000_000, "max_entries": 1000, **options})  # type: ignore[arg-type]
    unpack(archive_chunks(io.BytesIO(archive)), str(root), bounds, stop or threading.Event())


def outside_is_untouched(prison: Path) -> bool:
    """Whether nothing beside the root was made, changed or linked."""
    outside = prison.parent / "outside"
    secret = outside / "secret"
    return (
        names(outside) == ["secret"]
        and secret.read_bytes() == b"secret"
        and secret.stat().st_nlink == 1
        and names(prison.parent) == ["outside", "root"]
    )


ESCAPES: dict[str, Sequence[Member]] = {
    "dotdot": [Member(name="../outside/x")],
    "dotdot inside": [Member(name="a/"), Member(name="a/../../outside/x")],
    "symlink parent": [Member(name="l", kind=SYM, link="../outside"), Member(name="l/x")],
    "absolute symlink parent": [Member(name="l", kind=SYM, link="/"), Member(name="l/tmp/dsec-escape")],
    "symlink chain": [
        Member(name="a", kind=SYM, link="b"),
        Member(name="b", kind=SYM, link="../outside"),
        Member(name="a/deep/x"),
    ],
    "directory entry over a symlink's target": [
        Member(name="l", kind=SYM, link="../outside"),
        Member(name="l/sub/", kind=DIR, mode=0o777),
    ],
    "symlink loop": [Member(name="l", kind=SYM, link="l"), Member(name="l/x")],
    "hard link out by dotdot": [Member(name="h", kind=LNK, link="../outside/secret")],
    "hard link out by symlink": [
        Member(name="l", kind=SYM, link="../outside"),
        Member(name="h", kind=LNK, link="l/secret"),
    ],
    "hard link to nothing": [Member(name="h", kind=LNK, link="etc/passwd")],
    "hard link to a directory": [Member(name="d/", kind=DIR), Member(name="h", kind=LNK, link="d")],
    "hard link to the root": [Member(name="h", kind=LNK, link=".")],
    "file for the root": [Member(name=".", data=b"x")],
    "whiteout by symlink": [Member(name="l", kind=SYM, link="../outside"), Member(name="l/.wh.secret")],
    "opaque by symlink": [Member(name="l", kind=SYM, link="../outside"), Member(name="l/.wh..wh..opq")],
    "whiteout of dotdot": [Member(name="a/.wh...")],
    "whiteout of dot": [Member(name="a/.wh..")],
    "whiteout of nothing": [Member(name="a/.wh.")],
    "below a file": [Member(name="f"), Member(name="f/x")],
    "overlay redirect": [Member(name="d/", kind=DIR, xattrs={"trusted.overlay.redirect": "/etc"})],
    "name too long": [Member(name="x" * 300)],
    "path too long": [Member(name="a/" * 3000 + "x")],
    "too deep": [Member(name="a/" * 600 + "x")],
    "impossible owner": [Member(name="x", uid=1 << 40)],
    "negative owner": [Member(name="x", uid=-1)],
}


@pytest.mark.parametrize("members", ESCAPES.values(), ids=ESCAPES.keys())
def test_hostile_archives_are_refused(prison: Path, members: Sequence[Member]) -> None:
    """Each is ImageCorrupt, and nothing outside the directory has changed."""
    with pytest.raises(ImageCorrupt):
        lay(prison, layer_archive(members))
    assert outside_is_untouched(prison)
    assert not Path("/tmp/dsec-escape").exists()


def test_absolute_names_stay_inside(prison: Path) -> None:
    """A leading slash means the layer's own root."""
    lay(prison, layer_archive([Member(name="/etc/x", data=b"1"), Member(name="//y", data=b"2")]))
    assert (prison / "etc/x").read_bytes() == b"1"
    assert (prison / "y").read_bytes() == b"2"


def test_a_file_replaces_a_symlink_and_not_its_target(prison: Path) -> None:
    """Writing to a name that is a symlink makes a new file there."""
    members = [Member(name="l", kind=SYM, link="../outside/secret"), Member(name="l", data=b"mine", mode=0o777)]
    lay(prison, layer_archive(members))
    assert (prison / "l").read_bytes() == b"mine"
    assert outside_is_untouched(prison)


def test_replacing_a_directory_forgets_its_descriptor(prison: Path) -> None:
    """After a directory became a symlink, its name leads nowhere."""
    members = [Member(name="d/x"), Member(name="d", kind=SYM, link="../outside"), Member(name="d/y")]
    with pytest.raises(ImageCorrupt):
        lay(prison, layer_archive(members))
    assert outside_is_untouched(prison)


def test_sizes_are_bounded(prison: Path) -> None:
    """Neither a bomb of zeros nor a hole of an exabyte nor a crowd of files passes the bounds."""
    with pytest.raises(ImageCorrupt, match="more than the node allows"):
        lay(prison, gzip.compress(layer_archive([Member(name="x", data=bytes(60_000_000))])))
    with pytest.raises(ImageCorrupt, match="more files"):
        lay(prison, layer_archive([Member(name=f"f{i}") for i in range(1001)]))
    huge = tarfile.TarInfo("hole")
    huge.pax_headers = {"GNU.sparse.map": "", "GNU.sparse.size": str(1 << 60)}
    with pytest.raises(ImageCorrupt):
        lay(prison, huge.tobuf(tarfile.PAX_FORMAT) + bytes(1024))


def test_an_endless_stream_is_bounded(prison: Path) -> None:
    """What follows the end mark is read for its digest, but not without end."""
    archive = gzip.compress(layer_archive([Member(name="x")]) + bytes(200_000_000))
    with pytest.raises(ImageCorrupt, match="more than the node allows"):
        lay(prison, archive)


@pytest.mark.parametrize("compress", [False, True])
def test_cut_archives_are_noticed_wherever_they_are_cut(tmp_path: Path, compress: bool) -> None:
    """A stream that ends early is ImageCorrupt at every cut."""
    whole = layer_archive([Member(name=f"f{i}", data=os.urandom(700)) for i in range(12)])
    # tarfile pads to 10 KiB; only up to the first closing block is anything missing.
    needed = len(whole) if compress else len(whole.rstrip(b"\0")) // 512 * 512
    archive = gzip.compress(whole) if compress else whole
    limit = len(archive) if compress else needed
    for cut in [*range(0, limit - 1, 997), limit - 1]:
        root = tmp_path / str(cut)
        root.mkdir()
        with pytest.raises(ImageCorrupt):
            lay(root, archive[:cut])


def test_damaged_archives_never_crash(tmp_path: Path) -> None:
    """Whatever bytes are changed, the result is an unpacked tree or a typed error."""
    members = [
        Member(name="d/", kind=DIR),
        Member(name="d/x", data=b"1" * 900, xattrs={"user.a": "b"}),
        Member(name="long" * 40, data=b"2"),
        Member(name="l", kind=SYM, link="d"),
        Member(name="h", kind=LNK, link="d/x"),
    ]
    whole = layer_archive(members)
    random_bytes = random.Random(7)
    refused = 0
    for i in range(300):
        damaged = bytearray(whole)
        for _ in range(random_bytes.randint(1, 3)):
            damaged[random_bytes.randrange(len(whole))] = random_bytes.randrange(256)
        root = tmp_path / str(i)
        root.mkdir()
        try:
            lay(root, bytes(damaged))
        except DSecError:
            refused += 1
    assert refused > 20
    assert names(tmp_path) == sorted(str(i) for i in range(300))


@pytest.mark.parametrize("seed", range(3))
def test_random_bytes_with_good_checksums_never_crash(tmp_path: Path, seed: int) -> None:
    """Headers of random bytes whose checksum is right, too."""
    source = random.Random(seed)
    for i in range(200):
        header = bytearray(source.randbytes(512))
        header[156] = source.choice(b"0123456xgLKS57")
        header[124:136] = b"%011o\0" % source.randrange(2000)
        if source.random() < 0.7:
            header[100:124] = b"0000644\0" + b"0000000\0" * 2
            header[136:148] = b"%011o\0" % source.randrange(1 << 30)
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
        root = tmp_path / str(i)
        root.mkdir()
        try:
            lay(root, bytes(header) + source.randbytes(2048) + bytes(1024))
        except DSecError:
            continue


def test_stops_when_told(prison: Path) -> None:
    """A stopped unpacking ends at its next entry."""
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        lay(prison, layer_archive([Member(name="x")]), stop)
    assert names(prison) == []
