"""What the catalogue says of images and layers."""

from __future__ import annotations

import msgspec

__all__ = ["Image", "ImageConfig", "LayerEnvironment", "LayerTag"]


class ImageConfig(msgspec.Struct, frozen=True):
    """What an image says about running it."""

    env: dict[str, str] = {}
    """Environment, in the image's order."""
    user: str = ""
    """USER[:GROUP], names or numbers; empty is root."""
    workdir: str = "/"
    """Working directory."""
    entrypoint: tuple[str, ...] = ()
    """Program that a command's words are handed to."""
    cmd: tuple[str, ...] = ()
    """Default command, or default words for the entrypoint."""


class Image(msgspec.Struct, frozen=True):
    """An imported or built image."""

    reference: str
    """Normalised name, such as ``docker.io/library/python:3.12``."""
    digest: str
    """``sha256:…`` of the image's OCI configuration."""
    config: ImageConfig
    layers: tuple[str, ...]
    """Digests of its layers, the bottom one first."""
    bytes: int
    """Size of its layers on disk, shared ones included."""
    created_at: float
    """When it came to this node, seconds since 1970."""
    parts: tuple[str, ...] = ()
    """Digests of the layers that it came as, where some of them were made one; they need not be here any more."""


class LayerEnvironment(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a layer's tag brings to the environment of the sandboxes that it is in; no part of the layer's digest."""

    env: dict[str, str] = {}
    path_prepend: tuple[str, ...] = ()
    """Directories that come before those of PATH, in this order."""
    path_append: tuple[str, ...] = ()


class LayerTag(msgspec.Struct, frozen=True):
    """A user's layer."""

    tag: str
    """``KIND/NAME:VERSION``; ``@sha256:DIGEST`` of one that came by its digest alone."""
    digest: str
    bytes: int
    created_at: float
    environment: LayerEnvironment = LayerEnvironment()
