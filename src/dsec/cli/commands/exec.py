"""``dsec exec``, ``shell`` and ``attach``."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsec.cli import options as o
from dsec.cli import terminal
from dsec.cli.commands.run import on_disk
from dsec.cli.failures import program_code
from dsec.cli.printing import print_json
from dsec.cli.session import Json, command, with_client
from dsec.cli.terminal import DEFAULT_DETACH_KEYS
from dsec.cli.values import duration_s, environment
from dsec.errors import DSecError, InvalidArgument

if TYPE_CHECKING:
    from dsec.api.types import ExecInfo
    from dsec.client.client import DSecClient
    from dsec.client.execs import Exec
    from dsec.client.results import ExecResult
    from dsec.client.sandbox import Sandbox

__all__ = ["add"]


def exec_(
    sandbox: o.SandboxRef,
    words: Annotated[list[str], typer.Argument(metavar="COMMAND [ARGUMENT]…")],
    detach: Annotated[bool, typer.Option("-d", "--detach", help="Print the exec's ID and return.")] = False,
    interactive: o.Interactive = False,
    tty: o.Tty = False,
    detach_keys: o.DetachKeys = DEFAULT_DETACH_KEYS,
    env: o.Env = None,
    env_file: o.EnvFile = None,
    workdir: o.Workdir = None,
    user: o.User = None,
    timeout: Annotated[str | None, typer.Option(metavar="TIME", help="Kill the program after so long.")] = None,
    json: Json = False,
) -> None:
    """Run a program in a sandbox. Its exit code is this command's. --json prints its result when it has ended."""
    keys = terminal.detach_keys(detach_keys)
    if tty and interactive and not detach:
        terminal.require_terminal()

    async def body(client: DSecClient) -> int:
        target = await client.get(sandbox)
        program = await target.spawn(
            *words,
            env=environment(env or [], env_file or []),
            cwd=workdir,
            user=user,
            stdin="pipe" if interactive and not tty else None,
            pty=terminal.size() if tty else None,
            timeout_s=duration_s(timeout) if timeout else None,
        )
        if not detach:
            at = keys if interactive and tty else None
            return await _to_its_end(program, target.id, interactive=interactive, keys=at, json=json)
        if json:
            print_json({"exec_id": program.id})
        else:
            print(program.id)
        return 0

    raise typer.Exit(with_client(body))


def shell(
    sandbox: Annotated[str | None, typer.Argument(metavar="[SANDBOX]", help="ID or name.")] = None,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="STOPPED", help="In a new sandbox on a kept disk, stopped when the shell is left."
        ),
    ] = None,
    detach_keys: o.DetachKeys = DEFAULT_DETACH_KEYS,
    env: o.Env = None,
    env_file: o.EnvFile = None,
    workdir: o.Workdir = None,
    user: o.User = None,
) -> None:
    """Open an interactive shell in a sandbox: /bin/bash, or else /bin/sh."""
    if (sandbox is None) == (from_ is None):
        raise InvalidArgument("name a sandbox, or a stopped one whose disk is kept with --from")
    keys = terminal.detach_keys(detach_keys)
    terminal.require_terminal()

    async def body(client: DSecClient) -> int:
        if sandbox is not None:
            return await inside(await client.get(sandbox))
        from dsec.client.args import SandboxArgs

        async with client.sandbox(await on_disk(client, SandboxArgs(""), from_ or "")) as target:
            return await inside(target)

    async def inside(target: Sandbox) -> int:
        variables = environment(env or [], env_file or [])
        # $0 is the shell that was found; at a terminal, and without a script, it is an interactive one.
        itself = 'exec "$0"'
        program = await target.spawn(shell=itself, env=variables, cwd=workdir, user=user, pty=terminal.size())
        return await _to_its_end(program, target.id, interactive=True, keys=keys, json=False)

    raise typer.Exit(with_client(body))


def attach(
    sandbox: o.SandboxRef,
    exec_id: Annotated[
        str | None, typer.Argument(metavar="[EXEC]", help="Default: the main process, or the only one that runs.")
    ] = None,
    no_stdin: Annotated[bool, typer.Option("--no-stdin", help="Only look.")] = False,
    detach_keys: o.DetachKeys = DEFAULT_DETACH_KEYS,
) -> None:
    """Attach to a program that runs, or has ended: its output from the beginning, its input, its exit code."""
    keys = terminal.detach_keys(detach_keys)

    async def body(client: DSecClient) -> int:
        from dsec.cli.streams import at_terminal, converse

        target = await client.get(sandbox)
        known = await _one_of(target, exec_id)
        program = target.attach(known.id)
        interactive = known.stdin and known.ended is None and not no_stdin
        if interactive and known.pty and os.isatty(0):
            with suppress(DSecError):
                await program.resize(terminal.size().rows, terminal.size().cols)
            code = await at_terminal(program, target.id, keys)
        else:
            code = await converse(program, interactive=interactive, keys=None)
        return 0 if code is None else code

    raise typer.Exit(with_client(body))


async def _one_of(sandbox: Sandbox, exec_id: str | None) -> ExecInfo:
    if exec_id is not None:
        return await sandbox.attach(exec_id).info()
    known = await sandbox.execs()
    main = (await sandbox.info()).main_exec_id
    running = [one for one in known if one.ended is None and one.error is None]
    found = [one for one in known if one.id == main] or running
    if len(found) != 1:
        raise InvalidArgument(
            f"the sandbox has no main process and {len(found) or 'no'} running exec{'s' * (len(found) != 1)}",
            sandbox_id=sandbox.id, remedy=f"Name one; `dsec inspect {sandbox.id}` lists them",
        )  # fmt: skip
    return found[0]


async def _to_its_end(program: Exec, sandbox_id: str, *, interactive: bool, keys: bytes | None, json: bool) -> int:
    """Pass its output and input on; leaving early, by Ctrl-C say, kills it, and detaching does not."""
    from dsec.cli.streams import at_terminal, converse, copy_input
    from dsec.client.discovery import find_address
    from dsec.client.owned import disown, own_exec

    owned = own_exec(find_address(None, None), sandbox_id, program.id)
    try:
        if json:
            feeding = asyncio.create_task(copy_input(program)) if interactive else None
            try:
                result = await program.wait()
            finally:
                if feeding is not None:
                    feeding.cancel()
            print_json(_as_json(result))
            return program_code(result.exit_code, result.signal)
        if keys is not None:
            code = await at_terminal(program, sandbox_id, keys)
        else:
            code = await converse(program, interactive=interactive, keys=None)
        return 0 if code is None else code
    except asyncio.CancelledError:
        await asyncio.shield(program.kill())
        raise
    finally:
        disown(owned)


def _as_json(result: ExecResult) -> dict[str, Any]:
    names = (
        *("sandbox_id", "exec_id", "exit_code", "signal", "ended", "oom_kills", "started_at", "duration_s", "usage"),
        *("stdout", "stderr", "stdout_total_bytes", "stderr_total_bytes", "truncated"),
    )
    return {name: getattr(result, name) for name in names} | {"quota_hits": sorted(result.quota_hits)}


def add(app: typer.Typer) -> None:
    """Register the commands."""
    command(app, "exec", docker_style=True)(exec_)
    command(app, "shell")(shell)
    command(app, "attach")(attach)
