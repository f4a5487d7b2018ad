"""What a sandbox is made of and what its programs begin with: layers and the image's configuration. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from dsec.api.types import CreateRequest
from dsec.errors import InvalidArgument
from dsec.images import Image, ImageConfig, LayerEnvironment, LayerTag

__all__ = ["DEFAULT_PATH", "Environment", "environment_of", "image_of", "variables"]

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MOST_LAYERS = 200


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """Layers bottom first, and how programs start."""

    image: str
    image_digest: str
    layers: list[str]
    composed: list[list[str]]
    """What was laid over the image: the tag asked for and the digest that it meant, bottom first."""
    workspace: str | None
    """Digest of that of them which is the workspace."""
    env: dict[str, str]
    workdir: str
    user: str
    command: list[str] | None


def environment_of(
    request: CreateRequest, image: Image, workspace: LayerTag | None, toolkits: Sequence[LayerTag]
) -> Environment:
    """Image, then workspace, then toolkits; of the variables, those of a layer over those of the layers below it.

    The caller's env, workdir and user come over all of them. Raises InvalidArgument when ``command="image"`` and the
    image has none.
    """
    named = [*([workspace] if workspace is not None else []), *toolkits]
    layers = [*image.layers, *(each.digest for each in named)]
    if len(layers) > _MOST_LAYERS:
        raise InvalidArgument(f"{len(layers)} layers are more than {_MOST_LAYERS}")
    return Environment(
        image=image.reference,
        image_digest=image.digest,
        layers=_once_each(layers),
        env=variables({"PATH": DEFAULT_PATH} | image.config.env, [each.environment for each in named]) | request.env,
        composed=[[each.tag, each.digest] for each in named],
        workspace=None if workspace is None else workspace.digest,
        workdir=request.workdir or image.config.workdir or "/",
        user=image.config.user if request.user is None else request.user,
        command=_command(request, image),
    )


def image_of(base: LayerTag) -> Image:
    """A base layer as what a sandbox lies over: root's, with what its tag brings, and no command of its own."""
    config = ImageConfig(env=variables({"PATH": DEFAULT_PATH}, [base.environment]))
    return Image(base.tag, f"sha256:{base.digest}", config, (base.digest,), base.bytes, base.created_at)


def variables(image: Mapping[str, str], layers: Iterable[LayerEnvironment]) -> dict[str, str]:
    """The variables of an image and of the layers over it, bottom first; each adds to PATH at its ends."""
    env = dict(image)
    for each in layers:
        env |= each.env
        path = env["PATH"].split(":") if env.get("PATH") else []
        env["PATH"] = ":".join([*each.path_prepend, *path, *each.path_append])
    return env


def _once_each(layers: list[str]) -> list[str]:
    # An overlay takes a layer once; of two places the upper one decides what is seen.
    return list(dict.fromkeys(reversed(layers)))[::-1]


def _command(request: CreateRequest, image: Image) -> list[str] | None:
    if request.command == "image":
        command = [*image.config.entrypoint, *image.config.cmd]
        if not command:
            raise InvalidArgument(f"the image {image.reference} has no command of its own", remedy="Say command=[…]")
        return command
    # As in Docker, the words of a caller go to the image's entrypoint.
    return None if request.command is None else [*image.config.entrypoint, *request.command]
