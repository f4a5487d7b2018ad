"""``dsec demo``: 64 real repair tasks, solved, attacked and graded."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsec.cli.printing import print_json
from dsec.cli.session import Json, with_client

if TYPE_CHECKING:
    from dsec.client.client import DSecClient
    from dsec.demo.report import JobResult

__all__ = ["demo"]


def demo(
    task: Annotated[list[str] | None, typer.Option(help="Only this task; may be repeated.")] = None,
    samples: Annotated[int, typer.Option(help="Samples of each task.")] = 8,
    parallel: Annotated[int, typer.Option(help="Sandboxes at once.")] = 16,
    image: Annotated[
        str, typer.Option(help="The image under the layers; it needs python3 and tar.")
    ] = "dsec/debian:12",
    docker: Annotated[bool, typer.Option("--docker", help="Run the same job through Docker beside it.")] = False,
    cache: Annotated[Path | None, typer.Option(help="Where downloads are kept.")] = None,
    json: Json = False,
) -> None:
    """Run real repair tasks with scripted agents, honest and cheating, and grade each in a fresh sandbox."""
    from rich.console import Console

    from dsec.demo.run import Options, run_demo
    from dsec.demo.table import as_json, print_result

    options = Options(image, tuple(task or ()), samples, parallel, docker, cache)
    # With --json the document alone goes to standard output.
    console = Console(stderr=json, width=None if (sys.stderr if json else sys.stdout).isatty() else 118)

    async def body(client: DSecClient) -> list[JobResult]:
        return await run_demo(client, options, console)

    results = with_client(body)
    if json:
        print_json(as_json(results))
    else:
        print_result(console, results)
    if not all(result.ok for result in results):
        raise typer.Exit(1)
