"""``dsec up``, ``down`` and ``restart``: the node of this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsec.cli.printing import print_json, say
from dsec.cli.session import Json, command

if TYPE_CHECKING:
    from dsec.node.paths import NodePaths

__all__ = ["Node", "Root", "add", "place"]

Root = Annotated[
    Path | None,
    typer.Option("--root", envvar="DSEC_ROOT", help="All files of the node below this directory.", file_okay=False),
]
Node = Annotated[str, typer.Option("--node", envvar="DSEC_NODE", help="The node's name.")]


def place(root: Path | None, node: str) -> NodePaths:
    """Where the node's files are."""
    from dsec.node.paths import NodePaths

    return NodePaths(node, root.absolute() if root else None).checked()


def up(
    root: Root = None,
    node: Node = "local",
    host: Annotated[str | None, typer.Option(help="Address to listen on; default 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one; default 7373.")] = None,
    group: Annotated[str | None, typer.Option(help="Group whose members may use the node.")] = None,
    pool_mib: Annotated[int | None, typer.Option(help="Size of the pool of sandbox disks.")] = None,
    shared_layers: Annotated[
        Path | None, typer.Option(help="Data directory of another node whose images are to be here too.")
    ] = None,
    tls: Annotated[bool, typer.Option("--tls", help="Speak TLS, with a certificate of the node's own.")] = False,
    plaintext: Annotated[
        bool,
        typer.Option("--plaintext", help="Let other machines connect without TLS: tokens can be read."),
    ] = False,
    json: Json = False,
) -> None:
    """Start the node of this machine, or repair a half-dead one; installs nothing."""
    from dsec.cli.first_image import ensure_first_image
    from dsec.node.up import UpOptions
    from dsec.node.up import up as bring_up

    options = UpOptions(
        paths=place(root, node),
        host=host,
        port=port,
        group=group,
        pool_mib=pool_mib,
        shared_layers=str(shared_layers.absolute()) if shared_layers else None,
        tls=tls,
        plaintext=plaintext,
    )
    report = bring_up(options, say)
    if not json:
        say(f"node {report.node} is up at {report.url} ({report.took_s:.1f} s)")
        if report.trust:
            say(f"clients elsewhere: DSEC_TRUST={report.trust}")
    ensure_first_image(options.paths, report.url, quiet=json)
    if json:
        print_json(report)


def down(
    root: Root = None,
    node: Node = "local",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Stop live sandboxes without asking.")] = False,
    json: Json = False,
) -> None:
    """Stop all sandboxes, end the node, and check that nothing of it is left."""
    from dsec.node.down import down as take_down

    def confirm(live: int) -> bool:
        return yes or (sys.stdin.isatty() and typer.confirm(f"Live sandboxes: {live}. Stop them?", err=True))

    report = take_down(place(root, node), confirm=confirm, say=say)
    if json:
        print_json(report)
    elif report.was_up:
        say(f"node {report.node} is down, sandboxes stopped: {report.stopped}, nothing left ({report.took_s:.1f} s)")
    else:
        say(f"node {report.node} was not up; nothing of it is left")


def restart(
    parts: Annotated[list[str] | None, typer.Argument(help="As in `dsec status`, and keeper; default all.")] = None,
    root: Root = None,
    node: Node = "local",
    json: Json = False,
) -> None:
    """Put the installed version of the parts in place; sandboxes go on."""
    from dsec.node.restart import restart as restart_parts

    done = restart_parts(place(root, node), tuple(parts or ()), say=say)
    if json:
        print_json({"restarted": done})


def add(app: typer.Typer) -> None:
    """Register the commands."""
    command(app, "up")(up)
    command(app, "down")(down)
    command(app, "restart")(restart)
