"""Images: requests and answers of ``/v1``."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = [
    "ImageConfig",
    "ImageFetchRequest",
    "ImageInfo",
    "ImageProgress",
    "ImagePushRequest",
    "ImagePushed",
    "ImportRequest",
    "StoredImage",
]


class ImageConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What an OCI image says of its programs."""

    env: list[str] = []
    user: str = ""
    workdir: str = ""
    entrypoint: list[str] = []
    cmd: list[str] = []


class ImageInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An image as imported. ``digest`` is its configuration's, Docker's image ID; registries know another."""

    reference: str
    digest: str
    layers: list[str]
    """Digests of what a sandbox mounts, the bottom one first."""
    size_bytes: int
    created_at: float
    config: ImageConfig
    parts: list[str] = []
    """Digests of the layers that it came as, where some of them were made one."""


class ImageProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A step of an import or build. ``total`` is 0 while unknown."""

    phase: str
    done: int = 0
    total: int = 0
    unit: str = "bytes"
    detail: str = ""


class ImportRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``source``: ``docker://REF`` or a bare reference. The client's own files are sent as a tar body instead."""

    source: str
    reference: str | None = None
    pull: Literal["missing", "always", "never"] = "always"


class ImagePushRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``store`` None: the node's default. ``move``: also when the reference means another image there."""

    reference: str
    store: str | None = None
    move: bool = False


class ImageFetchRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An image from a store, not from a registry; ``store`` None: the node's default."""

    reference: str
    store: str | None = None


class ImagePushed(msgspec.Struct, frozen=True, kw_only=True):
    """What publishing an image did; sizes are of all its layers."""

    reference: str
    digest: str
    store: str
    size_bytes: int
    stored_bytes: int
    sent_bytes: int
    registry_bytes: int | None = None
    """What its layers were as a registry's compressed blobs; None where they came from an archive."""


class StoredImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image of a store."""

    reference: str
    digest: str
    layers: list[str]
    at: float
    by: str
