"""An archive can neither leave its layer, nor fill the node, nor hang it, nor crash the reader."""

from __future__ import annotations

import gzip
import os
import random
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest
import zstandard
from tests.unit.layering.laid import Laid, from_archive

from dsec.errors import DSecError, ImageCorrupt
from dsec.images.samples import Member, layer_archive
from dsec.layering.tar_fields import parse_pax

DIR, SYM, LNK = tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE


@pytest.fixture
def prison(tmp_path: Path) -> Path:
    """A place for a layer, beside a secret that no archive may reach."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(b"secret")
    return tmp_path / "root"


def names(directory: Path) -> list[str]:
    """What a directory holds."""
    return sorted(each.name for each in directory.iterdir())


def lay(root: Path, archive: bytes, **options: int) -> Laid:
    """A layer with small bounds."""
    return from_archive(root, archive, **{"max_bytes": 50_000_000, "max_entries": 1000, **options})


def outside_is_untouched(prison: Path) -> bool:
    """Whether nothing beside the layer was made, changed or linked."""
    outside = prison.parent / "outside"
    secret = outside / "secret"
    return (
        names(outside) == ["secret"]
        and secret.read_bytes() == b"secret"
        and secret.stat().st_nlink == 1
        and names(prison.parent) == ["outside", "root"]
        and set(names(prison)) <= {"data", "metadata"}
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
    laid = lay(prison, layer_archive([Member(name="/etc/x", data=b"1"), Member(name="//y", data=b"2")]))
    assert laid.contents == {b"etc/x": b"1", b"y": b"2"}


def test_a_file_replaces_a_symlink_and_not_its_target(prison: Path) -> None:
    """Writing to a name that is a symlink makes a new file there."""
    members = [Member(name="l", kind=SYM, link="../outside/secret"), Member(name="l", data=b"mine", mode=0o777)]
    assert lay(prison, layer_archive(members)).contents == {b"l": b"mine"}
    assert outside_is_untouched(prison)


def test_a_directory_that_became_a_link(prison: Path) -> None:
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


def test_directories_without_an_entry_are_counted(prison: Path) -> None:
    """A few long names that imply hundreds of directories each do not pass the bound of files; what fits does."""
    deep = [Member(name=f"{i}/" + "a/" * 350 + "x") for i in range(3)]
    with pytest.raises(ImageCorrupt, match="more files"):
        lay(prison, layer_archive(deep))
    with pytest.raises(ImageCorrupt, match="more files"):
        lay(prison, layer_archive([Member(name=f"{i}/" + "a/" * 350 + ".wh.x") for i in range(3)]))
    assert len(lay(prison, layer_archive(deep[:2])).names) == 2 * 352


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
        with pytest.raises(ImageCorrupt):
            lay(tmp_path / str(cut), archive[:cut])


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
        try:
            lay(tmp_path / str(i), bytes(damaged))
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
        try:
            lay(tmp_path / str(i), bytes(header) + source.randbytes(2048) + bytes(1024))
        except DSecError:
            continue


def tar_header(name: bytes, kind: bytes, size: int) -> bytes:
    """A header of any kind with a good checksum."""
    header = bytearray(512)
    header[: len(name)] = name
    header[100:124] = b"0000644\0" + b"0000000\0" * 2
    header[124:136] = b"%011o\0" % size
    header[136:148] = b"%011o\0" % 0
    header[156:157] = kind
    header[257:265] = b"ustar\00000"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def pax(kind: bytes, records: bytes) -> bytes:
    """An extended header."""
    return tar_header(b"pax", kind, len(records)) + records + bytes(-len(records) % 512)


def record(key: bytes, value: bytes) -> bytes:
    """One record of it."""
    length = len(key) + len(value) + 3
    while len(b"%d" % length) + len(key) + len(value) + 3 != length:
        length = len(b"%d" % length) + len(key) + len(value) + 3
    return b"%d %s=%s\n" % (length, key, value)


def gnu_map_without_end() -> bytes:
    """A sparse map of a great many empty blocks."""
    header = bytearray(tar_header(b"x", b"S", 0))
    header[482] = 1
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + (bytes(504) + b"\1" + bytes(7)) * 60_000


BOMBS: dict[str, bytes] = {
    "headers for all members": b"".join(
        pax(b"g", record(b"SCHILY.xattr.user.%d" % i, b"v" * 9_000)) for i in range(100)
    ),
    "an extended header of 2 MiB": tar_header(b"x", b"x", 2 << 20) + bytes(2 << 20),
    "a name of 1 MiB of slashes": tar_header(b"L", b"L", 1 << 20) + b"/" * (1 << 20) + tar_header(b"x", b"0", 0),
    "a sparse map without end": gnu_map_without_end(),
    "a sparse map in one line": pax(b"x", record(b"GNU.sparse.major", b"1") + record(b"GNU.sparse.realsize", b"9"))
    + tar_header(b"x", b"0", 8 << 20) + b"1" * (8 << 20),
    "a sparse map of a billion parts": pax(
        b"x", record(b"GNU.sparse.major", b"1") + record(b"GNU.sparse.realsize", b"9")
    ) + tar_header(b"x", b"0", 512) + b"1000000000\n".ljust(512, b"0"),
    "a hole of an exabyte": pax(
        b"x", record(b"GNU.sparse.map", b"0,0") + record(b"GNU.sparse.size", b"%d" % (1 << 60))
    ) + tar_header(b"x", b"0", 0),
    "an attribute of 100 kB": pax(b"x", record(b"SCHILY.xattr.user.a", b"v" * 100_000)) + tar_header(b"x", b"0", 0),
    "attributes of 300 kB": pax(
        b"x", b"".join(record(b"SCHILY.xattr.user.%d" % i, b"v" * 60_000) for i in range(5))
    ) + tar_header(b"x", b"0", 0),
    "a link of 5,000 bytes": pax(b"x", record(b"linkpath", b"x" * 5_000)) + tar_header(b"x", b"2", 0),
    "an access list that is none": pax(b"x", record(b"SCHILY.xattr.system.posix_acl_access", b"?"))
    + tar_header(b"x", b"0", 0),
    "an unknown kind of member": tar_header(b"x", b"Q", 0),
    "a negative size": tar_header(b"x", b"0", 0)[:124] + b"\xff" * 12 + tar_header(b"x", b"0", 0)[136:],
}  # fmt: skip


@pytest.mark.parametrize("archive", BOMBS.values(), ids=BOMBS.keys())
def test_bombs_are_refused(prison: Path, archive: bytes) -> None:
    """What would take time or memory out of proportion, or could not be served, is ImageCorrupt."""
    with pytest.raises(ImageCorrupt):
        lay(prison, archive + bytes(1024))


def test_members_that_look_dangerous_and_are_not(prison: Path) -> None:
    """Devices, odd sizes of links and the like come in: they are harmless in a layer."""
    archive = b"".join(
        [
            tar_header(b"null", b"3", 512),
            tar_header(b"link", b"2", 512)[:157] + b"x".ljust(100, b"\0") + tar_header(b"link", b"2", 512)[257:],
        ]
    )
    fixed = bytearray(archive)
    fixed[512 + 148 : 512 + 156] = b" " * 8
    fixed[512 + 148 : 512 + 156] = b"%06o\0 " % sum(fixed[512:])
    assert lay(prison, bytes(fixed) + bytes(1024)).names == [b"link", b"null"]


def test_streams_behind_the_archive(prison: Path, tmp_path: Path) -> None:
    """Padding behind a gzip stream is nothing; other bytes, and a second stream cut short, are ImageCorrupt."""
    whole = gzip.compress(layer_archive([Member(name="x", data=b"1")]))
    assert lay(prison, whole + bytes(5_000)).names == [b"x"]
    for number, behind in enumerate((b"garbage", whole[:9], bytes(40_000) + b"g")):
        with pytest.raises(ImageCorrupt):
            lay(tmp_path / f"behind-{number}", whole + behind)


def test_a_crowd_of_empty_gzip_members(prison: Path) -> None:
    """Hundreds of thousands of members that hold nothing are passed over without copying the rest for each."""
    nothing = zlib.compressobj(wbits=31)
    empty = nothing.compress(b"") + nothing.flush()
    stream = empty * 200_000 + gzip.compress(layer_archive([Member(name="x")]))
    assert lay(prison, stream).names == [b"x"]


def test_zstd_bombs_and_damage(tmp_path: Path) -> None:
    """Frames that unpack to gigabytes, windows beyond 256 MiB and cut ends are ImageCorrupt."""
    archive = layer_archive([Member(name="x", data=os.urandom(5_000))])
    whole = zstandard.ZstdCompressor().compress(archive)
    assert lay(tmp_path / "good", whole).names == [b"x"]
    half = len(archive) // 2
    frames = b"".join(zstandard.ZstdCompressor().compress(each) for each in (archive[:half], archive[half:]))
    assert lay(tmp_path / "frames", frames).names == [b"x"]
    bomb = zstandard.ZstdCompressor().compress(layer_archive([Member(name="x", data=bytes(200_000_000))]))
    wide = zstandard.ZstdCompressionParameters.from_level(3, window_log=30)
    stream = zstandard.ZstdCompressor(compression_params=wide).compressobj()
    window = stream.compress(archive) + stream.flush()
    for number, bad in enumerate((bomb, window, whole[:200], whole[:2] + b"?" * 50)):
        with pytest.raises(ImageCorrupt):
            lay(tmp_path / str(number), bad)


@pytest.mark.timeout(60)
def test_a_header_without_a_space_ends() -> None:
    """After a good record, one that has no space is refused; it must not be looked for again and again."""
    with pytest.raises(ImageCorrupt):
        parse_pax(b"30 mtime=1234567890.123456789\n" + b"x" * 40)
