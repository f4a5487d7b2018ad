"""What the API says of images and layers, from what the node knows of them, and back. Pure."""

from __future__ import annotations

import re

import msgspec

from dsec.api import layers as wire
from dsec.api.images import ImageConfig, ImageInfo
from dsec.decoding import MALFORMED
from dsec.errors import InvalidArgument
from dsec.images import Image, LayerEnvironment, LayerTag

__all__ = ["image_info", "layer_info", "parse_environment", "wire_environment"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MOST_BYTES = 16 << 10


def image_info(image: Image) -> ImageInfo:
    """The API's form of an image."""
    config = image.config
    return ImageInfo(
        reference=image.reference,
        digest=image.digest,
        layers=list(image.layers),
        parts=list(image.parts),
        size_bytes=image.bytes,
        created_at=image.created_at,
        config=ImageConfig(
            env=[f"{name}={value}" for name, value in config.env.items()],
            user=config.user,
            workdir=config.workdir,
            entrypoint=list(config.entrypoint),
            cmd=list(config.cmd),
        ),
    )


def layer_info(layer: LayerTag) -> wire.LayerInfo:
    """A layer with its tag."""
    return wire.LayerInfo(
        digest=layer.digest,
        size_bytes=layer.bytes,
        reference=layer.tag,
        created_at=layer.created_at,
        environment=wire_environment(layer.environment),
    )


def wire_environment(environment: LayerEnvironment) -> wire.LayerEnvironment:
    """What a layer brings to the environment."""
    return wire.LayerEnvironment(
        env=environment.env,
        path_prepend=list(environment.path_prepend),
        path_append=list(environment.path_append),
    )


def parse_environment(text: str) -> LayerEnvironment:
    """Read what a client says a layer brings, as JSON; raises InvalidArgument."""
    if len(text) > _MOST_BYTES:
        raise InvalidArgument(f"a layer's environment is longer than {_MOST_BYTES} bytes", argument="environment")
    try:
        found = msgspec.json.decode(text.encode(), type=wire.LayerEnvironment)
    except (*MALFORMED, UnicodeEncodeError) as error:
        raise InvalidArgument(f"a layer's environment: {error}", argument="environment") from None
    for name, value in found.env.items():
        if not _NAME.fullmatch(name) or "\0" in value:
            raise InvalidArgument(f"{name[:80]!r} cannot be set by a layer", argument="env")
        if name == "PATH":
            raise InvalidArgument(
                "a layer adds to PATH, it does not set it",
                argument="env",
                remedy="Use --path-prepend or --path-append",
            )
    for directory in (*found.path_prepend, *found.path_append):
        if not directory.startswith("/") or ":" in directory or "\0" in directory:
            raise InvalidArgument(f"{directory[:80]!r} is not a directory for PATH", argument="path_prepend")
    return LayerEnvironment(found.env, tuple(found.path_prepend), tuple(found.path_append))
