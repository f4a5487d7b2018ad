"""The runtime's trial of the kernel carries a layer with it, as this writer makes it: no program is needed for it."""

from __future__ import annotations

import os
from pathlib import Path

from dsec.layering.making import FromDirectory, make

EMBEDDED = Path(__file__).parents[3] / "crates" / "runtime" / "src" / "probe_layer.erofs"
CONTENT = bytes(place % 251 for place in range(16 << 10))


def made(scratch: Path) -> tuple[bytes, bytes]:
    """Metadata and data of a layer of one file, ``file``, root's, of 2001."""
    tree = scratch / "tree"
    tree.mkdir()
    (tree / "file").write_bytes(CONTENT)
    for path, mode in ((tree / "file", 0o644), (tree, 0o755)):
        path.chmod(mode)
        if os.geteuid() == 0:
            os.chown(path, 0, 0)
        os.utime(path, ns=(10**18, 10**18))
    (scratch / "layer").mkdir()
    make(FromDirectory(directory=str(tree), max_entries=10), scratch / "layer")
    return (scratch / "layer" / "metadata").read_bytes(), (scratch / "layer" / "data").read_bytes()


def test_the_trial_has_a_layer_of_ours(tmp_path: Path) -> None:
    """Metadata as embedded, and data that is the file's content: the runtime makes the same one from its pattern."""
    metadata, data = made(tmp_path)
    assert data == CONTENT
    assert metadata == EMBEDDED.read_bytes()
