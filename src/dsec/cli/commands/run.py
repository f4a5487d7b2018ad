"""``dsec run`` and ``dsec create``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dsec.api.types import Ended
from dsec.cli import options as o
from dsec.cli import terminal
from dsec.cli.completing import image_names, snapshot_ids
from dsec.cli.failures import program_code
from dsec.cli.printing import print_json
from dsec.cli.pulling import with_image
from dsec.cli.session import Json, command, with_client
from dsec.errors import InvalidArgument, SandboxGone

if TYPE_CHECKING:
    from dsec.client.args import SandboxArgs
    from dsec.client.client import DSecClient
    from dsec.client.sandbox import Sandbox

__all__ = ["add"]

Words = Annotated[list[str] | None, typer.Argument(metavar="[COMMAND [ARGUMENT]…]", help="Default: the image's.")]


def run(
    image: Annotated[str, typer.Argument(metavar="IMAGE", autocompletion=image_names)],
    words: Words = None,
    detach: Annotated[bool, typer.Option("-d", "--detach", help="Print the ID and return.")] = False,
    rm: Annotated[bool, typer.Option("--rm", help="Forget the sandbox when it has ended.")] = False,
    interactive: o.Interactive = False,
    tty: o.Tty = False,
    detach_keys: o.DetachKeys = terminal.DEFAULT_DETACH_KEYS,
    env: o.Env = None,
    env_file: o.EnvFile = None,
    workdir: o.Workdir = None,
    user: o.User = None,
    name: o.Name = None,
    memory: o.Memory = "1g",
    cpus: o.Cpus = 2,
    disk: o.Disk = "10g",
    pids_limit: o.PidsLimit = 4096,
    shm_size: o.ShmSize = "64m",
    network: o.NetworkOption = "none",
    profile: o.ProfileOption = "default",
    protect: o.Protect = None,
    endpoint: o.EndpointOption = None,
    label: o.LabelOption = None,
    workspace: o.Workspace = None,
    toolkit: o.Toolkit = None,
    idle_timeout: o.IdleTimeout = "15m",
    lifetime: o.Lifetime = "4h",
    pull: o.Pull = "missing",
    json: Json = False,
) -> None:
    """Run a program in a new sandbox, which lives as long as it does. Its exit code is this command's."""
    keys = terminal.detach_keys(detach_keys)
    if interactive and tty and not detach:
        terminal.require_terminal()
    made = o.sandbox_args(
        image,
        env=env, env_file=env_file, workdir=workdir, user=user, name=name, memory=memory, cpus=cpus, disk=disk,
        pids_limit=pids_limit, shm_size=shm_size, network=network, profile=profile, protect=protect,
        endpoint=endpoint, label=label, workspace=workspace, toolkit=toolkit,
        idle_timeout=idle_timeout, lifetime=lifetime, pull=pull,
    )  # fmt: skip
    pty = terminal.size() if tty else None
    main = made.replace(command=list(words) if words else "image", pty=pty, stdin=interactive)
    if detach:
        with_client(lambda client: _create(client, main, json=json))
    elif interactive:
        raise typer.Exit(with_client(lambda client: _talking(client, main, rm=rm, keys=keys if tty else None)))
    else:
        raise typer.Exit(with_client(lambda client: _foreground(client, main, rm=rm)))


def create(
    image: Annotated[
        str | None,
        typer.Argument(
            metavar="IMAGE", help="Not needed with --from-disk, --from-snapshot.", autocompletion=image_names
        ),
    ] = None,
    from_disk: Annotated[
        str | None, typer.Option("--from-disk", metavar="SANDBOX", help="Begin with what a stopped one had written.")
    ] = None,
    from_snapshot: Annotated[
        str | None,
        typer.Option(
            "--from-snapshot", metavar="SNAPSHOT", help="Begin with a snapshot.", autocompletion=snapshot_ids
        ),
    ] = None,
    env: o.Env = None,
    env_file: o.EnvFile = None,
    workdir: o.Workdir = None,
    user: o.User = None,
    name: o.Name = None,
    memory: o.Memory = "1g",
    cpus: o.Cpus = 2,
    disk: o.Disk = "10g",
    pids_limit: o.PidsLimit = 4096,
    shm_size: o.ShmSize = "64m",
    network: o.NetworkOption = "none",
    profile: o.ProfileOption = "default",
    protect: o.Protect = None,
    endpoint: o.EndpointOption = None,
    label: o.LabelOption = None,
    workspace: o.Workspace = None,
    toolkit: o.Toolkit = None,
    idle_timeout: o.IdleTimeout = "15m",
    lifetime: o.Lifetime = "4h",
    pull: o.Pull = "missing",
    json: Json = False,
) -> None:
    """Make a sandbox without a main process, for ``dsec exec``, and print its ID."""
    if image is None and from_disk is None and from_snapshot is None:
        raise InvalidArgument("name an image, a stopped sandbox with --from-disk, or a --from-snapshot")
    args = o.sandbox_args(
        image or "",
        env=env, env_file=env_file, workdir=workdir, user=user, name=name, memory=memory, cpus=cpus, disk=disk,
        pids_limit=pids_limit, shm_size=shm_size, network=network, profile=profile, protect=protect,
        endpoint=endpoint, label=label, workspace=workspace, toolkit=toolkit,
        idle_timeout=idle_timeout, lifetime=lifetime, pull=pull,
    )  # fmt: skip

    async def body(client: DSecClient) -> None:
        made = args if from_disk is None else await on_disk(client, args, from_disk)
        if from_snapshot is not None:
            info = (await client.snapshots.get(from_snapshot)).info
            made = made.replace(image=made.image or info.image, from_snapshot=from_snapshot)
        await _create(client, made, json=json)

    with_client(body)


async def on_disk(client: DSecClient, args: SandboxArgs, stopped: str) -> SandboxArgs:
    """The same on the kept disk of a stopped sandbox (ID or name), whose image it is unless another is said."""
    info = await (await client.get(stopped)).info()
    return args.replace(image=args.image or info.image, from_disk=info.id)


async def _create(client: DSecClient, args: SandboxArgs, *, json: bool) -> None:
    sandbox = await client.sandbox(await with_image(client, args, quiet=json))
    if json:
        print_json(await sandbox.info())
    else:
        print(sandbox.id)


async def _foreground(client: DSecClient, args: SandboxArgs, *, rm: bool) -> int:
    """Follow the main process to its end. Leaving early, by Ctrl-C say, stops the sandbox."""
    from dsec.cli.streams import copy_output

    async with client.sandbox(await with_image(client, args, quiet=False)) as sandbox:
        await copy_output(sandbox.logs(follow=True))
        code = await _main_code(sandbox)
    if rm:
        await sandbox.remove()
    return code


async def _talking(client: DSecClient, args: SandboxArgs, *, rm: bool, keys: bytes | None) -> int:
    """The main process with our input, at our terminal (``keys``: those that detach, and leave the sandbox alive)."""
    from dsec.cli.streams import at_terminal, converse
    from dsec.client.creating import Keeper

    sandbox = await client.sandbox(args)
    keeper = Keeper(sandbox)
    failing, alive = True, False
    try:
        main = (await sandbox.info()).main_exec_id
        assert main is not None
        program = sandbox.attach(main)
        if keys is None:
            code = await converse(program, interactive=True, keys=None)
        else:
            code = await at_terminal(program, sandbox.id, keys)
        failing, alive = False, code is None
    finally:
        if alive:
            keeper.leave()
        else:
            await keeper.stop(failing=failing)
    if rm and not alive:
        await sandbox.remove()
    return code or 0


async def _main_code(sandbox: Sandbox) -> int:
    """How the main process ended; raises SandboxGone when the sandbox was stopped before it did."""
    info = await sandbox.info()
    for execution in await sandbox.execs():
        if execution.id == info.main_exec_id and execution.ended in (Ended.EXITED, Ended.SIGNALLED):
            return program_code(execution.exit_code, execution.signal)
    raise SandboxGone(
        f"the sandbox ended before its main process: {info.cause or info.state.value}",
        sandbox_id=sandbox.id,
        cause=info.cause or "lost",
        remedy=f"`dsec inspect --story {sandbox.id}` says how it came to this",
    )


def add(app: typer.Typer) -> None:
    """Register the commands."""
    command(app, "run", docker_style=True)(run)
    command(app, "create")(create)
