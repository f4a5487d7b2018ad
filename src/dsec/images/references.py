"""Names of images, layers and import sources: parsing and normalisation, without I/O.

An image name means what Docker means by it: ``python:3.12`` is ``docker.io/library/python:3.12``. Names under
``dsec/`` are this platform's own: they are never normalised and never pulled.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from dsec.errors import InvalidArgument

__all__ = [
    "ImageReference",
    "ImportSource",
    "LayerChoice",
    "LayerKind",
    "LayerReference",
    "Transport",
    "is_base_reference",
    "is_layer_reference",
    "parse_image",
    "parse_image_name",
    "parse_layer",
    "parse_layer_choice",
    "parse_source",
]

LayerKind = Literal["base", "workspace", "toolkit"]
Transport = Literal["docker", "docker-archive", "oci"]

DEFAULT_REGISTRY = "docker.io"
RESERVED = "dsec"

_MAX_NAME = 255
_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_REGISTRY = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:]+\])(?::[0-9]{{1,5}})?")
_COMPONENT = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_BARE_DIGEST = re.compile(r"[0-9a-f]{64}")
_LAYER = re.compile(r"(base|workspace|toolkit)/([a-z0-9]+(?:[._-]+[a-z0-9]+)*):([A-Za-z0-9_][A-Za-z0-9_.-]{0,127})")
_IMAGE_REMEDY = "Write it as NAME[:TAG], REGISTRY/NAME[:TAG] or NAME@sha256:DIGEST, the name in lower case"
_LAYER_REMEDY = (
    "Write it as workspace/NAME:VERSION, toolkit/NAME:VERSION or base/NAME:VERSION, the name in lower case"
)
_CHOICE_REMEDY = "Write it as KIND/NAME:VERSION, @sha256:DIGEST or both; KIND is workspace, toolkit or base"
_SOURCE_REMEDY = "Write it as docker://IMAGE, docker-archive:FILE or oci:DIRECTORY"


class ImageReference(msgspec.Struct, frozen=True):
    """A normalised image name; ``str()`` gives the one spelling that the catalogue uses."""

    registry: str
    """Host and optional port; empty for the platform's own ``dsec/…``."""
    repository: str
    """Path below the registry, such as ``library/python``."""
    tag: str | None
    """Tag; None only when the name is by digest alone."""
    digest: str | None = None
    """``sha256:…``; when given it, not the tag, says what is pulled."""

    @property
    def is_reserved(self) -> bool:
        """Whether the platform itself makes this image, so that it is never pulled."""
        return not self.registry

    @property
    def is_pinned(self) -> bool:
        """Whether the name can only ever mean one image."""
        return self.digest is not None

    def __str__(self) -> str:
        name = f"{self.registry}/{self.repository}" if self.registry else self.repository
        return name + (f":{self.tag}" if self.tag else "") + (f"@{self.digest}" if self.digest else "")


class LayerReference(msgspec.Struct, frozen=True):
    """A tag of a layer that a user built."""

    kind: LayerKind
    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}:{self.version}"


class LayerChoice(msgspec.Struct, frozen=True):
    """Which layer a user means: by a tag, by its digest, or by a tag that must mean that digest."""

    reference: LayerReference | None
    digest: str | None
    """64 lower-case hex digits."""

    def __str__(self) -> str:
        return str(self.reference or "") + (f"@sha256:{self.digest}" if self.digest else "")


class ImportSource(msgspec.Struct, frozen=True):
    """Where an image is imported from."""

    transport: Transport
    location: str
    """Image name for ``docker``, a file for ``docker-archive``, a directory for ``oci``."""
    selector: str | None = None
    """Which image of an archive or layout that holds several; None when there is one."""

    def __str__(self) -> str:
        head = "docker://" if self.transport == "docker" else f"{self.transport}:"
        return head + self.location + (f":{self.selector}" if self.selector else "")


def parse_image(text: str) -> ImageReference:
    """Parse and normalise an image name as Docker does.

    Raises InvalidArgument with a remedy when the name is malformed.
    """
    name, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise _malformed_image(text, "the digest is not sha256: and 64 lower-case hex digits")
    name, tag = _split_tag(name)
    if tag is not None and not _TAG.fullmatch(tag):
        raise _malformed_image(text, "the tag is malformed")
    registry, repository = _split_registry(name)
    if registry and (not _REGISTRY.fullmatch(registry) or not _is_host(registry)):
        raise _malformed_image(text, "the registry is not HOST or HOST:PORT")
    if not all(_COMPONENT.fullmatch(part) for part in repository.split("/")):
        raise _malformed_image(text, "the name is malformed")
    if len(registry) + len(repository) > _MAX_NAME:
        raise _malformed_image(text, f"the name is longer than {_MAX_NAME} characters")
    if _BARE_DIGEST.fullmatch(name):
        raise _malformed_image(text, "64 hex digits are an image's ID, not a name")
    return ImageReference(registry, repository, tag or (None if at else "latest"), digest or None)


def parse_image_name(text: str) -> ImageReference:
    """As ``parse_image``, of what a user calls an image: names of layers are none. Raises InvalidArgument."""
    if is_layer_reference(text):
        raise InvalidArgument(
            f"{text[:300]!r} is a layer, not an image",
            remedy="Give it as workspace= or toolkits=; `dsec layer pull` brings it from a store",
            argument="image",
        )
    if is_base_reference(text):
        raise InvalidArgument(
            f"{text[:300]!r} is a base layer, not an image",
            remedy="Sandboxes are made over it, `dsec layer pull` brings it from a store; "
            "Docker Hub's is docker.io/base/NAME",
            argument="image",
        )
    return parse_image(text)


def _split_tag(name: str) -> tuple[str, str | None]:
    head, colon, tail = name.rpartition(":")
    # A colon before the last slash belongs to a port.
    return (head, tail) if colon and "/" not in tail else (name, None)


def _split_registry(name: str) -> tuple[str, str]:
    first, slash, rest = name.partition("/")
    if slash and first == RESERVED:
        return "", name
    if slash and ("." in first or ":" in first or first == "localhost" or first != first.lower()):
        registry = DEFAULT_REGISTRY if first == "index.docker.io" else first
        return registry, _in_library(rest) if registry == DEFAULT_REGISTRY else rest
    return DEFAULT_REGISTRY, _in_library(name)


def _is_host(registry: str) -> bool:
    """Whether it cannot be the first part of a name, which Docker tells by capitals too, and skopeo does not take."""
    return "." in registry or ":" in registry or registry == "localhost"


def _in_library(repository: str) -> str:
    return repository if "/" in repository else f"library/{repository}"


def _malformed_image(text: str, why: str) -> InvalidArgument:
    return InvalidArgument(f"{text!r} is not an image name: {why}", remedy=_IMAGE_REMEDY, argument="image")


def is_layer_reference(text: str) -> bool:
    """Whether a name where an image is asked for is in the name space of layers (it may still be malformed)."""
    return text.startswith(("workspace/", "toolkit/"))


def is_base_reference(text: str) -> bool:
    """Whether a name where a sandbox's image is asked for means a base layer (it may still be malformed).

    What Docker Hub has under ``base/`` is written ``docker.io/base/…``.
    """
    return text.startswith(("base/", "@"))


def parse_layer(text: str) -> LayerReference:
    """Parse ``workspace/NAME:VERSION``, ``toolkit/…`` or ``base/…``; raises InvalidArgument."""
    match = _LAYER.fullmatch(text)
    if match is None or len(text) > _MAX_NAME:
        raise InvalidArgument(f"{text[:300]!r} is not a layer's name", remedy=_LAYER_REMEDY, argument="layer")
    return LayerReference(msgspec.convert(match[1], LayerKind), match[2], match[3])


def parse_layer_choice(text: str) -> LayerChoice:
    """Parse ``KIND/NAME:VERSION``, ``@sha256:DIGEST``, or the one pinned by the other; raises InvalidArgument."""
    name, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise InvalidArgument(f"{text[:300]!r} is not a layer", remedy=_CHOICE_REMEDY, argument="layer")
    reference = parse_layer(name) if name or not at else None
    return LayerChoice(reference, digest.removeprefix("sha256:") if at else None)


def parse_source(text: str) -> ImportSource:
    """Parse an import source; raises InvalidArgument.

    ``docker://IMAGE`` holds a normalised image name afterwards. A file or directory name ends at its first colon,
    as skopeo has it: ``oci:DIR:TAG``.
    """
    if text.startswith("docker://"):
        return ImportSource("docker", str(parse_image(text.removeprefix("docker://"))))
    transport, _, location = text.partition(":")
    path, _, selector = location.partition(":")
    if not path or "\0" in text:
        raise InvalidArgument(f"{text!r} is not an import source", remedy=_SOURCE_REMEDY, argument="source")
    if transport == "docker-archive":
        return ImportSource("docker-archive", path, selector or None)
    if transport == "oci":
        return ImportSource("oci", path, selector or None)
    raise InvalidArgument(f"{text!r} is not an import source", remedy=_SOURCE_REMEDY, argument="source")
