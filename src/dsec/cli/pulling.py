"""``dsec run`` and ``dsec create`` of an image that the node lacks: pulled first, and seen to be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsec.errors import ImageNotFound

if TYPE_CHECKING:
    from dsec.client.args import SandboxArgs
    from dsec.client.client import DSecClient

__all__ = ["with_image"]

_NEVER_PULLED = ("dsec/", "base/", "@")
"""The platform's own images, and layers."""


async def with_image(client: DSecClient, args: SandboxArgs, *, quiet: bool) -> SandboxArgs:
    """The same arguments once the image is there, its pull shown on standard error.

    A pull's error comes at once, without the retries of a create: somebody sits before it. Raises ImageError.
    """
    has_its_layers = args.from_disk is not None or args.from_snapshot is not None
    if args.pull == "never" or has_its_layers or args.image.startswith(_NEVER_PULLED):
        return args
    if args.pull == "missing":
        try:
            await client.images.get(args.image)
        except ImageNotFound:
            pass
        else:
            return args
    from dsec.cli.progress import ProgressLines

    with ProgressLines(f"pulling {args.image}", quiet=quiet) as progress:
        await client.images.import_(f"docker://{args.image}", pull=args.pull, on_progress=progress.show)
    return args.replace(pull="missing")
