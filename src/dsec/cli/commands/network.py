"""``dsec network``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from dsec.cli import options as o
from dsec.cli import values
from dsec.cli.printing import print_facts, print_json
from dsec.cli.session import Json, command, with_client

if TYPE_CHECKING:
    from dsec.api.network import NetworkInfo
    from dsec.client.client import DSecClient

__all__ = ["add"]

Policy = Annotated[str, typer.Argument(metavar="POLICY", help="none, open, GROUP[,GROUP], or @FILE.json.")]


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


def _print(info: NetworkInfo, *, json: bool) -> None:
    known = msgspec.to_builtins(info)
    if json:
        print_json(known)
        return
    policy = "none" if info.network is None else msgspec.json.encode(info.network, order="sorted").decode()
    print_facts([("policy", policy), *((name, str(known[name])) for name in known if name != "network")])


def add(app: typer.Typer) -> None:
    """Adds the commands."""
    nouns = typer.Typer(no_args_is_help=True, help="What sandboxes may reach.")
    command(nouns, "set")(change)
    command(nouns, "show")(show)
    app.add_typer(nouns, name="network")
