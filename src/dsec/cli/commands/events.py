"""``dsec events``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from dsec.api.audit import EVENT_KINDS
from dsec.cli import options as o
from dsec.cli.session import Json, command, with_client
from dsec.errors import InvalidArgument

if TYPE_CHECKING:
    from dsec.api.audit import AuditEvent
    from dsec.client.client import DSecClient

__all__ = ["add"]

_POLL_S = 0.5
Follow = Annotated[bool, typer.Option("-f", "--follow", help="Go on until interrupted.")]
Kinds = Annotated[
    list[str] | None,
    typer.Option("--kind", metavar="KIND", help=f"Only these: {', '.join(EVENT_KINDS)}. May be repeated."),
]


def events(sandbox: o.SandboxRef, kind: Kinds = None, follow: Follow = False, json: Json = False) -> None:
    """Show what a sandbox tried and did not get: connections, names, calls to the kernel, limits."""
    wanted = frozenset(kind or EVENT_KINDS)
    if unknown := wanted.difference(EVENT_KINDS):
        raise InvalidArgument(f"not a kind of event: {min(unknown)!r}", field="kind")

    async def body(client: DSecClient) -> None:
        target = await client.get(sandbox)
        start = ""
        while True:
            found = await target.events(start)
            if found.dropped:
                typer.echo(f"{found.dropped} events are not kept any more", err=True)
            for each in found.events:
                if each.kind in wanted:
                    typer.echo(msgspec.json.encode(each).decode() if json else _line(each))
            start = found.next
            if not follow:
                return
            await asyncio.sleep(_POLL_S)

    with_client(body)


def _line(event: AuditEvent) -> str:
    to = "" if event.address is None else f" {event.address} port {event.port}"
    times = "" if event.count == 1 else f" ×{event.count}"
    by = "" if event.exec_id is None else f" exec {event.exec_id}"
    return f"{event.at:.3f} {event.kind} {event.reason} {event.name or '-'}{to}{times}{by}"


def add(app: typer.Typer) -> None:
    """Adds the command."""
    command(app, "events")(events)
