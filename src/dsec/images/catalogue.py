"""What this node knows of images and layers, in SQLite.

Tags move, digests never. The catalogue says which layer an OCI diffID became (the first build wins), which image a
reference means, and which layer a tag means; the files themselves are the store's. Other modules may keep tables of
their own in the same file.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import msgspec

from dsec.api.packing import Provenance
from dsec.databases import check_format, connect, open_tables
from dsec.errors import ImageNotFound, NotFound
from dsec.images.adopting import adopt_rows
from dsec.images.entries import Image, ImageConfig, LayerEnvironment, LayerTag

__all__ = ["Catalogue", "Image", "ImageConfig", "LayerEnvironment", "LayerTag", "Provenance"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS layers (digest TEXT PRIMARY KEY, bytes INTEGER NOT NULL, created_at REAL NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS diff_ids (
    diff_id TEXT PRIMARY KEY, digest TEXT NOT NULL REFERENCES layers ON DELETE CASCADE) STRICT;
CREATE TABLE IF NOT EXISTS blobs (
    blob TEXT PRIMARY KEY, bytes INTEGER NOT NULL,
    diff_id TEXT NOT NULL REFERENCES diff_ids ON DELETE CASCADE) STRICT;
CREATE TABLE IF NOT EXISTS images (
    reference TEXT PRIMARY KEY, digest TEXT NOT NULL, config TEXT NOT NULL, bytes INTEGER NOT NULL,
    created_at REAL NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS image_layers (
    reference TEXT NOT NULL REFERENCES images ON DELETE CASCADE, position INTEGER NOT NULL,
    digest TEXT NOT NULL REFERENCES layers, PRIMARY KEY (reference, position)) STRICT;
CREATE INDEX IF NOT EXISTS image_layers_by_digest ON image_layers (digest);
CREATE TABLE IF NOT EXISTS layer_tags (
    tag TEXT PRIMARY KEY, digest TEXT NOT NULL REFERENCES layers, created_at REAL NOT NULL, environment TEXT) STRICT;
CREATE TABLE IF NOT EXISTS image_parts (
    reference TEXT NOT NULL REFERENCES images ON DELETE CASCADE, position INTEGER NOT NULL, digest TEXT NOT NULL,
    PRIMARY KEY (reference, position)) STRICT;
CREATE TABLE IF NOT EXISTS image_blobs (
    reference TEXT NOT NULL REFERENCES images ON DELETE CASCADE, blob TEXT NOT NULL, bytes INTEGER NOT NULL,
    PRIMARY KEY (reference, blob)) STRICT;
CREATE TABLE IF NOT EXISTS collapsed (
    parts TEXT PRIMARY KEY, digest TEXT NOT NULL REFERENCES layers ON DELETE CASCADE, created_at REAL NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS provenance (
    digest TEXT PRIMARY KEY REFERENCES layers ON DELETE CASCADE, document TEXT NOT NULL) STRICT;
"""


_COPIED = (
    ("images", "digest, config, bytes, created_at"),
    ("image_layers", "position, digest"),
    ("image_parts", "position, digest"),
    ("image_blobs", "blob, bytes"),
)


def _layer_tag(tag: str, digest: str, size: int, created_at: float, environment: str | None) -> LayerTag:
    own = msgspec.json.decode(environment, type=LayerEnvironment) if environment else LayerEnvironment()
    return LayerTag(tag, digest, size, created_at, own)


class Catalogue:
    """One node's ``catalogue.db``; safe to call from several threads, each call a few microseconds."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._clock = clock
        self._lock = threading.RLock()
        self._db = connect(f"file:{quote(str(path))}", uri=True, shared=True)
        open_tables(self._db, _SCHEMA, name="catalogue.db")
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.execute("PRAGMA foreign_keys=ON")
        self._images: dict[str, Image] = {}

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    # Images

    def image(self, reference: str) -> Image:
        """The image that a normalised reference means; raises ImageNotFound."""
        with self._lock:
            found = self._images.get(reference)
            if found is None:
                rows = self._read_images("WHERE reference = ?", (reference,))
                if not rows:
                    raise ImageNotFound(f"this node has no image {reference}", remedy="Import it or let it be pulled")
                found = self._images[reference] = rows[0]
            return found

    def with_id(self, digest: str) -> str | None:
        """The name of an image whose configuration has this digest, if there is one."""
        with self._lock:
            row = self._db.execute("SELECT min(reference) FROM images WHERE digest = ?", (digest,)).fetchone()
            return None if row[0] is None else str(row[0])

    def images(self) -> list[Image]:
        """All images by name."""
        return self._read_images("ORDER BY reference", ())

    def _read_images(self, where: str, arguments: tuple[str, ...]) -> list[Image]:
        with self._lock:
            rows = self._db.execute(
                f"SELECT reference, digest, config, bytes, created_at FROM images {where}",  # noqa: S608
                arguments,
            ).fetchall()
            return [
                Image(
                    reference, digest, msgspec.json.decode(config, type=ImageConfig),
                    self._digests_of("image_layers", reference), size, created_at,
                    self._digests_of("image_parts", reference),
                )
                for reference, digest, config, size, created_at in rows
            ]  # fmt: skip

    def _digests_of(self, table: Literal["image_layers", "image_parts"], reference: str) -> tuple[str, ...]:
        rows = self._db.execute(
            f"SELECT digest FROM {table} WHERE reference = ? ORDER BY position",  # noqa: S608
            (reference,),
        ).fetchall()
        return tuple(digest for (digest,) in rows)

    def put_image(
        self, reference: str, digest: str, config: ImageConfig, layers: Iterable[str], blobs: Mapping[str, int] = {}
    ) -> Image:
        """Let ``reference`` mean this image from now on; its layers must be in the catalogue.

        ``blobs``: those that it came as, and their bytes, where it was made of them here.
        """
        chain = tuple(layers)
        with self._lock, self._db:
            self._db.execute("BEGIN IMMEDIATE")
            size = sum(self._layer_bytes(each) for each in dict.fromkeys(chain))
            self._db.execute("DELETE FROM images WHERE reference = ?", (reference,))
            self._db.execute(
                "INSERT INTO images VALUES (?, ?, ?, ?, ?)",
                (reference, digest, msgspec.json.encode(config).decode(), size, self._clock()),
            )
            self._put_digests("image_layers", reference, chain)
            rows = [(reference, blob, size) for blob, size in blobs.items()]
            self._db.executemany("INSERT INTO image_blobs VALUES (?, ?, ?)", rows)
            self._images.pop(reference, None)
        return self.image(reference)

    def same_image(self, reference: str, digest: str) -> Image | None:
        """Let ``reference`` mean an image of this configuration that was made here of what it came as, if any was.

        Its configuration's digest says all of its content: the layers that it has now are those that it would get.
        """
        with self._lock, self._db:
            self._db.execute("BEGIN IMMEDIATE")
            rows = self._db.execute(
                "SELECT reference FROM images WHERE digest = ? AND reference IN (SELECT reference FROM image_blobs) "
                "ORDER BY reference != ?, reference LIMIT 1",
                (digest, reference),
            ).fetchall()
            if rows and rows[0][0] != reference:
                self._db.execute("DELETE FROM images WHERE reference = ?", (reference,))
                for table, columns in _COPIED:
                    self._db.execute(
                        f"INSERT INTO {table} SELECT ?, {columns} FROM {table} WHERE reference = ?",  # noqa: S608
                        (reference, rows[0][0]),
                    )
                self._images.pop(reference, None)
        return self.image(reference) if rows else None

    def _put_digests(
        self, table: Literal["image_layers", "image_parts"], reference: str, digests: Iterable[str]
    ) -> None:
        rows = [(reference, i, each) for i, each in enumerate(digests)]
        self._db.executemany(f"INSERT INTO {table} VALUES (?, ?, ?)", rows)  # noqa: S608

    def replace_layers(self, reference: str, before: Sequence[str], after: Sequence[str]) -> bool:
        """Let an image have other layers that show the same; not if it has not those of ``before`` (any more).

        The layers that it first came as are kept as its ``parts``.
        """
        with self._lock, self._db:
            self._db.execute("BEGIN IMMEDIATE")
            now = self._digests_of("image_layers", reference)
            if now != tuple(before) or now == tuple(after):
                return False
            if not self._digests_of("image_parts", reference):
                self._put_digests("image_parts", reference, before)
            size = sum(self._layer_bytes(each) for each in dict.fromkeys(after))
            self._db.execute("DELETE FROM image_layers WHERE reference = ?", (reference,))
            self._put_digests("image_layers", reference, after)
            self._db.execute("UPDATE images SET bytes = ? WHERE reference = ?", (size, reference))
            self._images.pop(reference, None)
            return True

    def collapsed(self, run: Sequence[str]) -> str | None:
        """The layer that stands for a run of layers, bottom first; None if there is none yet."""
        return self._one("SELECT digest FROM collapsed WHERE parts = ?", " ".join(run))

    def put_collapsed(self, run: Sequence[str], digest: str, size: int) -> None:
        """Add a layer that stands for a run of layers."""
        with self._lock, self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute("INSERT OR IGNORE INTO layers VALUES (?, ?, ?)", (digest, size, self._clock()))
            self._db.execute(
                "INSERT OR REPLACE INTO collapsed VALUES (?, ?, ?)", (" ".join(run), digest, self._clock())
            )

    def remove_image(self, reference: str) -> Image:
        """Forget a reference; its layers stay. Raises ImageNotFound."""
        with self._lock:
            gone = self.image(reference)
            self._db.execute("DELETE FROM images WHERE reference = ?", (reference,))
            self._images.pop(reference, None)
            return gone

    # Layers

    def put_layer(self, digest: str, size: int, *, diff_id: str | None = None) -> str:
        """Add a layer; with a diffID, returns the digest that the diffID means: an earlier one if there is one."""
        with self._lock, self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute("INSERT OR IGNORE INTO layers VALUES (?, ?, ?)", (digest, size, self._clock()))
            if diff_id is None:
                return digest
            self._db.execute("INSERT OR IGNORE INTO diff_ids VALUES (?, ?)", (diff_id, digest))
            return self.layer_of(diff_id) or digest

    def layer_of(self, diff_id: str) -> str | None:
        """Digest of the layer that an OCI diffID became; None if it is not here."""
        return self._one("SELECT digest FROM diff_ids WHERE diff_id = ?", diff_id)

    def put_blob(self, blob: str, size: int, diff_id: str) -> None:
        """Remember that a registry's (compressed) blob unpacks to this diffID, so that it is not fetched again."""
        with self._lock:
            self._db.execute("INSERT OR IGNORE INTO blobs VALUES (?, ?, ?)", (blob, size, diff_id))

    def blobs(self) -> Mapping[str, tuple[int, str]]:
        """Known blobs: digest → (bytes, digest of the layer)."""
        with self._lock:
            rows = self._db.execute("SELECT blob, bytes, digest FROM blobs JOIN diff_ids USING (diff_id)").fetchall()
        return {blob: (size, digest) for blob, size, digest in rows}

    def image_blobs(self) -> Mapping[str, int]:
        """The blobs that images came as → bytes; their layers need not be here any more."""
        with self._lock:
            return dict(self._db.execute("SELECT DISTINCT blob, bytes FROM image_blobs").fetchall())

    def blob_size(self, digest: str) -> int | None:
        """Bytes of the (compressed) blob that a layer came as from a registry; None where that is not known."""
        with self._lock:
            row = self._db.execute(
                "SELECT min(bytes) FROM blobs JOIN diff_ids USING (diff_id) WHERE digest = ?", (digest,)
            ).fetchone()
        return None if row[0] is None else int(row[0])

    def layer_digests(self) -> set[str]:
        """All layers."""
        with self._lock:
            return {digest for (digest,) in self._db.execute("SELECT digest FROM layers")}

    def images_with(self, digest: str) -> list[str]:
        """References of the images that a layer is part of."""
        with self._lock:
            rows = self._db.execute(
                "SELECT DISTINCT reference FROM image_layers WHERE digest = ? ORDER BY reference", (digest,)
            ).fetchall()
        return [reference for (reference,) in rows]

    def unreferenced_layers(self) -> list[str]:
        """Layers that no image and no tag refers to."""
        with self._lock:
            rows = self._db.execute(
                "SELECT digest FROM layers WHERE digest NOT IN (SELECT digest FROM image_layers) "
                "AND digest NOT IN (SELECT digest FROM layer_tags) ORDER BY digest"
            ).fetchall()
        return [digest for (digest,) in rows]

    def remove_layer(self, digest: str) -> bool:
        """Forget a layer, unless an image or a tag refers to it; whether it is gone."""
        with self._lock:
            try:
                self._db.execute("DELETE FROM layers WHERE digest = ?", (digest,))
            except sqlite3.IntegrityError:
                return False
            return True

    def layer_size(self, digest: str) -> int | None:
        """Bytes of a layer; None if the catalogue has none of that digest."""
        with self._lock:
            row = self._db.execute("SELECT bytes FROM layers WHERE digest = ?", (digest,)).fetchone()
        return None if row is None else int(row[0])

    def _layer_bytes(self, digest: str) -> int:
        size = self.layer_size(digest)
        if size is None:
            raise NotFound(f"the catalogue has no layer {digest}")
        return size

    def put_provenance(self, digest: str, provenance: Provenance) -> None:
        """Remember where a layer comes from; the latest that is told counts."""
        text = msgspec.json.encode(provenance).decode()
        with self._lock:
            self._db.execute("INSERT OR REPLACE INTO provenance VALUES (?, ?)", (digest, text))

    def provenance(self, digest: str) -> Provenance | None:
        """Where a layer comes from, if it was packed from a sandbox."""
        text = self._one("SELECT document FROM provenance WHERE digest = ?", digest)
        return None if text is None else msgspec.json.decode(text, type=Provenance)

    # Tags

    def put_tag(
        self,
        tag: str,
        digest: str,
        environment: LayerEnvironment = LayerEnvironment(),
    ) -> LayerTag:
        """Let a tag mean a layer from now on."""
        with self._lock:
            created_at = self._clock()
            size = self._layer_bytes(digest)
            text = msgspec.json.encode(environment).decode() if environment != LayerEnvironment() else None
            self._db.execute("INSERT OR REPLACE INTO layer_tags VALUES (?, ?, ?, ?)", (tag, digest, created_at, text))
            return LayerTag(tag, digest, size, created_at, environment)

    def tag(self, tag: str) -> LayerTag:
        """What a tag means; raises NotFound."""
        found = self._read_tags("WHERE tag = ?", tag)
        if not found:
            raise NotFound(
                f"this node has no layer {tag}",
                remedy=f"Build it: dsec layer build DIR {tag}, or pull it from a store",
            )
        return found[0]

    def tags(self) -> list[LayerTag]:
        """All tags by name."""
        return self._read_tags("ORDER BY tag")

    def tags_of(self, digest: str) -> list[LayerTag]:
        """The tags of one layer, by name."""
        return self._read_tags("WHERE digest = ? ORDER BY tag", digest)

    def _read_tags(self, where: str, *arguments: str) -> list[LayerTag]:
        with self._lock:
            rows = self._db.execute(
                "SELECT tag, digest, bytes, t.created_at, environment "  # noqa: S608
                f"FROM layer_tags t JOIN layers USING (digest) {where}",
                arguments,
            ).fetchall()
        return [_layer_tag(*row) for row in rows]

    def remove_tag(self, tag: str) -> None:
        """Forget a tag; its layer stays. Raises NotFound."""
        with self._lock:
            self.tag(tag)
            self._db.execute("DELETE FROM layer_tags WHERE tag = ?", (tag,))

    def _one(self, query: str, argument: str) -> str | None:
        with self._lock:
            row = self._db.execute(query, (argument,)).fetchone()
        return None if row is None else str(row[0])

    def adopt(self, other: Path) -> None:
        """Copy what another node's catalogue knows and this one does not; its layers must be in the shared store."""
        check_format(other, name="catalogue.db")
        with self._lock:
            adopt_rows(self._db, other)
