"""Reading OCI layouts: what is taken, and what is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsec.errors import ImageCorrupt, ImageNotFound
from dsec.images.oci import node_architecture, read_layout
from dsec.images.samples import Member, layer_archive, oci_layout

LAYER = layer_archive([Member(name="x", data=b"1")])


def edit(layout: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> Path:
    """Change manifest and configuration, and make all digests right again."""
    index = json.loads((layout / "index.json").read_text())
    blobs = layout / "blobs/sha256"
    manifest = json.loads((blobs / index["manifests"][0]["digest"][7:]).read_text())
    config = json.loads((blobs / manifest["config"]["digest"][7:]).read_text())
    change(manifest, config)

    def put(document: object) -> str:
        data = json.dumps(document).encode()
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return f"sha256:{digest}"

    manifest["config"]["digest"] = put(config)
    index["manifests"][0]["digest"] = put(manifest)
    (layout / "index.json").write_text(json.dumps(index))
    return layout


def test_nulls_are_defaults(tmp_path: Path) -> None:
    """Configurations with null fields, or none at all, have Docker's defaults."""
    nulls = {"Env": None, "User": None, "WorkingDir": "", "Entrypoint": None, "Cmd": None}
    image = read_layout(oci_layout(tmp_path / "a", [LAYER], nulls))
    assert (image.config.env, image.config.user, image.config.workdir, image.config.cmd) == ({}, "", "/", ())
    bare = edit(oci_layout(tmp_path / "b", [LAYER]), lambda _, config: config.pop("config"))
    assert read_layout(bare).config == image.config


def test_selector_and_name(tmp_path: Path) -> None:
    """An image is found by its name in the index; of several, one must be named."""
    layout = oci_layout(tmp_path / "a", [LAYER], name="one")
    assert read_layout(layout, "one").name == "one"
    with pytest.raises(ImageNotFound):
        read_layout(layout, "two")
    index = json.loads((layout / "index.json").read_text())
    index["manifests"] *= 2
    (layout / "index.json").write_text(json.dumps(index))
    with pytest.raises(ImageNotFound, match="several"):
        read_layout(layout)
    assert read_layout(layout, "one").layers


def test_architecture(tmp_path: Path) -> None:
    """The entry for the machine is taken; a single image of another machine is refused."""
    layout = oci_layout(tmp_path / "a", [LAYER], architectures=["arm64", "amd64"])
    assert len(read_layout(layout, architecture="amd64").layers) == 1
    assert read_layout(layout, architecture="arm64").layers == ()
    with pytest.raises(ImageNotFound, match="linux/amd64"):
        read_layout(layout, architecture="riscv64")
    single = edit(oci_layout(tmp_path / "b", [LAYER]), lambda _, config: config.update(architecture="z80"))
    with pytest.raises(ImageNotFound, match="z80"):
        read_layout(single)


def with_many_layers(manifest: dict[str, Any], config: dict[str, Any]) -> None:
    """Repeat the one layer 600 times."""
    manifest["layers"] *= 600
    config["rootfs"]["diff_ids"] *= 600


BROKEN: dict[str, Callable[[dict[str, Any], dict[str, Any]], Any]] = {
    "fewer diffIDs than layers": lambda _, c: c["rootfs"]["diff_ids"].clear(),
    "diffID that is a path": lambda _, c: c["rootfs"]["diff_ids"].__setitem__(0, "sha256:../../../etc/passwd"),
    "layer that is a path": lambda m, _: m["layers"][0].update(digest="sha256:../../../../etc/passwd"),
    "sha512": lambda m, _: m["layers"][0].update(digest="sha512:" + "a" * 128),
    "no rootfs": lambda _, c: c.pop("rootfs"),
    "environment of numbers": lambda _, c: c.update(config={"Env": [1]}),
    "no layers": lambda m, _: m.pop("layers"),
    "too many layers": with_many_layers,
}  # fmt: skip


@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN.keys())
def test_malformed_documents(tmp_path: Path, change: Callable[[dict[str, Any], dict[str, Any]], Any]) -> None:
    """Each is ImageCorrupt, although all digests are right."""
    with pytest.raises(ImageCorrupt):
        read_layout(edit(oci_layout(tmp_path / "a", [LAYER]), change))


def test_index_that_is_none(tmp_path: Path) -> None:
    """No index, no JSON, or a symlink for one: ImageCorrupt."""
    with pytest.raises(ImageCorrupt):
        read_layout(tmp_path)
    (tmp_path / "index.json").write_text("{")
    with pytest.raises(ImageCorrupt):
        read_layout(tmp_path)
    (tmp_path / "index.json").unlink()
    (tmp_path / "index.json").symlink_to("/etc/hostname")
    with pytest.raises(ImageCorrupt):
        read_layout(tmp_path)


def test_indexes_in_a_circle(tmp_path: Path) -> None:
    """An index that names itself, or one that names the next without end, is ImageCorrupt."""
    layout = oci_layout(tmp_path / "image", [layer_archive([])])
    blobs = layout / "blobs" / "sha256"
    kind = "application/vnd.oci.image.index.v1+json"
    platform = {"os": "linux", "architecture": node_architecture()}

    def named(digest: str) -> bytes:
        entry = {"mediaType": kind, "digest": f"sha256:{digest}", "size": 1, "platform": platform}
        return json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode()

    own = "a" * 64
    (blobs / own).write_bytes(named(own))
    (layout / "index.json").write_bytes(named(own))
    with pytest.raises(ImageCorrupt, match="digest"):
        read_layout(layout)
    document = named(own)
    for _ in range(100):
        digest = hashlib.sha256(document).hexdigest()
        (blobs / digest).write_bytes(document)
        document = named(digest)
    (layout / "index.json").write_bytes(document)
    with pytest.raises(ImageCorrupt, match="too deep"):
        read_layout(layout)
