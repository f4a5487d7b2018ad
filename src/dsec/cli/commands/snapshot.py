"""``dsec snapshot take``, ``ls``, ``show`` and ``rm``; ``dsec fork``."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsec.cli import options as o
from dsec.cli.completing import snapshot_ids
from dsec.cli.failures import report
from dsec.cli.printing import print_facts, print_json, print_table
from dsec.cli.session import Json, command, with_client
from dsec.cli.values import age, duration_s, labels, size
from dsec.errors import DSecError

if TYPE_CHECKING:
    from dsec.api.snapshots import SnapshotInfo
    from dsec.client.client import DSecClient
    from dsec.client.results import Created
    from dsec.client.sandbox import Sandbox

__all__ = ["add"]

Id = Annotated[str, typer.Argument(metavar="SNAPSHOT", help="Its ID.", autocompletion=snapshot_ids)]
Ids = Annotated[list[str], typer.Argument(metavar="SNAPSHOT…", help="Their IDs.", autocompletion=snapshot_ids)]


def take(
    sandbox: o.SandboxRef,
    keep_for: Annotated[str, typer.Option("--keep-for", metavar="TIME", help="How long, at most a day.")] = "1h",
    json: Json = False,
) -> None:
    """Keep what a sandbox has written as it is now, and print the ID: see `dsec create --from-snapshot`."""
    keep_s = duration_s(keep_for)

    async def body(client: DSecClient) -> SnapshotInfo:
        return (await (await client.get(sandbox)).snapshot(keep_s=keep_s)).info

    _print(with_client(body), json=json)


def list_snapshots(json: Json = False) -> None:
    """List the snapshots that the node keeps, the oldest first."""
    found = [each.info for each in with_client(lambda client: client.snapshots.list())]
    if json:
        print_json(found)
        return
    now = time.time()
    print_table(
        ("SNAPSHOT", "SANDBOX", "IMAGE", "SIZE", "TAKEN", "LEFT"),
        (
            (one.id, one.sandbox_id, one.image, size(one.size_bytes), f"{age(now - one.made_at)} ago",
             age(one.kept_until - now))
            for one in found
        ),
    )  # fmt: skip


def show(snapshot: Id, json: Json = False) -> None:
    """Show a snapshot; one that went in the last day too."""
    one = with_client(lambda client: client.snapshots.get(snapshot)).info
    if json:
        print_json(one)
        return
    now = time.time()
    print_facts(
        [
            ("snapshot", one.id),
            ("state", one.state),
            ("sandbox", one.sandbox_id),
            ("image", one.image),
            ("layers", str(len(one.layers))),
            ("size", size(one.size_bytes)),
            ("taken", f"{age(now - one.made_at)} ago by {one.by or 'unknown'}"),
            ("kept for", age(one.kept_until - now) if one.state == "made" else "gone"),
            ("stood still", f"{one.frozen_s * 1000:.1f} ms{', not all of it' if one.partial else ''}"),
        ]
    )


def rm(snapshots: Ids, json: Json = False) -> None:
    """Keep snapshots no more. Sandboxes that began with them keep their copies."""

    async def one(client: DSecClient, own: str) -> DSecError | None:
        try:
            await client.snapshots.remove(own)
        except DSecError as error:
            return error
        return None

    async def body(client: DSecClient) -> list[DSecError | None]:
        return await asyncio.gather(*(one(client, own) for own in snapshots))

    outcomes = list(zip(snapshots, with_client(body), strict=True))
    done = [own for own, error in outcomes if error is None]
    if json:
        print_json({"done": done, "failed": {own: error.to_wire() for own, error in outcomes if error}})
    else:
        for own in done:
            print(own)
        for _, error in outcomes:
            if error is not None:
                report(error, as_json=False)
    if len(done) < len(outcomes):
        raise typer.Exit(1)


def fork(
    sandbox: o.SandboxRef,
    number: Annotated[int, typer.Option("-n", "--number", help="How many.")] = 1,
    label: o.LabelOption = None,
    json: Json = False,
) -> None:
    """Make sandboxes that begin with a copy of what one has written, all of the same moment; prints their IDs."""
    fields: dict[str, Any] = {} if label is None else {"labels": labels(label)}

    async def body(client: DSecClient) -> list[Created[Sandbox]]:
        return await (await client.get(sandbox)).fork(number, **fields).all()

    made = with_client(body)
    if json:
        print_json(
            [
                {"index": one.index, "id": one.sandbox.id if one.sandbox else None,
                 "error": one.error.to_wire() if one.error else None}
                for one in made
            ]
        )  # fmt: skip
    for one in made:
        if one.sandbox is not None and not json:
            print(one.sandbox.id)
        elif one.error is not None and not json:
            report(one.error, as_json=False)
    if any(one.error is not None for one in made):
        raise typer.Exit(1)


def _print(info: SnapshotInfo, *, json: bool) -> None:
    if json:
        print_json(info)
    else:
        print(info.id)


def add(app: typer.Typer) -> None:
    """Register the commands."""
    snapshots = typer.Typer(name="snapshot", help="Snapshots of what sandboxes have written.", no_args_is_help=True)
    command(snapshots, "take")(take)
    command(snapshots, "ls")(list_snapshots)
    command(snapshots, "list", hidden=True)(list_snapshots)
    command(snapshots, "show")(show)
    command(snapshots, "rm")(rm)
    app.add_typer(snapshots)
    command(app, "fork")(fork)
