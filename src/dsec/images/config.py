"""What a node's configuration says about images and layers."""

from __future__ import annotations

from pathlib import Path

import msgspec

__all__ = ["ImagesConfig"]

_GIB = 1 << 30


class ImagesConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Directories, registries and bounds of one node's images.

    ``scratch_dir`` and ``layers_dir`` are best on one file system with room for the largest image three times.
    """

    layers_dir: Path
    """Store of this node's layers, ``DIGEST/{layer.json,metadata,data}``."""
    catalogue: Path
    """SQLite file of images, layers and tags."""
    scratch_dir: Path
    """Private directory for downloads and unpacked trees; what a crash left there is deleted at start."""
    shared_dir: Path | None = None
    """Read-only store of another node (holding ``layers/`` and ``catalogue.db``): all its images are here too."""
    mirrors: dict[str, str] = {}
    """Registry → prefix that stands for it: ``{"docker.io": "mirror.example:5000/hub"}``."""
    insecure_registries: tuple[str, ...] = ()
    """Registries (HOST or HOST:PORT) spoken to over plain HTTP or with an unverified certificate."""
    auth_file: Path | None = None
    """Credentials file in Docker's format; None searches where Docker and skopeo do."""
    max_image_bytes: int = 64 * _GIB
    """Largest unpacked size of an image or layer."""
    max_entries: int = 4_000_000
    """Most files, directories and links in one layer."""
    pull_timeout_s: float = 3600.0
    """Longest time for one pull."""
    stall_timeout_s: float = 90.0
    """Longest time in which a registry may deliver nothing."""
    registry_patience_s: float = 60.0
    """How long in all a pull waits for a registry that asks to be left alone, or that breaks off downloads."""
    build_timeout_s: float = 1200.0
    """Longest time for building the default image, and for making one EROFS layer."""
    collapse_mib: int = 3072
    """Neighbouring layers of an image become one as long as it is not larger than this; 0 leaves them."""
    collapse_layers: int = 16
    """Most layers that an image keeps, however large they are."""
    parallel_layers: int = 2
    """Layers unpacked at the same time."""
