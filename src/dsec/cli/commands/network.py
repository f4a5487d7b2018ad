"""``dsec network`` and ``dsec events``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from dsec.cli import options as o
from dsec.cli import values
from dsec.cli.printing import print_facts, print_json
from dsec.cli.session import Json, command, with_client

if TYPE_CHECKING:
    from dsec.api.network import NetworkEvent, NetworkInfo
    from dsec.client.client import DSecClient

__all__ = ["add"]

_POLL_S = 0.5
Policy = Annotated[str, typer.Argument(metavar="POLICY", help="none, open, GROUP[,GROUP], or @FILE.json.")]
Follow = Annotated[bool, typer.Option("-f", "--follow", help="Go on until interrupted.")]


def change(sandbox: o.SandboxRef, policy: Policy, json: Json = False) -> None:
    """Change what a sandbox may reach. Connections that do not fit are cut."""

    async def body(client: DSecClient) -> NetworkInfo:
        target = await client.get(sandbox)
        return await target.set_network(values.network(policy))

    _print(with_client(body), json=json)


def show(sandbox: o.SandboxRef, json: Json = False) -> None:
    """Show what a sandbox may reach, and what was counted."""

    async def body(client: DSecClient) -> NetworkInfo:
        target = await client.get(sandbox)
        return await target.network()

    _print(with_client(body), json=json)


def events(sandbox: o.SandboxRef, follow: Follow = False, json: Json = False) -> None:
    """Show what the network of a sandbox has refused."""

    async def body(client: DSecClient) -> None:
        target = await client.get(sandbox)
        start = 0
        while True:
            found = await target.events(start)
            if found.dropped:
                typer.echo(f"{found.dropped} events are not kept any more", err=True)
            for each in found.events:
                typer.echo(msgspec.json.encode(each).decode() if json else _line(each))
            start = found.next
            if not follow:
                return
            await asyncio.sleep(_POLL_S)

    with_client(body)


def _print(info: NetworkInfo, *, json: bool) -> None:
    known = msgspec.to_builtins(info)
    if json:
        print_json(known)
        return
    policy = "none" if info.network is None else msgspec.json.encode(info.network, order="sorted").decode()
    print_facts([("policy", policy), *((name, str(known[name])) for name in known if name != "network")])


def _line(event: NetworkEvent) -> str:
    to = "" if event.address is None else f" {event.address} port {event.port}"
    return f"{event.at:.3f} {event.kind} {event.reason} {event.name or '-'}{to}"


def add(app: typer.Typer) -> None:
    """Adds the commands."""
    nouns = typer.Typer(no_args_is_help=True, help="What sandboxes may reach.")
    command(nouns, "set")(change)
    command(nouns, "show")(show)
    app.add_typer(nouns, name="network")
    command(app, "events")(events)
