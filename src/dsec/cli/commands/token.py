"""``dsec token …``: who may call the node."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from dsec.cli.printing import print_json, print_table
from dsec.cli.session import Json, command, with_client
from dsec.cli.values import age, duration_s

if TYPE_CHECKING:
    from dsec.api.tokens import TokenCreated, TokenInfo
    from dsec.client.client import DSecClient

__all__ = ["add"]


def create(
    name: Annotated[str, typer.Option("--name", help="What it is for.")] = "",
    ttl: Annotated[
        str | None, typer.Option("--ttl", metavar="TIME", help="Valid so long; default until revoked.")
    ] = None,
    scope: Annotated[
        str, typer.Option("--scope", help="read: look; exec: make sandboxes and act in them; admin: rule the node.")
    ] = "exec",
    project: Annotated[
        str | None, typer.Option("--project", help="The only project that it sees; '*': all of them. Else: default.")
    ] = None,
    principal: Annotated[
        str | None, typer.Option("--principal", help="Who is noted as having done what is done with it. Else: you.")
    ] = None,
    json: Json = False,
) -> None:
    """Make a token and print it: the only time that it is seen."""

    async def body(client: DSecClient) -> TokenCreated:
        ttl_s = duration_s(ttl) if ttl else None
        return await client.tokens.create(name, ttl_s=ttl_s, scope=scope, project=project, principal=principal)

    made = with_client(body)
    if json:
        print_json(made)
    else:
        print(made.token)


def list_tokens(json: Json = False) -> None:
    """List the node's tokens, without their secrets."""

    async def body(client: DSecClient) -> list[TokenInfo]:
        return list(await client.tokens.list())

    found = with_client(body)
    if json:
        print_json(found)
        return
    now = time.time()
    print_table(
        ("TOKEN", "NAME", "PRINCIPAL", "PROJECT", "SCOPE", "CREATED", "EXPIRES"),
        [_row(one, now) for one in found],
    )


def _row(one: TokenInfo, now: float) -> tuple[str, ...]:
    created = f"{age(now - one.created_at)} ago"
    return one.id, one.name, one.principal, one.project, one.scope, created, _until(one.expires_at, now)


def _until(expires_at: float | None, now: float) -> str:
    if expires_at is None:
        return "never"
    return "expired" if expires_at <= now else f"in {age(expires_at - now)}"


def revoke(tokens: Annotated[list[str], typer.Argument(metavar="TOKEN…", help="IDs.")], json: Json = False) -> None:
    """Make tokens invalid at once."""

    async def body(client: DSecClient) -> None:
        for token in tokens:
            await client.tokens.revoke(token)

    with_client(body)
    if json:
        print_json({"revoked": tokens})


def add(app: typer.Typer) -> None:
    """Register the commands."""
    tokens = typer.Typer(name="token", help="Tokens: who may call the node.", no_args_is_help=True)
    command(tokens, "create")(create)
    command(tokens, "ls")(list_tokens)
    command(tokens, "revoke")(revoke)
    command(tokens, "rm", hidden=True)(revoke)
    app.add_typer(tokens)
