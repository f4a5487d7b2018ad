"""``dsec image …``, and Docker's short forms ``images`` and ``pull``."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from dsec.cli.completing import image_names
from dsec.cli.failures import report
from dsec.cli.printing import print_json, print_table, say
from dsec.cli.session import Json, command, with_client
from dsec.cli.values import age, size

if TYPE_CHECKING:
    from dsec.api.images import ImageInfo, ImagePushed
    from dsec.client.client import DSecClient
    from dsec.client.progressing import OnProgress

__all__ = ["add"]

Reference = Annotated[str, typer.Argument(metavar="IMAGE", autocompletion=image_names)]
_DEFAULT = "dsec/debian:12"


def list_images(
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="References only.")] = False, json: Json = False
) -> None:
    """List the images of the node."""

    async def body(client: DSecClient) -> list[ImageInfo]:
        return list(await client.images.list())

    found = with_client(body)
    if json:
        print_json(found)
    elif quiet:
        for one in found:
            print(one.reference)
    else:
        now = time.time()
        print_table(
            ("IMAGE", "IMAGE ID", "LAYERS", "CREATED", "SIZE"),
            [
                (
                    one.reference,
                    one.digest.removeprefix("sha256:")[:12],
                    str(len(one.layers)),
                    f"{age(now - one.created_at)} ago",
                    size(one.size_bytes),
                )
                for one in found
            ],
        )


def show(reference: Reference, json: Json = False) -> None:
    """Print all that is known of an image, as JSON."""

    async def body(client: DSecClient) -> ImageInfo:
        return await client.images.get(reference)

    print_json(with_client(body))


def remove(
    references: Annotated[list[str], typer.Argument(metavar="IMAGE…", autocompletion=image_names)], json: Json = False
) -> None:
    """Remove images; layers that others need stay."""

    async def body(client: DSecClient) -> None:
        for reference in references:
            await client.images.remove(reference)
            if not json:
                print(reference)

    with_client(body)
    if json:
        print_json({"removed": references})


def import_(
    source: Annotated[str, typer.Argument(help="docker://REF, docker-archive:FILE or oci:DIR; files are your own.")],
    reference: Annotated[str | None, typer.Option("--as", metavar="REF", help="The name it gets.")] = None,
    json: Json = False,
) -> None:
    """Import an image from a registry, an archive of `docker save`, or an OCI layout."""
    _watch(
        lambda client, show: client.images.import_(source, reference=reference, on_progress=show),
        f"importing {source}",
        json=json,
    )


def pull(
    references: Annotated[list[str], typer.Argument(metavar="IMAGE…", autocompletion=image_names)],
    store: Annotated[
        str | None, typer.Option("--store", metavar="NAME", help="From this store instead of its registry.")
    ] = None,
    json: Json = False,
) -> None:
    """Pull images from their registries, side by side, or from a store."""
    if store is not None:
        for reference in references:
            _fetch(reference, store, json=json)
    elif len(references) == 1:
        _watch(
            lambda client, show: client.images.import_(f"docker://{references[0]}", on_progress=show),
            f"pulling {references[0]}",
            json=json,
        )
    else:
        _pull_all(references, json=json)


def _fetch(reference: str, store: str, *, json: bool) -> None:
    _watch(
        lambda client, show: client.images.fetch(reference, store=store, on_progress=show),
        f"pulling {reference} from {store}",
        json=json,
    )


def _pull_all(references: list[str], *, json: bool) -> None:
    """All of them; one that cannot be had is told, and ends the command with an error when the others are there."""
    from dsec.cli.progress import ProgressLines
    from dsec.errors import ImageError

    async def body(client: DSecClient) -> tuple[list[ImageInfo], list[ImageError]]:
        made: list[ImageInfo] = []
        failed: list[ImageError] = []
        with ProgressLines("pulling", quiet=json) as progress:
            pulls = client.images.ensure(
                references, pull="always",
                on_progress=lambda name, step: progress.show_of(f"pulling {name}", step),
            )  # fmt: skip
            async for each in pulls:
                if isinstance(each, ImageError):
                    failed.append(each)
                else:
                    made.append(each.image)
                    if not json:
                        print(each.image.reference)
        return made, failed

    made, failed = with_client(body)
    if json:
        print_json(made)
    for error in failed[:-1]:
        report(error, as_json=json)
    if failed:
        raise failed[-1]


def push(
    reference: Reference,
    store: Annotated[str | None, typer.Option("--store", metavar="NAME", help="Of the node; its default.")] = None,
    move: Annotated[bool, typer.Option("--move", help="Also when the name means another image there.")] = False,
    json: Json = False,
) -> None:
    """Publish an image in a store; only the layers that it has not are sent."""

    async def body(client: DSecClient) -> ImagePushed:
        from dsec.cli.progress import ProgressLines

        with ProgressLines(f"pushing {reference}", quiet=json) as progress:
            return await client.images.push(reference, store=store, move=move, on_progress=progress.show)

    done = with_client(body)
    if json:
        print_json(done)
        return
    print(done.reference)
    say(f"in {done.store}: {size(done.stored_bytes)} for {size(done.size_bytes)}, {size(done.sent_bytes)} of it sent")
    if done.registry_bytes is not None:
        say(f"as a registry's compressed blobs its layers were {size(done.registry_bytes)}")


def build(reference: Annotated[str, typer.Argument(metavar="IMAGE")] = _DEFAULT, json: Json = False) -> None:
    """Build the image that dsec makes itself, dsec/debian:12."""
    _watch(lambda client, show: client.images.build(reference, on_progress=show), f"building {reference}", json=json)


def collapse(reference: Reference, json: Json = False) -> None:
    """Make one layer of each run of an image's small layers; the node does it by itself after an import."""
    _watch(
        lambda client, show: client.images.collapse(reference, on_progress=show), f"collapsing {reference}", json=json
    )


def _watch(act: Callable[[DSecClient, OnProgress], Awaitable[ImageInfo]], title: str, *, json: bool) -> None:
    """Do it under a progress bar, and print what came of it."""
    from dsec.cli.progress import ProgressLines

    async def body(client: DSecClient) -> ImageInfo:
        with ProgressLines(title, quiet=json) as progress:
            return await act(client, progress.show)

    made = with_client(body)
    if json:
        print_json(made)
    else:
        print(made.reference)


def add(app: typer.Typer) -> None:
    """Register the commands."""
    images = typer.Typer(name="image", help="Images of the node.", no_args_is_help=True)
    command(images, "ls")(list_images)
    command(images, "list", hidden=True)(list_images)
    command(images, "show")(show)
    command(images, "inspect", hidden=True)(show)
    command(images, "rm")(remove)
    command(images, "import")(import_)
    command(images, "pull", hidden=True)(pull)
    command(images, "push")(push)
    command(images, "build")(build)
    command(images, "collapse")(collapse)
    app.add_typer(images)
    command(app, "images")(list_images)
    command(app, "pull")(pull)
    command(app, "rmi", hidden=True)(remove)
