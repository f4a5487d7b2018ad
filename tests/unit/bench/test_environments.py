"""What the benchmark of environments makes and computes; what it measures is never asserted."""

from __future__ import annotations

import hashlib
import zlib
from pathlib import Path

from bench.environments.contents import Contents, file_sizes, write_tree
from bench.environments.figures import markdown
from bench.environments.world import Scale, allocated
from bench.record import Record

from dsec.testing.bucket_server import Line


def _record() -> Record:
    machine = {"processor": "CPU", "cpus": 2, "memory_gib": 24.0, "kernel": "6.18", "load_at_start": 0.1}
    return Record("python -m bench.environments", machine, "abc", 0.0)


def test_files_are_the_same_each_time_and_partly_compressible() -> None:
    """The same number gives the same bytes, another one others; text shrinks to less than half, noise does not."""
    one, other = Contents(1), Contents(1)
    for number, most in ((3, 0.5), (9, 0.9)):
        content = b"".join(one.pieces(number, 300_000))
        assert content == b"".join(other.pieces(number, 300_000))
        assert content != b"".join(one.pieces(number + 10, 300_000))
        assert len(content) == 300_000
        assert 0.05 < len(zlib.compress(content, 1)) / len(content) < most


def test_sizes_are_those_of_images() -> None:
    """So many files, so many bytes in all, half of them small and a few that hold much."""
    sizes = file_sizes(1, 20_000, 1_000_000_000)
    assert len(sizes) == 20_000
    assert 0.6e9 < sum(sizes) < 1.02e9
    assert sorted(sizes)[10_000] < 8_192
    assert sum(sorted(sizes)[-200:]) > 0.2 * sum(sizes)


def test_a_tree_is_what_was_asked_for(tmp_path: Path) -> None:
    """Each file has its size and the bytes of its number."""
    contents = Contents(1)
    write_tree(tmp_path, contents, [0, 10, 5_000] * 30, first=7)
    files = {int(path.name[1:]): path for path in tmp_path.rglob("f*")}
    assert sorted(files) == list(range(7, 97))
    for number, path in files.items():
        size = [0, 10, 5_000][(number - 7) % 3]
        assert path.read_bytes() == b"".join(contents.pieces(number, size))


def test_holes_are_not_counted(tmp_path: Path) -> None:
    """What a directory takes is what is on disk of it."""
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    (tmp_path / "full").write_bytes(hashlib.sha256().digest() * 4096)
    assert 128 << 10 <= allocated(tmp_path) < 1 << 20


def test_the_scale_has_a_floor() -> None:
    """A look is small, but there is something to see."""
    assert Scale(1).of(200_000) == 200_000
    assert (Scale(0.02).of(200_000, 400), Scale(0.001).of(200_000, 400)) == (4_000, 400)


def test_a_line_carries_no_faster_than_it_can() -> None:
    """Two that send at once share it; one that comes when it is free waits for its own bytes only."""
    now = 100.0
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)

    line = Line(0.5, 1000, lambda: now, sleep)
    line.request()
    line.carry(1000)
    line.carry(500)
    assert slept == [0.5, 1.0, 1.5]
    now = 200.0
    line.carry(100)
    assert abs(slept[-1] - 0.1) < 1e-9


def test_the_table_says_what_the_targets_ask_for() -> None:
    """Shares of what was read, ratios to eager and to local files; what was not measured is left out."""
    kept = _record()
    kept.add("setting", "setting", scale=0.5, latency_s=0.001, bytes_per_s=1e9)
    kept.add("dsec", "mount", [0.001, 0.002])
    kept.add(
        "dsec", "first exec", [0.1], pull_s=[0.2], read_bytes=[10], data_bytes=1000, image_files=3, image_bytes=2000,
        stored_bytes=800, archive_bytes=900, made_s=1.5,
    )  # fmt: skip
    loading = {"misses": 3, "requests": 3, "bytes": 3 << 18, "p50_ms": 1.0, "p99_ms": 2.5}
    kept.add("dsec", "burst", [1.0], wall_s=1.0, sandboxes=8, environments=2, written_bytes=30, loading=loading)
    kept.add("eager", "burst", [2.0], wall_s=2.0, sandboxes=8, written_bytes=100)
    kept.add("dsec", "random cached", bytes_per_s=[[95.0, 1, 1, 1, 1]])
    kept.add("local", "random cached", bytes_per_s=[[100.0, 1, 1, 1, 1]])
    table = markdown(kept)
    assert "scale 0.5, store with 1 ms and 1 GB/s" in table
    assert "100.0 ms, 1.00 % of 1.0 KB read; its metadata before: 200.0 ms" in table
    assert "2.00× eager's speed, 30.0 % of its local writes" in table
    assert "random, cached: 95 % of the local file system" in table
    assert "at most 2.5 ms (p50 1), 3 misses, 3 requests of 262.1 KB" in table
    assert "pack_diff" not in table
