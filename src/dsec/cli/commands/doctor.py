"""``dsec doctor``: what this machine has of what a node wants."""

from __future__ import annotations

from typing import Annotated

import typer

from dsec.cli.commands.node import Node, Root, place
from dsec.cli.printing import print_json, say
from dsec.cli.session import Json, command

__all__ = ["add"]


def doctor(
    install: Annotated[bool, typer.Option("--install", help="Install missing distribution packages by apt.")] = False,
    json: Json = False,
    root: Root = None,
    node: Node = "local",
) -> None:
    """Say of each kernel feature and tool whether it is there, and what is lost without. Exit code 1: one is not."""
    from dsec.node import doctor as examination

    if install:
        added = examination.install(say)
        say(f"installed {', '.join(added)}" if added else "every distribution package is there")
    findings = examination.examine(place(root, node))
    if json:
        print_json({"findings": findings})
    else:
        for one in findings:
            print(f"{'ok     ' if one.present else 'MISSING'}  {one.kind}: {one.name}  {one.detail}".rstrip())
            if not one.present:
                print(f"         lost: {one.lost}\n         to do: {one.remedy}")
    if not all(one.present for one in findings):
        raise typer.Exit(1)


def add(app: typer.Typer) -> None:
    """Register the command."""
    command(app, "doctor")(doctor)
