"""``dsec ps``, ``inspect``, ``story``, ``stats``, ``status``: looking, changing nothing."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from dsec.cli import options as o
from dsec.cli.completing import sandbox_names
from dsec.cli.printing import print_facts, print_json, print_table
from dsec.cli.session import Json, command, with_client
from dsec.cli.values import age, labels, size
from dsec.errors import NodeError

if TYPE_CHECKING:
    from dsec.api.types import SandboxInfo, Status, StoryEntry, Usage
    from dsec.client.client import DSecClient

__all__ = ["add"]

_MIB = 1 << 20


def ps(
    all_: Annotated[bool, typer.Option("-a", "--all", help="The stopped and the lost too.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="IDs only.")] = False,
    label: o.LabelOption = None,
    job: Annotated[str | None, typer.Option("--job", metavar="JOB", help="Only those of a job.")] = None,
    json: Json = False,
) -> None:
    """List sandboxes, the newest first."""

    async def body(client: DSecClient) -> list[SandboxInfo]:
        from dsec.api.types import SandboxState

        state = ",".join(SandboxState) if all_ else None
        found = [one async for one in client.find(job, labels=labels(label) if label else None, state=state)]
        return sorted(found, key=lambda one: one.created_at, reverse=True)

    found = with_client(body)
    if json:
        print_json(found)
    elif quiet:
        for one in found:
            print(one.id)
    else:
        print_table(("SANDBOX", "IMAGE", "COMMAND", "CREATED", "STATUS", "NAME"), map(_row, found))


def _row(one: SandboxInfo) -> tuple[str, ...]:
    now = time.time()
    if one.state == "running":
        status = f"up {age(now - (one.started_at or one.created_at))}"
    elif one.exit_code is not None:
        status = f"exited ({one.exit_code}) {age(now - (one.ended_at or now))} ago"
    else:
        status = f"{one.state.value}{f' ({one.cause})' if one.cause else ''}"
    words = " ".join(one.command or [])
    shown = words if len(words) <= 30 else words[:29] + "…"
    return one.id, one.image, shown, f"{age(now - one.created_at)} ago", status, one.name or ""


def inspect(
    sandboxes: o.SandboxRefs,
    story: Annotated[bool, typer.Option("--story", help="Only what happened to it, and why.")] = False,
    json: Json = False,
) -> None:
    """Print all that is known of sandboxes, as JSON, of the stopped too; or their story."""

    async def body(client: DSecClient) -> None:
        for name in sandboxes:
            sandbox = await client.get(name)
            info, entries = await sandbox.info(), await sandbox.story()
            if not story:
                known = {"info": info, "story": entries, "execs": await sandbox.execs()}
                print_json(known | {"endpoints": await sandbox.endpoints()})
            elif json:
                print_json({"id": info.id, "story": entries})
            else:
                _print_story(entries)

    with_client(body)


def story(sandbox: o.SandboxRef, json: Json = False) -> None:
    """What happened to a sandbox, and why; of a stopped one too."""

    async def body(client: DSecClient) -> None:
        found = await client.get(sandbox)
        entries = await found.story()
        if json:
            print_json({"id": found.id, "story": entries})
        else:
            _print_story(entries)

    with_client(body)


def _print_story(entries: list[StoryEntry]) -> None:
    head = ("AT", "STATE", "CAUSE", "ACTOR", "DETAIL")
    print_table(head, [(_clock(one.at), one.state, one.cause, one.actor, one.detail) for one in entries])


def _clock(at: float) -> str:
    """A time of today's or another day's, local, to the millisecond."""
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def stats(
    sandboxes: Annotated[
        list[str] | None,
        typer.Argument(metavar="SANDBOX…", help="Default: all live ones.", autocompletion=sandbox_names),
    ] = None,
    json: Json = False,
) -> None:
    """What sandboxes use at this moment."""

    async def body(client: DSecClient) -> list[tuple[str, Usage]]:
        if sandboxes:
            targets = [await client.get(name) for name in sandboxes]
        else:
            targets = [client.attach(one.id) async for one in client.find(state="running,paused")]
        return list(
            zip([one.id for one in targets], await asyncio.gather(*(t.usage() for t in targets)), strict=True)
        )

    used = with_client(body)
    if json:
        print_json([{"id": name, "usage": usage} for name, usage in used])
        return
    head = ("SANDBOX", "CPU", "MEMORY", "PEAK", "DISK", "PIDS", "OOM KILLS", "UP")
    print_table(head, [_usage_row(name, usage) for name, usage in used])


def _usage_row(name: str, usage: Usage) -> tuple[str, ...]:
    memory, peak, disk = (size(part * _MIB) for part in (usage.memory_mib, usage.memory_peak_mib, usage.disk_mib))
    return (
        name, f"{usage.cpu_s:.2f} s", memory, peak, disk, str(usage.pids), str(usage.oom_kills), age(usage.wall_s)
    )  # fmt: skip


def status(json: Json = False) -> None:
    """The node at a glance: its parts, what it has and what is used."""

    async def body(client: DSecClient) -> Status:
        return await client.status()

    import msgspec

    from dsec.cli.parts import merged, parts_here

    here = parts_here()
    try:
        now = with_client(body)
    except NodeError:
        # The API is down and somebody looks why: what the keeper says, then the error.
        if not json:
            print_facts((f"part {part['name']}", _words(part)) for part in here)
        raise
    parts = merged(now.parts, here)
    if json:
        print_json(msgspec.structs.replace(now, parts=parts))
        return
    facts = [("node", now.node), ("version", now.version), ("queued", str(now.queued))]
    facts += [(f"sandboxes {state}", str(count)) for state, count in sorted(now.sandboxes.items())]
    for name, there in sorted(now.capacity.items()):
        facts.append((name, f"{_amount(name, now.requests.get(name, 0))} of {_amount(name, there)} requested"))
    facts += [(f"part {part.get('name')}", _words(part)) for part in parts]
    facts.append(("reader", f"{now.reader} ({now.reader_why})" if now.reader_why else now.reader))
    facts += [(f"reads {name}", _amount(name, value)) for name, value in now.loading.items()]
    facts += [(name, _amount(name, value)) for name, value in sorted(now.stats.items())]
    facts += [(f"missing {one['name']}", str(one.get("lost", ""))) for one in now.features if not one.get("present")]
    print_facts(facts)


def _amount(name: str, value: float) -> str:
    return size(value) if name.endswith("_bytes") else f"{value:.12g}"


def _words(part: dict[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in part.items() if name != "name")


def add(app: typer.Typer) -> None:
    """Register the commands."""
    command(app, "ps")(ps)
    command(app, "ls", hidden=True)(ps)
    command(app, "inspect")(inspect)
    command(app, "story")(story)
    command(app, "stats")(stats)
    command(app, "status")(status)
