"""Options that several commands share, under Docker's names where Docker has them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dsec.cli import values
from dsec.cli.completing import sandbox_names

if TYPE_CHECKING:
    from dsec.client.args import SandboxArgs

__all__ = [
    "Cpus", "DetachKeys", "Disk", "EndpointOption", "Env", "EnvFile", "IdleTimeout", "Interactive", "LabelOption",
    "LabelsWanted", "Lifetime", "Memory", "Name", "NetworkOption", "PidsLimit", "ProfileOption", "Protect", "Pull",
    "SandboxRef", "SandboxRefs", "ShmSize", "Toolkit", "Tty", "User", "Workdir", "Workspace", "sandbox_args",
]  # fmt: skip

Interactive = Annotated[bool, typer.Option("-i", "--interactive", help="Pass standard input on.")]
Tty = Annotated[bool, typer.Option("-t", "--tty", help="Give it a terminal.")]
DetachKeys = Annotated[
    str, typer.Option("--detach-keys", metavar="KEYS", help="Keys that leave its terminal and let it run on.")
]
Env = Annotated[list[str] | None, typer.Option("-e", "--env", metavar="K=V", help="Set a variable.")]
EnvFile = Annotated[list[Path] | None, typer.Option("--env-file", help="Read variables from a file.")]
Workdir = Annotated[str | None, typer.Option("-w", "--workdir", help="Working directory.")]
User = Annotated[str | None, typer.Option("-u", "--user", help="NAME or UID[:GID].")]
Name = Annotated[str | None, typer.Option("--name", help="A name, unique among live sandboxes.")]
Memory = Annotated[str, typer.Option("-m", "--memory", metavar="SIZE", help="Memory limit: 512m, 2g.")]
Cpus = Annotated[float, typer.Option("--cpus", help="CPU limit.")]
Disk = Annotated[str, typer.Option("--disk", metavar="SIZE", help="Limit of what the sandbox writes.")]
PidsLimit = Annotated[int, typer.Option("--pids-limit", help="Most processes and threads.")]
ShmSize = Annotated[str, typer.Option("--shm-size", metavar="SIZE", help="Size of /dev/shm.")]
NetworkOption = Annotated[str, typer.Option("--network", help="none, open, GROUP[,GROUP], or @FILE.json.")]
ProfileOption = Annotated[str, typer.Option("--profile", help="How it is isolated: default, strict or nested.")]
Protect = Annotated[
    list[str] | None, typer.Option("--protect", metavar="PATH", help="Not even root inside can change it.")
]
LabelsWanted = Annotated[
    list[str] | None, typer.Option("-l", "--label", metavar="K=V", help="All that have this label.")
]
LabelOption = Annotated[list[str] | None, typer.Option("-l", "--label", metavar="K=V", help="Set a label.")]
Workspace = Annotated[str | None, typer.Option("--workspace", metavar="LAYER", help="workspace/NAME:VERSION.")]
Toolkit = Annotated[list[str] | None, typer.Option("--toolkit", metavar="LAYER", help="toolkit/NAME:VERSION.")]
EndpointOption = Annotated[
    list[str] | None, typer.Option("--endpoint", metavar="NAME=URL", help="A way out: http://NAME.dsec.internal.")
]
IdleTimeout = Annotated[str, typer.Option("--idle-timeout", metavar="TIME", help="Stop after so long without work.")]
Lifetime = Annotated[str, typer.Option("--lifetime", metavar="TIME", help="Stop after so long in any case.")]
Pull = Annotated[str, typer.Option("--pull", help="missing, always or never.")]
SandboxRef = Annotated[str, typer.Argument(metavar="SANDBOX", help="ID or name.", autocompletion=sandbox_names)]
SandboxRefs = Annotated[
    list[str], typer.Argument(metavar="SANDBOX…", help="IDs or names.", autocompletion=sandbox_names)
]


def sandbox_args(
    image: str,
    *,
    env: list[str] | None,
    env_file: list[Path] | None,
    workdir: str | None,
    user: str | None,
    name: str | None,
    memory: str,
    cpus: float,
    disk: str,
    pids_limit: int,
    shm_size: str,
    network: str,
    profile: str,
    protect: list[str] | None,
    endpoint: list[str] | None,
    label: list[str] | None,
    workspace: str | None,
    toolkit: list[str] | None,
    idle_timeout: str,
    lifetime: str,
    pull: str,
    from_disk: str | None = None,
) -> SandboxArgs:
    """The options of ``run`` and ``create`` as SandboxArgs; raises InvalidArgument."""
    from dsec.client.args import SandboxArgs
    from dsec.errors import InvalidArgument

    policies: tuple[Literal["missing", "always", "never"], ...] = ("missing", "always", "never")
    policy = next((one for one in policies if one == pull), None)
    if policy is None:
        raise InvalidArgument(f"--pull {pull}: no such policy", remedy="Use missing, always or never")
    return SandboxArgs(
        image,
        env=values.environment(env or [], env_file or []),
        workdir=workdir,
        user=user,
        name=name,
        memory_mib=values.mib(memory),
        cpu=cpus,
        disk_mib=values.mib(disk),
        pids=pids_limit,
        shm_mib=values.mib(shm_size),
        network=values.network(network),
        profile=profile,
        protected=protect or [],
        endpoints=values.pairs(endpoint or [], what="endpoint"),
        labels=values.labels(label or []),
        workspace=workspace,
        toolkits=toolkit or [],
        idle_timeout_s=values.duration_s(idle_timeout),
        lifetime_s=values.duration_s(lifetime),
        pull=policy,
        from_disk=from_disk,
    )
