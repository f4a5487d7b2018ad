"""``dsec stop``, ``rm``, ``kill``, ``pause`` and ``unpause``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dsec.api.signals import signal_number
from dsec.cli import options as o
from dsec.cli.completing import sandbox_names
from dsec.cli.failures import report
from dsec.cli.printing import print_json
from dsec.cli.session import Json, command, with_client
from dsec.cli.values import duration_s, labels
from dsec.errors import DSecError, InvalidArgument

if TYPE_CHECKING:
    from dsec.client.client import DSecClient
    from dsec.client.sandbox import Sandbox

__all__ = ["add"]

Refs = Annotated[
    list[str] | None, typer.Argument(metavar="[SANDBOX…]", help="IDs or names.", autocompletion=sandbox_names)
]


def stop(
    sandboxes: Refs = None,
    time_: Annotated[
        str, typer.Option("-t", "--time", metavar="TIME", help="Grace before everything is killed.")
    ] = "0",
    all_: Annotated[bool, typer.Option("--all", help="All of your own.")] = False,
    label: o.LabelsWanted = None,
    keep: Annotated[
        str, typer.Option("--keep", help="disk: what it wrote stays, see `create --from-disk`.")
    ] = "nothing",
    keep_for: Annotated[str, typer.Option("--keep-for", metavar="TIME", help="How long the disk stays.")] = "1h",
    json: Json = False,
) -> None:
    """Stop sandboxes; returns when every process of theirs is dead."""
    what = _kept(keep)
    if what == "disk" and not sandboxes:
        raise InvalidArgument("--keep disk is for sandboxes that are named")
    if bool(sandboxes) + all_ + bool(label) != 1:
        raise InvalidArgument("name sandboxes, or say --all or --label", remedy="`dsec ps` lists them")
    if sandboxes:
        grace_s, keep_s = duration_s(time_), duration_s(keep_for)
        _each(sandboxes, lambda sandbox: sandbox.stop(grace_s=grace_s, keep=what, keep_s=keep_s), json=json)
        return

    async def body(client: DSecClient) -> None:
        done = await (client.stop_all(mine=True) if all_ else client.stop_all(labels=labels(label or [])))
        if json:
            print_json(done)
        else:
            for name in done.stopped:
                print(name)
        if done.failed:
            raise typer.Exit(1)

    with_client(body)


def _kept(word: str) -> Literal["nothing", "disk"]:
    if word == "nothing":
        return "nothing"
    if word == "disk":
        return "disk"
    raise InvalidArgument(f"--keep {word}: there is nothing and disk")


def rm(
    sandboxes: o.SandboxRefs,
    force: Annotated[bool, typer.Option("-f", "--force", help="Stop it first if it lives.")] = False,
    json: Json = False,
) -> None:
    """Forget stopped sandboxes: their story and their last output go."""
    _each(sandboxes, lambda sandbox: sandbox.remove(force=force), json=json)


def kill(
    sandboxes: o.SandboxRefs,
    signal: Annotated[str, typer.Option("-s", "--signal", help="KILL ends the sandbox.")] = "KILL",
    json: Json = False,
) -> None:
    """Kill sandboxes at once, or send the main process another signal."""
    number = signal_number(signal)

    async def act(sandbox: Sandbox) -> None:
        if number == 9:
            await sandbox.stop(grace_s=0)
            return
        main = (await sandbox.info()).main_exec_id
        if main is None:
            raise InvalidArgument(
                "the sandbox has no main process to signal", sandbox_id=sandbox.id, remedy="Kill it with KILL"
            )
        await sandbox.kill(main, signal=number)

    _each(sandboxes, act, json=json)


def pause(sandboxes: o.SandboxRefs, json: Json = False) -> None:
    """Let sandboxes stand still: they keep their memory, and go on at the next exec or `dsec unpause`."""
    _each(sandboxes, lambda sandbox: sandbox.pause(), json=json)


def unpause(sandboxes: o.SandboxRefs, json: Json = False) -> None:
    """Let paused sandboxes go on."""
    _each(sandboxes, lambda sandbox: sandbox.resume(), json=json)


def _each(names: list[str], act: Callable[[Sandbox], Awaitable[object]], *, json: bool) -> None:
    """Do it to all at once; print the names of those done, report the others and exit with 1."""

    async def one(client: DSecClient, name: str) -> DSecError | None:
        try:
            await act(await client.get(name))
        except DSecError as error:
            return error
        return None

    async def body(client: DSecClient) -> list[DSecError | None]:
        return await asyncio.gather(*(one(client, name) for name in names))

    outcomes = list(zip(names, with_client(body), strict=True))
    done = [name for name, error in outcomes if error is None]
    if json:
        print_json({"done": done, "failed": {name: error.to_wire() for name, error in outcomes if error}})
    else:
        for name in done:
            print(name)
        for _, error in outcomes:
            if error is not None:
                report(error, as_json=False)
    if len(done) < len(names):
        raise typer.Exit(1)


def add(app: typer.Typer) -> None:
    """Register the commands."""
    command(app, "stop")(stop)
    command(app, "rm")(rm)
    command(app, "kill")(kill)
    command(app, "pause")(pause)
    command(app, "unpause")(unpause)
