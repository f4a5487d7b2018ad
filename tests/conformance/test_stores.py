"""One suite for every store: in memory, a directory, a FUSE mount of SeaweedFS, its S3 door, and two slow ones."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dsec.errors import InvalidArgument, NotFound, StoreDenied, StoreFull, StoreUnreachable
from dsec.stores.bucket import BucketStore
from dsec.stores.contract import Store
from dsec.stores.directory import DirectoryStore
from dsec.stores.memory import MemoryStore
from dsec.stores.settings import BucketAddress, parse_address
from dsec.testing.seaweed import Seaweed, mounted, seaweed
from dsec.testing.slow_bucket import SlowBucket, slow_bucket
from dsec.testing.slow_directory import slow_directory

pytestmark = pytest.mark.timeout(120)
KINDS = ("memory", "directory", "mount", "s3", "slow mount", "slow bucket")
KEYS = {"access_key_id": "some", "secret_access_key": "secret"}


@pytest.fixture(scope="module")
def server() -> Iterator[Seaweed]:
    """SeaweedFS, for the module."""
    with seaweed() as running:
        yield running


@pytest.fixture(scope="module")
def mount(server: Seaweed) -> Iterator[Path]:
    """Its FUSE mount, for the module."""
    with mounted(server) as point:
        yield point


@pytest.fixture(scope="module")
def slow_mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A slow FUSE mount, for the module."""
    source, point = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("point")
    with slow_directory(source, point, latency_s=0.0005, bytes_per_s=1e9) as mounted_there:
        yield mounted_there.point


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlowBucket]:
    """A slow bucket, for the module."""
    with slow_bucket(tmp_path_factory.mktemp("bucket"), latency_s=0.0005, bytes_per_s=1e9) as running:
        yield running


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store of each kind."""
    if request.param == "memory":
        return MemoryStore()
    if request.param == "directory":
        return DirectoryStore(tmp_path)
    if request.param in ("mount", "slow mount"):
        root = request.getfixturevalue(request.param.replace(" ", "_")) / secrets.token_hex(4)
        root.mkdir()
        return DirectoryStore(root)
    if request.param == "slow bucket":
        slow: SlowBucket = request.getfixturevalue("slow")
        url = f"s3://slow/{secrets.token_hex(4)}/below"
        address = parse_address(url, endpoint=slow.endpoint, environment=slow.environment)
        assert isinstance(address, BucketAddress)
        return BucketStore(address)
    server: Seaweed = request.getfixturevalue("server")
    return _bucket(server, f"s3://{server.bucket}/{secrets.token_hex(4)}/below", "writer")


def test_what_is_put_is_read(store: Store) -> None:
    """Whole, from an offset, a range, and beyond the end: as many bytes as there are."""
    store.put("blobs/a", b"0123456789")
    assert store.read("blobs/a") == b"0123456789"
    assert store.read("blobs/a", 4) == b"456789"
    assert store.read("blobs/a", 4, 3) == b"456"
    assert store.read("blobs/a", 8, 100) == b"89"
    assert store.read("blobs/a", 10, 5) == b""
    assert store.read("blobs/a", 0, 0) == b""


def test_large_objects_are_whole(store: Store) -> None:
    """A pack of the usual size comes back byte for byte, and so does its end."""
    content = secrets.token_bytes(1 << 20) * 32
    store.put("blobs/large", content)
    assert store.read("blobs/large") == content
    assert store.read("blobs/large", len(content) - 5, 100) == content[-5:]


def test_an_object_is_replaced_whole(store: Store) -> None:
    """The second put is what is read, though it is shorter."""
    store.put("tags/x", b"the first one")
    store.put("tags/x", b"second")
    assert store.read("tags/x") == b"second"
    found = store.stat("tags/x")
    assert found is not None
    assert (found.name, found.size) == ("tags/x", 6)


def test_what_is_not_there(store: Store) -> None:
    """stat says None, read raises NotFound with the name, delete is content, list is empty."""
    assert store.stat("blobs/none") is None
    with pytest.raises(NotFound) as caught:
        store.read("blobs/none")
    assert caught.value.details["object"] == "blobs/none"
    with pytest.raises(NotFound):
        store.read("blobs/none", 3, 3)
    store.delete("blobs/none")
    assert list(store.list("blobs")) == []


def test_deleted_is_gone(store: Store) -> None:
    """Neither stat nor list nor read knows it afterwards; the name can be used again."""
    store.put("layers/d/chunks", b"1")
    store.delete("layers/d/chunks")
    assert store.stat("layers/d/chunks") is None
    assert list(store.list("layers")) == []
    store.put("layers/d/chunks", b"2")
    assert store.read("layers/d/chunks") == b"2"


def test_list_knows_what_is_below_a_folder(store: Store) -> None:
    """At every depth, with sizes; a folder whose name only begins alike is another."""
    for name in ("layers/a/chunks", "layers/a/layer.json", "layers/b/layer.json", "layers2/c", "blobs/x"):
        store.put(name, name.encode())
    found = {entry.name: entry.size for entry in store.list("layers")}
    assert found == {name: len(name) for name in ("layers/a/chunks", "layers/a/layer.json", "layers/b/layer.json")}
    assert [entry.name for entry in store.list("layers/b")] == ["layers/b/layer.json"]
    assert list(store.list("tmp")) == []


def test_many_objects_are_listed(store: Store) -> None:
    """More than one page of a listing."""
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda i: store.put(f"many/{i:04}", b"x"), range(1_050)))
    assert {entry.name for entry in store.list("many")} == {f"many/{i:04}" for i in range(1_050)}


def test_swap_makes_what_is_not_there_once(store: Store) -> None:
    """The second to make it is told that it did not, and changes nothing."""
    assert store.swap("tags/t", b"first", None)
    assert not store.swap("tags/t", b"other", None)
    assert store.read("tags/t") == b"first"


def test_swap_replaces_what_was_seen(store: Store) -> None:
    """With the mark of what is there it replaces it; with an older one it does not."""
    store.put("tags/t", b"one")
    seen = store.stat("tags/t")
    assert seen is not None
    assert store.swap("tags/t", b"two", seen.mark)
    assert not store.swap("tags/t", b"three", seen.mark)
    assert store.read("tags/t") == b"two"


def test_remove_takes_what_was_seen(store: Store) -> None:
    """With the mark of what is there it is gone; with an older one, or of nothing, nothing happens."""
    store.put("tags/t", b"one")
    seen = store.stat("tags/t")
    assert seen is not None
    store.put("tags/t", b"another")
    assert not store.remove("tags/t", seen.mark)
    assert store.read("tags/t") == b"another"
    now = store.stat("tags/t")
    assert now is not None and store.remove("tags/t", now.mark)
    assert not store.remove("tags/t", now.mark)
    assert store.stat("tags/t") is None


def test_no_replacement_is_lost(store: Store) -> None:
    """Writers that look and swap, again until they are told that they did: each of their steps counts once."""
    store.put("tags/count", b"0")

    def step(_: int) -> None:
        while True:
            seen = store.stat("tags/count")
            assert seen is not None
            try:
                value = int(store.read("tags/count"))
            except NotFound:
                continue
            if store.swap("tags/count", b"%d" % (value + 1), seen.mark):
                return

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(step, range(24)))
    assert store.read("tags/count") == b"24"


def test_swap_does_not_bring_back_what_is_gone(store: Store) -> None:
    """A mark of a deleted object fits nothing."""
    store.put("tags/t", b"one")
    seen = store.stat("tags/t")
    assert seen is not None
    store.delete("tags/t")
    assert not store.swap("tags/t", b"two", seen.mark)
    assert store.stat("tags/t") is None


def test_of_many_that_make_an_object_one_did(store: Store) -> None:
    """Sixteen at once: exactly one is told so, and its bytes are there."""
    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(lambda i: store.swap("tags/race", b"%d" % i, None), range(16)))
    assert made.count(True) == 1
    assert store.read("tags/race") == b"%d" % made.index(True)


def test_readers_never_see_half(store: Store) -> None:
    """While an object is replaced again and again, each read is one of the contents, whole."""
    contents = [bytes([i]) * (1 << 20) for i in range(4)]
    store.put("tags/busy", contents[0])

    def write(number: int) -> None:
        store.put("tags/busy", contents[number % 4])

    with ThreadPoolExecutor(8) as pool:
        writes = [pool.submit(write, number) for number in range(12)]
        reads = [pool.submit(store.read, "tags/busy") for _ in range(24)]
        assert all(read.result() in contents for read in reads)
        assert all(write.result() is None for write in writes)


@pytest.mark.parametrize("name", ["", "../x", "a/../b", "/etc/passwd", "a//b", ".x", "a/.x", "a\0b", "x" * 800, "é"])
def test_names_that_could_lead_elsewhere_are_refused(store: Store, name: str) -> None:
    """InvalidArgument before anything is touched."""
    for act in (store.stat, store.read, store.delete, lambda name: store.put(name, b"")):
        with pytest.raises(InvalidArgument):
            act(name)


def test_store_says_where_it_is(store: Store) -> None:
    """A URL, without credentials."""
    assert ":" in store.title
    assert "secret" not in store.title


def test_bucket_that_may_only_be_read(server: Seaweed) -> None:
    """Without the right to write: StoreDenied with a remedy, nothing changed, and reading goes on."""
    url = f"s3://{server.bucket}/{secrets.token_hex(4)}"
    _bucket(server, url, "writer").put("blobs/a", b"there")
    store = _bucket(server, url, "reader")
    for act in (lambda: store.put("blobs/a", b"x"), lambda: store.swap("blobs/b", b"x", None)):
        with pytest.raises(StoreDenied) as caught:
            act()
        assert caught.value.remedy
        assert "secret" not in str(caught.value)
    assert store.read("blobs/a") == b"there"


def test_bucket_behind_a_dead_endpoint() -> None:
    """StoreUnreachable, retryable, within the bound on retries."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = BucketAddress("b", "", f"http://127.0.0.1:{nobody.getsockname()[1]}", "us-east-1", KEYS)
        with pytest.raises(StoreUnreachable) as caught:
            BucketStore(address, retry_for_s=0.5).read("blobs/a")
    assert caught.value.retryable


def test_directory_that_is_not_mounted(tmp_path: Path) -> None:
    """Its absence is StoreUnreachable for every act; nothing is made in its place."""
    store = DirectoryStore(tmp_path / "none")
    acts: list[Callable[[], object]] = [
        lambda: store.stat("blobs/a"),
        lambda: store.read("blobs/a"),
        lambda: store.put("blobs/a", b""),
        lambda: store.swap("blobs/a", b"", None),
        lambda: list(store.list("blobs")),
        lambda: store.delete("blobs/a"),
        lambda: store.sweep(0),
    ]
    for act in acts:
        with pytest.raises(StoreUnreachable):
            act()
    assert not (tmp_path / "none").exists()


def test_directory_without_space_or_without_the_right_to_write(tmp_path: Path) -> None:
    """A full one is StoreFull and nothing is left behind; a read-only one is StoreDenied; both go on reading."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "dsec-test", str(tmp_path)], check=True)
    try:
        store = DirectoryStore(tmp_path)
        store.put("blobs/a", b"there")
        with pytest.raises(StoreFull):
            store.put("blobs/b", bytes(2 << 20))
        assert list((tmp_path / "tmp").iterdir()) == []
        assert store.stat("blobs/b") is None
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path)], check=True)
        with pytest.raises(StoreDenied):
            store.put("blobs/a", b"x")
        assert store.read("blobs/a") == b"there"
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_what_a_dead_writer_left_is_swept(tmp_path: Path) -> None:
    """Files without a name that are old enough go, by the file system's clock; a writer at work keeps its own."""
    store = DirectoryStore(tmp_path)
    store.put("blobs/a", b"1")
    for name, age in (("old", 100), ("young", 10)):
        path = tmp_path / "tmp" / name
        path.write_bytes(b"x")
        now = path.stat().st_mtime
        os.utime(path, (now - age, now - age))
    assert store.sweep(60) == 1
    assert [path.name for path in (tmp_path / "tmp").iterdir()] == ["young"]
    assert store.read("blobs/a") == b"1"


def _bucket(server: Seaweed, url: str, identity: str) -> BucketStore:
    address = parse_address(url, endpoint=server.s3, environment=server.environment(identity))
    assert isinstance(address, BucketAddress)
    return BucketStore(address)
