"""``dsec usage``: what sandboxes used together."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from dsec.cli.printing import print_json, print_table
from dsec.cli.session import Json, command, with_client
from dsec.cli.values import age, duration_s, size

if TYPE_CHECKING:
    from dsec.api.types import UsageGroup

__all__ = ["add"]

_MIB = 1 << 20


def usage(
    by: Annotated[str, typer.Option("--by", metavar="WHAT", help="label:NAME, job, principal or image.")] = "image",
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Only what lived in the last 30m, 2h, …")
    ] = None,
    json: Json = False,
) -> None:
    """What live sandboxes and those of the last day used together, the most CPU first."""
    at = None if since is None else time.time() - duration_s(since)
    found = with_client(lambda client: client.usage(by, since=at))
    if json:
        print_json(found)
        return
    head = (
        by.upper(),
        "SANDBOXES",
        "LIVE",
        "CPU",
        "MEMORY",
        "LARGEST",
        "DISK",
        "READ",
        "WRITTEN",
        "WALL",
        "OOM KILLS",
    )
    print_table(head, map(_row, found))


def _row(one: UsageGroup) -> tuple[str, ...]:
    read, written = ("" if many is None else size(many) for many in (one.read_bytes, one.written_bytes))
    largest, disk = size(one.largest_memory_mib * _MIB), size(one.disk_mib * _MIB)
    return (
        one.key if one.key is not None else "-", str(one.sandboxes), str(one.live), f"{one.cpu_s:.2f} s",
        f"{one.memory_gib_s:.2f} GiB s", largest, disk, read, written, age(one.wall_s), str(one.oom_kills),
    )  # fmt: skip


def add(app: typer.Typer) -> None:
    """Register the command."""
    command(app, "usage")(usage)
