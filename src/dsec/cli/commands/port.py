"""``dsec expose``, ``unexpose`` and ``port``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dsec.cli import options as o
from dsec.cli.printing import print_facts, print_json, print_table
from dsec.cli.session import Json, command, with_client

if TYPE_CHECKING:
    from dsec.client.client import DSecClient
    from dsec.client.ports import Url

__all__ = ["add"]

Port = Annotated[int, typer.Argument(metavar="PORT", min=1, max=65535, help="Port inside the sandbox.")]


def expose(sandbox: o.SandboxRef, port: Port, json: Json = False) -> None:
    """Make a port of a sandbox reachable through the API, at an address of its own. Repeated: the same token."""

    async def body(client: DSecClient) -> Url:
        target = await client.get(sandbox)
        return await target.expose(port)

    url = with_client(body)
    if json:
        print_json(_as_json(url))
        return
    print_facts(
        [
            ("url", url.url),
            ("open", url.link),
            ("connect", url.connect),
            ("header", f"{url.token_header}: {url.token}"),
        ]
    )


def unexpose(sandbox: o.SandboxRef, port: Port, json: Json = False) -> None:
    """Take a port back. Connections to it are cut."""

    async def body(client: DSecClient) -> None:
        target = await client.get(sandbox)
        await target.unexpose(port)

    with_client(body)
    if json:
        print_json({"port": port})


def port(sandbox: o.SandboxRef, json: Json = False) -> None:
    """List the exposed ports of a sandbox."""

    async def body(client: DSecClient) -> list[Url]:
        target = await client.get(sandbox)
        return await target.ports()

    urls = with_client(body)
    if json:
        print_json([_as_json(url) for url in urls])
    else:
        print_table(("PORT", "URL"), [(str(url.port), url.url) for url in urls])


def _as_json(url: Url) -> dict[str, object]:
    return {
        "port": url.port,
        "url": url.url,
        "link": url.link,
        "connect": url.connect,
        "host": url.host,
        "token": url.token,
        "token_header": url.token_header,
    }


def add(app: typer.Typer) -> None:
    """Register the commands."""
    command(app, "expose")(expose)
    command(app, "unexpose")(unexpose)
    command(app, "port")(port)
