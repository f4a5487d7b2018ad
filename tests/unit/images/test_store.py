"""The store: layers appear whole, once, under the digest of their content."""

from __future__ import annotations

import hashlib
import json
import threading
from pathlib import Path

import pytest

from dsec.errors import ImageCorrupt, NotFound
from dsec.images.store import CHUNK_SIZE, LayerStore, describe, digest_of, private_directory, sweep_stale


def publish(store: LayerStore, metadata: bytes, data: bytes) -> str:
    """Publish a layer of these two files."""
    with store.staging() as staged:
        (staged / "metadata").write_bytes(metadata)
        (staged / "data").write_bytes(data)
        return store.publish(staged, describe(staged))


def names(directory: Path) -> list[str]:
    """What a directory holds."""
    return sorted(each.name for each in directory.iterdir())


def test_digest_is_the_hash_of_the_canonical_manifest(tmp_path: Path) -> None:
    """layer.json is canonical JSON and its sha256 is the layer's name; the chunk list is hashed as documented."""
    store = LayerStore(tmp_path)
    data = bytes(range(256)) * 4096  # four chunks
    digest = publish(store, b"meta", data)
    text = (store.path(digest) / "layer.json").read_bytes()
    assert hashlib.sha256(text).hexdigest() == digest
    parsed = json.loads(text)
    assert json.dumps(parsed, sort_keys=True, separators=(",", ":")).encode() == text
    chunks = b"".join(hashlib.sha256(data[at : at + CHUNK_SIZE]).digest() for at in range(0, len(data), CHUNK_SIZE))
    assert parsed == {
        "format": "dsec.layer.v1",
        "metadata": {"sha256": hashlib.sha256(b"meta").hexdigest(), "size": 4},
        "data": {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)},
        "chunk_size": 262144,
        "chunks_sha256": hashlib.sha256(chunks).hexdigest(),
    }
    assert digest_of(store.manifest(digest)) == digest


def test_publishing_again_changes_nothing(tmp_path: Path) -> None:
    """The same content is one layer, and no temporary directory stays."""
    store = LayerStore(tmp_path)
    first = publish(store, b"m", b"d")
    inode = (store.path(first) / "data").stat().st_ino
    assert publish(store, b"m", b"d") == first
    assert (store.path(first) / "data").stat().st_ino == inode
    assert publish(store, b"m", b"e") != first
    assert len(names(tmp_path)) == 2
    assert names(store.path(first)) == ["data", "layer.json", "metadata"]


def test_concurrent_publishers_agree(tmp_path: Path) -> None:
    """Two stores on one directory that publish the same layer at the same moment both succeed."""
    barrier = threading.Barrier(4)
    found: list[str] = []

    def one() -> None:
        store = LayerStore(tmp_path)
        with store.staging() as staged:
            (staged / "metadata").write_bytes(b"m")
            (staged / "data").write_bytes(b"d" * 100_000)
            manifest = describe(staged)
            barrier.wait()
            found.append(store.publish(staged, manifest))

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert names(tmp_path) == [found[0]]


def test_nothing_stays_of_a_failed_build(tmp_path: Path) -> None:
    """An exception while staging leaves the store as it was."""
    store = LayerStore(tmp_path)
    with pytest.raises(RuntimeError), store.staging() as staged:
        (staged / "data").write_bytes(b"x")
        raise RuntimeError
    assert names(tmp_path) == []


def test_start_deletes_what_the_dead_left_but_not_what_lives(tmp_path: Path) -> None:
    """A directory without a lock holder is swept; one that is in use stays."""
    dead = tmp_path / ".new-dead"
    (dead / "deep").mkdir(parents=True)
    with private_directory(tmp_path, ".new-") as alive:
        LayerStore(tmp_path)
        assert not dead.exists()
        assert alive.exists()
    assert not alive.exists()


def test_a_sweep_between_making_and_locking_is_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweeper that comes before the lock gets the directory; its maker takes another one."""
    made: list[Path] = []
    real = Path.mkdir

    def swept_once(self: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        real(self, mode, parents, exist_ok)
        made.append(self)
        if len(made) == 1:
            sweep_stale(tmp_path, ".new-")

    monkeypatch.setattr(Path, "mkdir", swept_once)
    with private_directory(tmp_path, ".new-") as path:
        assert len(made) == 2
        assert names(tmp_path) == [path.name]
    assert names(tmp_path) == []


def test_sweeping_never_follows_links(tmp_path: Path) -> None:
    """A symlink among the temporary names does not lead the sweeper elsewhere."""
    (tmp_path / "precious").mkdir()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (scratch / ".new-link").symlink_to(tmp_path / "precious")
    sweep_stale(scratch, ".new-")
    assert (tmp_path / "precious").exists()


def test_shared_store_is_read_and_never_written(tmp_path: Path) -> None:
    """Layers of the second directory are found, are not made again, and are not buried."""
    digest = publish(LayerStore(tmp_path / "shared"), b"m", b"d")
    store = LayerStore(tmp_path / "own", tmp_path / "shared")
    assert store.path(digest) == tmp_path / "shared" / digest
    assert publish(store, b"m", b"d") == digest
    assert store.digests() == []
    assert store.bury(digest) is None
    assert store.has(digest)


def test_burying_hides_at_once(tmp_path: Path) -> None:
    """After burial the layer is not there, and publishing it again works."""
    store = LayerStore(tmp_path)
    digest = publish(store, b"m", b"d")
    grave = store.bury(digest)
    assert grave is not None
    assert not store.has(digest)
    with pytest.raises(NotFound):
        store.path(digest)
    assert publish(store, b"m", b"d") == digest


def test_a_changed_manifest_is_noticed(tmp_path: Path) -> None:
    """A layer.json that is not what the name says is ImageCorrupt."""
    store = LayerStore(tmp_path)
    digest = publish(store, b"m", b"d")
    file = store.path(digest) / "layer.json"
    file.chmod(0o644)
    file.write_bytes(file.read_bytes().replace(b"262144", b"262145"))
    with pytest.raises(ImageCorrupt):
        store.manifest(digest)
