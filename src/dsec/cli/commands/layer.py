"""``dsec layer …``: workspaces and toolkits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsec.cli.printing import print_json, print_table, say
from dsec.cli.session import Json, command, with_client
from dsec.cli.values import size

if TYPE_CHECKING:
    from dsec.api.types import LayerInfo
    from dsec.client.client import DSecClient

__all__ = ["add"]


def build(
    directory: Annotated[Path, typer.Argument(metavar="DIR", exists=True, file_okay=False)],
    reference: Annotated[str, typer.Argument(metavar="REF", help="workspace/NAME:VERSION or toolkit/NAME:VERSION.")],
    at: Annotated[str, typer.Option(help="Where in the sandbox it is laid.")] = "/",
    owner: Annotated[str, typer.Option(metavar="UID:GID", help="Whose the files are.")] = "0:0",
    json: Json = False,
) -> None:
    """Make a layer of a directory; modes and times are kept."""

    async def body(client: DSecClient) -> LayerInfo:
        return await client.layers.build(directory, reference, at=at, owner=owner)

    made = with_client(body)
    if json:
        print_json(made)
    else:
        print(made.digest)
        say(f"{reference}: {size(made.size_bytes)}")


def list_layers(json: Json = False) -> None:
    """List the layers that users built."""

    async def body(client: DSecClient) -> list[LayerInfo]:
        return list(await client.layers.list())

    found = with_client(body)
    if json:
        print_json(found)
        return
    print_table(
        ("LAYER", "DIGEST", "SIZE"), [(one.reference or "", one.digest[:12], size(one.size_bytes)) for one in found]
    )


def remove(
    references: Annotated[list[str], typer.Argument(metavar="REF…", help="workspace/NAME:VERSION, toolkit/…")],
    json: Json = False,
) -> None:
    """Remove layers; sandboxes that use them keep them until they end."""

    async def body(client: DSecClient) -> None:
        for reference in references:
            await client.layers.remove(reference)
            if not json:
                print(reference)

    with_client(body)
    if json:
        print_json({"removed": references})


def add(app: typer.Typer) -> None:
    """Register the commands."""
    layers = typer.Typer(name="layer", help="Workspaces and toolkits.", no_args_is_help=True)
    command(layers, "build")(build)
    command(layers, "ls")(list_layers)
    command(layers, "rm")(remove)
    app.add_typer(layers)
