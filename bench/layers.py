"""``python -m bench.layers OLD NEW``: what a store keeps of two directories, against the compressed archives of both.

``--entries N`` instead makes a layer of an archive of N small files, and as root reads all back from its mount: time
and largest memory. Nothing else runs; the figures go to standard output as JSON.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.mounted import mounted
from dsec.layering.making import FromDirectory, make
from dsec.layering.placing import CHUNK_SIZE
from dsec.stores.chunks import pack_chunk

__all__ = ["main"]

_A_DIRECTORY = 500
"""Files of one directory of the archive that is made."""


def stored_chunks(layer: Path) -> dict[bytes, int]:
    """Digest of each chunk of a layer that a store keeps, and the bytes it takes."""
    found: dict[bytes, int] = {}
    with (layer / "data").open("rb") as data:
        while chunk := data.read(CHUNK_SIZE):
            digest = hashlib.sha256(chunk).digest()
            if digest not in found:
                found[digest] = len(pack_chunk(chunk))
    return found


def compared(old: Path, new: Path) -> dict[str, object]:
    """The sizes of two versions."""
    with tempfile.TemporaryDirectory(dir=old.parent) as scratch:
        chunks: list[dict[bytes, int]] = []
        figures: dict[str, object] = {}
        for name, tree in (("old", old), ("new", new)):
            out = Path(scratch) / name
            out.mkdir()
            begun = time.monotonic()
            made = make(FromDirectory(directory=str(tree), max_entries=4_000_000), out)
            took = time.monotonic() - begun
            on_disk = (out / "data").stat().st_blocks * 512
            figures[name] = {
                "tar_gz_bytes": sum(map(len, _compressed(tree))), "data_bytes": made.data_size,
                "on_disk_bytes": on_disk, "metadata_bytes": made.metadata_size, "made_in_s": round(took, 2),
            }  # fmt: skip
            chunks.append(stored_chunks(out))
    first, second = chunks
    figures["store_keeps_of_old_bytes"] = sum(first.values())
    figures["store_keeps_of_new_bytes"] = sum(second.values())
    figures["new_adds_bytes"] = sum(size for digest, size in second.items() if digest not in first)
    return figures


def _compressed(tree: Path) -> Iterator[bytes]:
    tar = subprocess.Popen(["tar", "-C", tree, "-cf", "-", "."], stdout=subprocess.PIPE)
    packed = subprocess.Popen(["gzip", "-6"], stdin=tar.stdout, stdout=subprocess.PIPE)
    assert packed.stdout is not None
    yield from iter(lambda: packed.stdout.read(1 << 20), b"")  # type: ignore[union-attr]
    packed.wait()
    tar.wait()


def large_tree(entries: int, directory: Path) -> dict[str, object]:
    """A layer of an archive of very many small files, made by the program that nodes run."""
    archive, out = directory / "archive.tar.gz", directory / "layer"
    out.mkdir()
    with gzip.open(archive, "wb", compresslevel=1) as file:
        for block in _members(entries):
            file.write(block)
    options = {"max_bytes": 1 << 40, "max_entries": 10_000_000}
    source = {"type": "FromArchive", "file": str(archive), "options": options}
    (out / "job").write_text(json.dumps({"source": source}))
    begun = time.monotonic()
    made = subprocess.run([sys.executable, "-P", "-m", "dsec.layering", str(out)], stdout=subprocess.PIPE, check=True)
    took = time.monotonic() - begun
    answer = json.loads(made.stdout)
    if answer["type"] != "Made":
        raise SystemExit(f"it failed: {answer}")
    begun = time.monotonic()
    with mounted(out) as point:
        read_all(point, entries)
    return {
        "entries": entries,
        "took_s": round(took, 1),
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10,
        "metadata_mib": answer["metadata_size"] >> 20,
        "data_mib": answer["data_size"] >> 20,
        "on_disk_mib": (out / "data").stat().st_blocks * 512 >> 20,
        "read_back_s": round(time.monotonic() - begun, 1),
    }


def read_all(point: Path, entries: int) -> None:
    """Hold every file of the layer against what went in, and see that there is no other.

    Raises:
        SystemExit: a file is missing, is another, or is one too many
    """
    for number in range(entries):
        name, content = _file(number)
        with (point / name).open("rb", buffering=0) as file:
            if file.read() != content:
                raise SystemExit(f"{name} is not what went in")
    found = sum(len(files) for _, _, files in os.walk(point))
    if found != entries:
        raise SystemExit(f"{found} files are there, {entries} went in")


def _file(number: int) -> tuple[str, bytes]:
    directory, file = divmod(number, _A_DIRECTORY)
    name = f"usr/lib/part-{directory // 100:03}/module-{directory:05}/file-{file:04}.py"
    return name, b"# file %d\n" % number if number % 4 else b""


def _members(entries: int) -> Iterator[bytes]:
    for number in range(entries):
        name, content = _file(number)
        info = tarfile.TarInfo(name)
        info.size, info.mtime, info.mode = len(content), 1_700_000_000, 0o644
        yield info.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % 512)
    end = io.BytesIO(bytes(1024))
    yield end.getvalue()


def main() -> None:
    """Measure what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m bench.layers", description=__doc__)
    parser.add_argument("trees", nargs="*", type=Path, metavar="OLD NEW")
    parser.add_argument("--entries", type=int, default=0)
    asked = parser.parse_args()
    if asked.entries:
        with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as scratch:
            print(json.dumps(large_tree(asked.entries, Path(scratch))))
    elif len(asked.trees) == 2:
        print(json.dumps(compared(*asked.trees), indent=2))
    else:
        parser.error("give two directories, or --entries")


if __name__ == "__main__":
    main()
