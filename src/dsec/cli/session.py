"""Running a command: errors become exit codes, Ctrl-C becomes 130, the async client gets its event loop."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar

import typer

from dsec.cli.failures import INTERRUPTED, exit_code_of, report
from dsec.errors import DSecError

if TYPE_CHECKING:
    from dsec.client.client import DSecClient

__all__ = ["Json", "command", "with_client"]

P = ParamSpec("P")
T = TypeVar("T")

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_BROKEN_PIPE = 141
DOCKER_STYLE: dict[str, Any] = {"allow_interspersed_args": False}
"""Options end at the first argument: what follows is the program's, and needs no ``--``."""


def command(
    app: typer.Typer, name: str, *, hidden: bool = False, docker_style: bool = False
) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Register a function as the command ``name``, with this package's treatment of errors."""

    def register(function: Callable[P, None]) -> Callable[P, None]:
        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                function(*args, **kwargs)
                sys.stdout.flush()
            except DSecError as error:
                report(error, as_json=bool(kwargs.get("json")))
                raise typer.Exit(exit_code_of(error, name)) from None
            except KeyboardInterrupt:
                raise typer.Exit(INTERRUPTED) from None
            except BrokenPipeError:
                # The reader has gone. Point stdout elsewhere, or the interpreter's own flush fails again.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                raise typer.Exit(_BROKEN_PIPE) from None

        settings = DOCKER_STYLE if docker_style else None
        app.command(name, hidden=hidden, context_settings=settings)(guarded)
        return guarded

    return register


def with_client(body: Callable[[DSecClient], Awaitable[T]]) -> T:
    """Run the body with an open client: DSEC_URL and DSEC_TOKEN, else this machine's node."""
    import asyncio

    from dsec.client.client import DSecClient

    async def main() -> T:
        async with DSecClient() as client:
            return await body(client)

    return asyncio.run(main())
