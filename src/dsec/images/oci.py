"""Reading an OCI image layout: index → manifest → configuration and layers, every digest checked.

The layout may be hostile: documents are bounded, blobs are opened without following links, and nothing is believed
that a digest does not cover.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import stat
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from dsec.decoding import MALFORMED
from dsec.errors import ImageCorrupt, ImageNotFound
from dsec.images.catalogue import ImageConfig

__all__ = ["LayoutImage", "LayoutLayer", "blob_path", "node_architecture", "open_blob", "read_layout"]

_DOCUMENT_LIMIT = 8 << 20
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_REF_NAME = "org.opencontainers.image.ref.name"
_FULL_NAME = "io.containerd.image.name"
_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "riscv64": "riscv64", "ppc64le": "ppc64le"}
_MAX_LAYERS = 500
_MAX_NESTING = 4

T = TypeVar("T")


class _Platform(msgspec.Struct, frozen=True):
    architecture: str = ""
    os: str = ""


class _Descriptor(msgspec.Struct, frozen=True):
    digest: str
    size: int
    media_type: str = msgspec.field(default="", name="mediaType")
    platform: _Platform | None = None
    annotations: dict[str, str] | None = None


class _Index(msgspec.Struct, frozen=True):
    manifests: list[_Descriptor]


class _Manifest(msgspec.Struct, frozen=True):
    config: _Descriptor
    layers: list[_Descriptor]


class _RunConfig(msgspec.Struct, frozen=True):
    env: list[str] | None = msgspec.field(default=None, name="Env")
    user: str | None = msgspec.field(default=None, name="User")
    workdir: str | None = msgspec.field(default=None, name="WorkingDir")
    entrypoint: list[str] | None = msgspec.field(default=None, name="Entrypoint")
    cmd: list[str] | None = msgspec.field(default=None, name="Cmd")


class _RootFs(msgspec.Struct, frozen=True):
    diff_ids: list[str]


class _Config(msgspec.Struct, frozen=True):
    rootfs: _RootFs
    config: _RunConfig | None = None
    architecture: str | None = None


class LayoutLayer(msgspec.Struct, frozen=True):
    """One layer of an image in a layout."""

    blob: str
    """``sha256:…`` of the (compressed) archive."""
    size: int
    """Bytes of the blob."""
    diff_id: str
    """``sha256:…`` of the archive without compression."""


class LayoutImage(msgspec.Struct, frozen=True):
    """An image of a layout, for this machine."""

    digest: str
    """``sha256:…`` of its configuration."""
    config: ImageConfig
    layers: tuple[LayoutLayer, ...]
    """The bottom one first."""
    name: str | None
    """The full name that the layout itself gives it, if any."""


def node_architecture() -> str:
    """This machine's architecture in OCI's words."""
    machine = platform.machine()
    return _ARCHITECTURES.get(machine, machine)


def read_layout(layout: Path, selector: str | None = None, *, architecture: str | None = None) -> LayoutImage:
    """Read the image of a layout that fits this machine; blocks.

    ``selector`` names one of several images (its ``org.opencontainers.image.ref.name``). Raises ImageCorrupt when
    something is missing, malformed or not what its digest says; ImageNotFound when no image fits.
    """
    wanted = architecture or node_architecture()
    index = _decode(_read_file(layout / "index.json"), _Index, "index.json")
    descriptor = _select(index, selector)
    name = (descriptor.annotations or {}).get(_FULL_NAME) or (descriptor.annotations or {}).get(_REF_NAME)
    for _ in range(_MAX_NESTING):
        document = _document(layout, descriptor)
        if not _is_index(descriptor, document):
            return _image(layout, _decode(document, _Manifest, "the manifest"), wanted, name)
        descriptor = _for_machine(_decode(document, _Index, "an index"), wanted)
    raise ImageCorrupt("an image's indexes are nested too deep")


def _select(index: _Index, selector: str | None) -> _Descriptor:
    if selector is not None:
        named = [each for each in index.manifests if (each.annotations or {}).get(_REF_NAME) == selector]
        if not named:
            raise ImageNotFound(f"the layout holds no image named {selector!r}")
        return named[0]
    if not index.manifests:
        raise ImageNotFound("the layout holds no image")
    if len(index.manifests) > 1 and not all(each.platform for each in index.manifests):
        raise ImageNotFound("the layout holds several images", remedy="Say which one: oci:DIR:NAME")
    return index.manifests[0] if len(index.manifests) == 1 else _for_machine(index, node_architecture())


def _for_machine(index: _Index, architecture: str) -> _Descriptor:
    for each in index.manifests:
        if each.platform and each.platform.os == "linux" and each.platform.architecture == architecture:
            return each
    offered = sorted({f"{p.os}/{p.architecture}" for each in index.manifests if (p := each.platform)})
    raise ImageNotFound(f"the image is not made for linux/{architecture}, only for {', '.join(offered) or 'nothing'}")


def _is_index(descriptor: _Descriptor, document: bytes) -> bool:
    if descriptor.media_type:
        return descriptor.media_type in _INDEXES
    return "manifests" in _decode(document, dict[str, Any], "a manifest")


def _image(layout: Path, manifest: _Manifest, architecture: str, name: str | None) -> LayoutImage:
    config = _decode(_document(layout, manifest.config), _Config, "the configuration")
    if config.architecture not in (None, "", architecture):
        raise ImageNotFound(f"the image is made for {config.architecture}, this node is {architecture}")
    layers, diff_ids = manifest.layers, config.rootfs.diff_ids
    if len(layers) != len(diff_ids) or len(layers) > _MAX_LAYERS:
        raise ImageCorrupt(f"the image's manifest has {len(layers)} layers, its configuration {len(diff_ids)}")
    for digest in (*diff_ids, *(each.digest for each in layers)):
        _check_digest(digest)
    pairs = zip(layers, diff_ids, strict=True)
    return LayoutImage(
        manifest.config.digest,
        _run_config(config.config or _RunConfig()),
        tuple(LayoutLayer(each.digest, each.size, diff_id) for each, diff_id in pairs),
        name,
    )


def _run_config(raw: _RunConfig) -> ImageConfig:
    env = dict(each.partition("=")[::2] for each in raw.env or ())
    return ImageConfig(
        env=env,
        user=raw.user or "",
        workdir=raw.workdir or "/",
        entrypoint=tuple(raw.entrypoint or ()),
        cmd=tuple(raw.cmd or ()),
    )


def _check_digest(digest: str) -> None:
    if not _DIGEST.fullmatch(digest):
        raise ImageCorrupt(f"an image names a blob {digest[:80]!r}, which is no sha256 digest")


def _document(layout: Path, descriptor: _Descriptor) -> bytes:
    with open_blob(layout, descriptor.digest) as file:
        document = file.read(_DOCUMENT_LIMIT + 1)
    if len(document) > _DOCUMENT_LIMIT:
        raise ImageCorrupt("an image's manifest or configuration is larger than 8 MiB")
    if "sha256:" + hashlib.sha256(document).hexdigest() != descriptor.digest:
        raise ImageCorrupt(f"blob {descriptor.digest} is not what its digest says")
    return document


def open_blob(layout: Path, digest: str) -> BinaryIO:
    """Open a blob for reading, as a binary file; raises ImageCorrupt when it is missing or no regular file."""
    return _open(blob_path(layout, digest))


def blob_path(layout: Path, digest: str) -> Path:
    """Where a layout has a blob; raises ImageCorrupt for what is no digest."""
    _check_digest(digest)
    return layout / "blobs" / "sha256" / digest.removeprefix("sha256:")


def _open(path: Path) -> BinaryIO:
    try:
        # O_NONBLOCK: a FIFO of that name must not make the reader wait.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ImageCorrupt(f"the image lacks {path.name}: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ImageCorrupt(f"the image's {path.name} is no regular file")
    return os.fdopen(fd, "rb")


def _read_file(path: Path) -> bytes:
    with _open(path) as file:
        return bytes(file.read(_DOCUMENT_LIMIT))


def _decode(document: bytes, kind: type[T], what: str) -> T:
    try:
        return msgspec.json.decode(document, type=kind)
    except MALFORMED as error:
        raise ImageCorrupt(f"the image's {what} is malformed: {error}") from None
