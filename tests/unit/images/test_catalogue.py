"""The catalogue: first build wins, tags move, nothing referred to goes."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from dsec.errors import ImageNotFound, NotFound
from dsec.images.catalogue import Catalogue, ImageConfig, LayerEnvironment


@pytest.fixture
def catalogue(tmp_path: Path) -> Iterator[Catalogue]:
    """An empty catalogue whose clock says 5."""
    made = Catalogue(tmp_path / "catalogue.db", clock=lambda: 5.0)
    yield made
    made.close()


def test_image_comes_back_as_it_was_put(catalogue: Catalogue, tmp_path: Path) -> None:
    """An image keeps configuration and order of layers, also for the next process."""
    config = ImageConfig(env={"B": "2", "A": "1"}, user="u:g", workdir="/w", entrypoint=("e",), cmd=("c", "d"))
    for digest, size in (("l1", 10), ("l2", 20)):
        catalogue.put_layer(digest, size)
    catalogue.put_image("r:1", "sha256:i", config, ["l2", "l1", "l2"])
    again = Catalogue(tmp_path / "catalogue.db")
    found = again.image("r:1")
    again.close()
    assert found == catalogue.image("r:1")
    assert found.layers == ("l2", "l1", "l2")
    assert found.config == config
    assert list(found.config.env) == ["B", "A"]
    assert (found.bytes, found.created_at) == (30, 5.0)


def test_first_build_of_a_diff_id_wins(catalogue: Catalogue) -> None:
    """A second layer made from the same diffID is not what the diffID means."""
    assert catalogue.put_layer("first", 1, diff_id="sha256:d") == "first"
    assert catalogue.put_layer("second", 1, diff_id="sha256:d") == "first"
    assert catalogue.layer_of("sha256:d") == "first"
    assert catalogue.layer_of("sha256:other") is None


def test_references_and_tags_move(catalogue: Catalogue) -> None:
    """Putting a name again replaces what it means, in the cache too."""
    catalogue.put_layer("l1", 1)
    catalogue.put_layer("l2", 2)
    catalogue.put_image("r", "sha256:1", ImageConfig(), ["l1"])
    assert catalogue.image("r").digest == "sha256:1"
    catalogue.put_image("r", "sha256:2", ImageConfig(), ["l2"])
    assert catalogue.image("r").layers == ("l2",)
    catalogue.put_tag("workspace/a:1", "l1")
    catalogue.put_tag("workspace/a:1", "l2")
    assert catalogue.tag("workspace/a:1").digest == "l2"
    assert [each.tag for each in catalogue.tags()] == ["workspace/a:1"]


def test_layers_referred_to_cannot_be_removed(catalogue: Catalogue) -> None:
    """An image or a tag keeps its layers; what is left over is listed and can go, with its diffID and blobs."""
    for digest in ("of-image", "of-tag", "loose"):
        catalogue.put_layer(digest, 1, diff_id=f"sha256:{digest}")
    catalogue.put_blob("sha256:b", 9, "sha256:loose")
    catalogue.put_image("r", "sha256:1", ImageConfig(), ["of-image"])
    catalogue.put_tag("toolkit/t:1", "of-tag")
    assert catalogue.unreferenced_layers() == ["loose"]
    assert not catalogue.remove_layer("of-image")
    assert not catalogue.remove_layer("of-tag")
    assert catalogue.remove_layer("loose")
    assert catalogue.layer_of("sha256:loose") is None
    assert catalogue.blobs() == {}
    catalogue.remove_image("r")
    assert catalogue.unreferenced_layers() == ["of-image"]


def test_an_image_of_unknown_layers_is_refused(catalogue: Catalogue) -> None:
    """The catalogue never names a layer that it does not have, and a refused image leaves the old one in place."""
    catalogue.put_layer("l1", 1)
    catalogue.put_image("r", "sha256:1", ImageConfig(), ["l1"])
    with pytest.raises(NotFound):
        catalogue.put_image("r", "sha256:2", ImageConfig(), ["nowhere"])
    assert catalogue.image("r").digest == "sha256:1"


def test_unknown_names(catalogue: Catalogue) -> None:
    """What is not there is a typed error with a remedy."""
    with pytest.raises(ImageNotFound) as image:
        catalogue.image("r")
    with pytest.raises(NotFound) as tag:
        catalogue.tag("workspace/x:1")
    with pytest.raises(ImageNotFound):
        catalogue.remove_image("r")
    assert image.value.remedy
    assert tag.value.remedy


def test_adopting_adds_and_never_replaces(catalogue: Catalogue, tmp_path: Path) -> None:
    """Another node's images come in, but a name that is taken keeps its own image and chain."""
    other = Catalogue(tmp_path / "other 100%.db")
    for digest in ("l1", "l2", "l3"):
        other.put_layer(digest, 1, diff_id=f"sha256:{digest}")
    other.put_image("new", "sha256:n", ImageConfig(cmd=("x",)), ["l1", "l2"])
    other.put_image("taken", "sha256:theirs", ImageConfig(), ["l2", "l3"])
    other.put_tag("workspace/w:1", "l3")
    other.close()
    catalogue.put_layer("mine", 1)
    catalogue.put_image("taken", "sha256:mine", ImageConfig(), ["mine"])
    catalogue.adopt(tmp_path / "other 100%.db")
    catalogue.adopt(tmp_path / "other 100%.db")
    assert catalogue.image("new").layers == ("l1", "l2")
    assert catalogue.image("taken").layers == ("mine",)
    assert catalogue.image("taken").digest == "sha256:mine"
    assert catalogue.tag("workspace/w:1").digest == "l3"
    assert catalogue.layer_of("sha256:l2") == "l2"


def test_a_tags_environment(catalogue: Catalogue) -> None:
    """It comes with the tag, is replaced with it, and is no other tag's of the same layer."""
    catalogue.put_layer("l1", 1)
    brings = LayerEnvironment({"A": "b"}, ("/first",), ("/last",))
    catalogue.put_tag("toolkit/t:1", "l1", brings)
    catalogue.put_tag("toolkit/t:2", "l1")
    assert catalogue.tag("toolkit/t:1").environment == brings
    assert [each.environment for each in catalogue.tags_of("l1")] == [brings, LayerEnvironment()]
    catalogue.put_tag("toolkit/t:1", "l1")
    assert catalogue.tag("toolkit/t:1").environment == LayerEnvironment()


def test_an_earlier_catalogue_is_adopted(catalogue: Catalogue, tmp_path: Path) -> None:
    """One whose tags have no environment yet is copied all the same."""
    older = tmp_path / "older.db"
    db = sqlite3.connect(older)
    db.executescript((Path(__file__).parents[2] / "golden" / "databases" / "catalogue-1.sql").read_text())
    digest = db.execute("SELECT digest FROM layers").fetchone()[0]
    db.execute("INSERT INTO layer_tags VALUES ('toolkit/old:1', ?, 1.0)", (digest,))
    db.commit()
    db.close()
    catalogue.adopt(older)
    assert catalogue.tag("toolkit/old:1").environment == LayerEnvironment()


def test_a_layer_remembers_its_blob(catalogue: Catalogue) -> None:
    """The smallest compressed blob that it came as; None for a layer that came otherwise."""
    catalogue.put_layer("l1", 100, diff_id="d1")
    catalogue.put_layer("l2", 100)
    catalogue.put_blob("sha256:a", 40, "d1")
    catalogue.put_blob("sha256:b", 30, "d1")
    assert (catalogue.blob_size("l1"), catalogue.blob_size("l2")) == (30, None)


def test_an_image_that_was_imported_before(tmp_path: Path) -> None:
    """Under the same or another name it is the one that is here, as it is now; not one that nobody made here."""
    with contextlib.closing(Catalogue(tmp_path / "catalogue.db")) as catalogue:
        for each in ("a" * 64, "b" * 64, "c" * 64):
            catalogue.put_layer(each, 10)
        one, other = "sha256:" + "1" * 64, "sha256:" + "2" * 64
        catalogue.put_image("r/fetched:1", one, ImageConfig(), ["c" * 64])
        assert catalogue.same_image("r/new:1", one) is None
        blobs = {"sha256:" + "d" * 64: 5, "sha256:" + "e" * 64: 6}
        catalogue.put_image("r/made:1", one, ImageConfig(cmd=("x",)), ["a" * 64, "b" * 64], blobs)
        assert catalogue.replace_layers("r/made:1", ["a" * 64, "b" * 64], ["c" * 64])
        made = catalogue.image("r/made:1")
        assert catalogue.same_image("r/made:1", one) == made
        catalogue.put_image("r/new:1", other, ImageConfig(), ["a" * 64], {"sha256:" + "f" * 64: 7})
        assert catalogue.same_image("r/new:1", one) == msgspec.structs.replace(made, reference="r/new:1")
        assert catalogue.image("r/new:1").parts == ("a" * 64, "b" * 64)
        assert catalogue.image_blobs() == blobs
        assert catalogue.same_image("r/new:1", other) is None
        catalogue.remove_image("r/made:1")
        assert catalogue.image_blobs() == blobs
        catalogue.remove_image("r/new:1")
        assert (catalogue.image_blobs(), catalogue.same_image("r/made:1", one)) == ({}, None)
