"""``dsec exec``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsec.cli import options as o
from dsec.cli.failures import OWN_FAULT, program_code
from dsec.cli.printing import print_json
from dsec.cli.session import Json, command, with_client
from dsec.cli.values import duration_s, environment
from dsec.errors import Unsupported

if TYPE_CHECKING:
    from dsec.client.client import DSecClient
    from dsec.client.execs import Exec
    from dsec.client.results import ExecResult

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
    """Run a program in a sandbox. Its exit code is this command's. --json prints its result when it has ended."""
    if tty:
        raise Unsupported("`exec -t` is not built yet: there are no terminals", remedy="Leave -t out; -i works")

    async def body(client: DSecClient) -> int:
        target = await client.get(sandbox)
        program = await target.spawn(
            *words,
            env=environment(env or [], env_file or []),
            cwd=workdir,
            user=user,
            stdin="pipe" if interactive else None,
            timeout_s=duration_s(timeout) if timeout else None,
        )
        if not detach:
            return await _to_its_end(program, target.id, interactive=interactive, json=json)
        if json:
            print_json({"exec_id": program.id})
        else:
            print(program.id)
        return 0

    raise typer.Exit(with_client(body))


async def _to_its_end(program: Exec, sandbox_id: str, *, interactive: bool, json: bool) -> int:
    """Pass its output and input on; leaving early, by Ctrl-C say, kills it."""
    from dsec.cli.streams import copy_input, copy_output
    from dsec.client.discovery import find_address
    from dsec.client.owned import disown, own_exec

    owned = own_exec(find_address(None, None), sandbox_id, program.id)
    feeding = asyncio.create_task(copy_input(program)) if interactive else None
    try:
        if json:
            result = await program.wait()
            print_json(_as_json(result))
            return program_code(result.exit_code, result.signal)
        code = await copy_output(program.events())
        return OWN_FAULT if code is None else code
    except asyncio.CancelledError:
        await asyncio.shield(program.kill())
        raise
    finally:
        if feeding is not None:
            feeding.cancel()
        disown(owned)


def _as_json(result: ExecResult) -> dict[str, Any]:
    names = (
        *("sandbox_id", "exec_id", "exit_code", "signal", "ended", "oom_kills", "started_at", "duration_s", "usage"),
        *("stdout", "stderr", "stdout_total_bytes", "stderr_total_bytes", "truncated"),
    )
    return {name: getattr(result, name) for name in names} | {"quota_hits": sorted(result.quota_hits)}


def add(app: typer.Typer) -> None:
    """Register the command."""
    command(app, "exec", docker_style=True)(exec_)
