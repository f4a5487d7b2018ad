"""``dsec logs``."""

from __future__ import annotations

import base64
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsec.cli import options as o
from dsec.cli.printing import print_json
from dsec.cli.session import Json, command, with_client

if TYPE_CHECKING:
    from dsec.client.client import DSecClient

__all__ = ["add"]


def logs(
    sandbox: o.SandboxRef,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the sandbox ends.")] = False,
    json: Json = False,
) -> None:
    """Print what the main process wrote, or else every exec in order; of a stopped sandbox what was kept."""

    async def body(client: DSecClient) -> None:
        from dsec.cli.streams import copy_output

        events = (await client.get(sandbox)).logs(follow=follow)
        if not json:
            await copy_output(events)
            return
        async for event in events:
            print_json(_as_json(event))
            sys.stdout.flush()

    with_client(body)


def _as_json(event: Any) -> dict[str, Any]:
    """An event as JSON: its kind beside its fields, bytes as base64."""
    fields = {name: getattr(event, name) for name in event.__dataclass_fields__}
    if isinstance(fields.get("data"), bytes):
        fields["data"] = base64.b64encode(fields["data"]).decode()
    return {"kind": type(event).__name__.lower(), **fields}


def add(app: typer.Typer) -> None:
    """Register the command."""
    command(app, "logs")(logs)
