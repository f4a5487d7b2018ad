"""``dsec exec``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from dsec.cli import options as o
from dsec.cli.failures import OWN_FAULT
from dsec.cli.printing import print_json
from dsec.cli.session import Json, command, with_client
from dsec.cli.values import duration_s, environment
from dsec.errors import Unsupported

if TYPE_CHECKING:
    from dsec.client import DSecClient

__all__ = ["add"]


def exec_(
    sandbox: o.SandboxRef,
    words: Annotated[list[str], typer.Argument(metavar="COMMAND [ARGUMENT]…")],
    detach: Annotated[bool, typer.Option("-d", "--detach", help="Print the exec's ID and return.")] = False,
    interactive: Annotated[bool, typer.Option("-i", "--interactive", help="Pass standard input on.")] = False,
    tty: Annotated[bool, typer.Option("-t", "--tty", hidden=True)] = False,
    env: o.Env = None,
    env_file: o.EnvFile = None,
    workdir: o.Workdir = None,
    user: o.User = None,
    timeout: Annotated[str | None, typer.Option(metavar="TIME", help="Kill the program after so long.")] = None,
    json: Json = False,
) -> None:
    """Run a program in a sandbox. Its exit code is this command's; with --json its result is printed at the end."""
    if tty:
        raise Unsupported("`exec -t` is not built yet: there are no terminals", remedy="Leave -t out; -i works")

    async def body(client: DSecClient) -> int:
        from dsec.cli.streams import copy_input, copy_output

        target = await client.get(sandbox)
        program = await target.spawn(
            *words,
            env=environment(env or [], env_file or []),
            cwd=workdir,
            user=user,
            stdin=asyncio.subprocess.PIPE if interactive else None,
            timeout_s=duration_s(timeout) if timeout else None,
        )
        if detach:
            print_json({"exec_id": program.id}) if json else print(program.id)
            return 0
        pump = asyncio.create_task(copy_input(program)) if interactive else None
        try:
            if json:
                result = await program.wait()
                print_json(result)
                return 0
            code = await copy_output(program.events())
        except BaseException:
            await asyncio.shield(program.kill())
            raise
        finally:
            if pump is not None:
                pump.cancel()
        return OWN_FAULT if code is None else code

    raise typer.Exit(with_client(body))


def add(app: typer.Typer) -> None:
    """Register the command."""
    command(app, "exec", docker_style=True)(exec_)
